"""One pair of controls through one streaming world, in virtual time, with real learning."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from fedagent_coordinator.core.iterations import IterationControl
from fedagent_coordinator.placement import Placement, PlacementPolicy, PlacementView
from fedagent_coordinator.policies import Purpose, round_rng
from fedagent_coordinator.policies.base import FloatArray
from fedagent_task.spec import MICRO
from fedagent_testbed.learning.blas import one_blas_thread
from fedagent_testbed.study.spec import TestbedRecipe

from .control import Variant, make_iterations, make_placement
from .fleet import Fleet, Trained
from .history import StreamHistory, StreamRound
from .network import Network, draw_network
from .table import feedback_of

Progress = Callable[[int], None]


def play_stream(
    recipe: TestbedRecipe, name: str, seed: int, progress: Progress = lambda _t: None
) -> StreamHistory:
    """Run a pair of controls until the budget pays no more rent, or all rounds are over.

    Deterministic by seed, but for the milliseconds of deciding.

    Args:
        recipe: A study of the world ``bas``.
        name: ``ITERATIONS+PLACEMENT``.
        seed: Of the world, the learning and the decisions.
        progress: Told the number of each round that is over.

    Raises:
        PolicyError: A control fails, or a parameter is wrong.
        DatasetError: The recipe's data are not there.
        RecipeError: The name, the model or the learner does not fit.
    """
    variant = Variant.parse(name)
    with one_blas_thread():
        return _Study(recipe, variant, seed).run(name, progress)


def best_edge(network: Network, model_bytes: float, budget_micro: int) -> int:
    """Return the edge of least mean cost among those that the budget pays in all rounds.

    Found in hindsight, with every round's cost and rent known. If the budget pays none of
    them to the end, the edge that lasts longest.
    """
    cost = network.cost_s(model_bytes).mean(axis=0)
    spent = network.rent_micro.sum(axis=0)
    lasts = spent <= budget_micro
    return int(np.argmin(np.where(lasts, cost, np.inf) if lasts.any() else spent))


@dataclass(frozen=True, slots=True)
class _Decision:
    """What was decided of a round, and what it took to."""

    placed: Placement
    rho: int
    seconds: float


class _Study:
    """World, devices and controls of one run."""

    def __init__(self, recipe: TestbedRecipe, variant: Variant, seed: int) -> None:
        self._recipe, self._variant, self._seed = recipe, variant, seed
        self._budget = round(recipe.streaming.budget * MICRO)
        self._iterations: IterationControl = make_iterations(recipe, variant.iterations)
        self._network = draw_network(recipe, seed)
        self._fleet = Fleet(recipe, seed, alone=variant.alone)
        size = self._fleet.model_bytes * recipe.streaming.model_scale
        self._transfer_s = self._network.transfer_s(size)
        self._cost_s = self._network.cost_s(size)
        self._expected_s: FloatArray = self._transfer_s.mean(axis=0)
        self._placement: PlacementPolicy | None = None
        if not variant.alone:
            best = best_edge(self._network, size, self._budget)
            self._placement = make_placement(recipe, variant.placement, best)

    def run(self, name: str, progress: Progress) -> StreamHistory:
        """Play."""
        settings, rounds = self._recipe.streaming, self._recipe.rounds.count
        first_loss = self._fleet.loss()
        rows: list[StreamRound] = []
        exhausted = False
        for t in range(1, rounds + 1):
            decision = self._decide(t)
            if decision.placed.exhausted:
                exhausted = True
                break
            self._budget -= decision.placed.rent_micro
            trained = self._fleet.train(t, decision.rho, self._allowed(t))
            test = t % settings.evaluate_every == 0 or t == rounds
            rows.append(self._settle(t, decision, trained, self._fleet.loss() if test else np.nan))
            progress(t)
        if exhausted and rows:
            rows[-1] = replace(rows[-1], loss=self._fleet.loss())
        return StreamHistory(
            name, self._seed, first_loss, settings.load_limit_s, exhausted, tuple(rows)
        )

    def _allowed(self, t: int) -> FloatArray | None:
        """Return how many samples each device may look at within its load limit."""
        settings = self._recipe.streaming
        if not settings.enforce:
            return None
        sample_s = settings.iteration_s * self._network.slowness[t - 1]
        return np.asarray(settings.load_limit_s / sample_s, dtype=np.float64)

    def _decide(self, t: int) -> _Decision:
        """Choose edge and iterations; an edge's transfer time is known as its mean."""
        began = time.perf_counter()
        placed = Placement()
        if self._placement is not None:
            view = PlacementView(
                round=t,
                edge_live=np.ones(self._recipe.edges, dtype=np.bool_),
                edge_rent=self._network.rent_micro[t - 1],
                budget_micro=self._budget,
                edge_transfer_s=self._expected_s,
            )
            placed = self._placement.choose(view, round_rng(self._seed, t, Purpose.PLACE))
        rho = self._iterations.choose(round_rng(self._seed, t, Purpose.ITERATE))
        return _Decision(placed, rho, time.perf_counter() - began)

    def _settle(self, t: int, decision: _Decision, trained: Trained, loss: float) -> StreamRound:
        """Say what the round took, and let both controls learn from it."""
        settings, row, edge = self._recipe.streaming, t - 1, decision.placed.edge
        seconds = trained.looked_at * settings.iteration_s * self._network.slowness[row]
        began = time.perf_counter()
        if self._placement is not None and edge is not None:
            self._placement.learn(decision.placed, float(self._cost_s[row, edge]))
        self._iterations.learn(
            feedback_of(t, trained, seconds), horizon=self._horizon(t), steps=settings.steps
        )
        learnt = time.perf_counter() - began
        transfer = 0.0 if edge is None else float(self._transfer_s[row, edge])
        whole = 0.0 if edge is None else float(self._cost_s[row, edge])
        return StreamRound(
            rho=decision.rho,
            done=float(trained.iterations.mean()) / trained.steps,
            arrivals=int(trained.arrivals.sum()),
            compute_s=float(seconds.sum()),
            peak_s=float(seconds.max()),
            transfer_s=transfer,
            aggregate_s=whole - transfer,
            edge=-1 if edge is None else edge,
            rent=decision.placed.rent_micro / MICRO,
            loss=loss,
            squares=trained.squares,
            naive=trained.naive,
            tested=trained.tested,
            limited=trained.limited / len(seconds),
            decide_ms=1000 * (decision.seconds + learnt),
        )

    def _horizon(self, t: int) -> float:
        """Return how many rounds the run may have: all, or as many as rents can be paid."""
        rounds = float(self._recipe.rounds.count)
        rents = self._network.rent_micro[t - 1]
        fitting = rents[rents <= self._budget]
        if self._placement is None or not len(fitting):
            return rounds
        return min(rounds, t + self._budget / float(fitting.mean()))
