"""Studies of streams under a long-term budget (BAS), by a pair ``ITERATIONS+PLACEMENT``.

``by-progress+budgeted-ucb`` is ours, ``primal-dual+budgeted-ucb`` the paper's. Iterations are those
of the coordinator (`by-progress`, `primal-dual`, `strsaga-default`, `learner`), or ``fixed-N``;
placements too (`random`, `min-cost`, ...), or ``fixed-N`` for edge N, ``fixed-best`` for the edge
that is best in hindsight, and ``alone``: no aggregation, every device keeps its model.
"""

import re
import time

import numpy as np

from fedagent_coordinator import iterations, placement
from fedagent_coordinator.iterations import IterationControl
from fedagent_coordinator.placement import Placement, PlacementPolicy, PlacementView
from fedagent_coordinator.policies import Feedback, Purpose, RoundView, round_rng
from fedagent_coordinator.policies.base import FloatArray
from fedagent_task.errors import RecipeError
from fedagent_task.recipe.spec import MICRO
from fedagent_testbed.learning.fleet import Fleet, FleetRound
from fedagent_testbed.recipe import TestbedRecipe
from fedagent_testbed.worlds.base import arrived
from fedagent_testbed.worlds.network import StreamNetwork, draw_network

from .history import History

MARGIN = 0.005
"""A final loss within this of the best counts as reaching it."""
ALONE = "alone"
BEST = "fixed-best"
RENTED = "budgeted-ucb"
OURS = f"by-progress+{RENTED}"
PAPERS = f"primal-dual+{RENTED}"
BASELINES = tuple(
    f"fixed-{rho}+{place}"
    for rho in (1, 2, 3, 4, 5, 20)
    for place in ("min-trans", "min-cost", "random", BEST, RENTED)
)
FIXED = tuple(f"fixed-{rho}+{RENTED}" for rho in (1, 2, 3, 4, 5, 7, 10))
"""One placement for all, so that nothing but iterations makes a difference."""
SETS = {"all": (OURS, PAPERS, *BASELINES), "fixed-n": (OURS, PAPERS, *FIXED)}
"""What these words stand for: ``all`` tells what iterations save from what renting saves."""

_FIXED = re.compile(r"fixed-([0-9]{1,6})")


def controls_of(name: str) -> tuple[str, str]:
    """Take a pair of names apart, or raise a `RecipeError` with the names that there are."""
    first, plus, second = name.partition("+")
    if not plus:
        raise RecipeError("policy", f"{name[:64]!r} is no ITERATIONS+PLACEMENT", f"e.g. {OURS}")
    for part, names in (
        (first, iterations.names()),
        (second, (*placement.names(), ALONE, BEST)),
    ):
        known = {*names} - {"fixed", "coordinator"}
        if part not in known and not _FIXED.fullmatch(part):
            hint = f"take fixed-N, or of {', '.join(sorted(known))}"
            raise RecipeError("policy", f"has {part[:32]!r} in {name[:64]!r}", hint)
    return first, second


class StreamStudy:
    """One run of a pair of controls, until the budget pays no more rent or all rounds are over."""

    def __init__(self, recipe: TestbedRecipe, name: str, seed: int) -> None:
        control, place = controls_of(name)
        self._recipe, self._seed = recipe, seed
        self._left = round(recipe.world.streaming.budget * MICRO)
        self._iterations = make_iterations(recipe, control)
        self._network = draw_network(recipe, seed)
        self._fleet = Fleet(recipe, seed, alone=place == ALONE)
        size = self._fleet.model_bytes * recipe.world.streaming.model_scale
        self._transfer_s = self._network.transfer_s(size)
        self._cost_s = self._network.cost_s(size)
        self._expected_s: FloatArray = self._transfer_s.mean(axis=0)
        self._placement: PlacementPolicy | None = None
        if place != ALONE:
            best = best_edge(self._network, size, self._left)
            self._placement = make_placement(recipe, place, best)

    def play_round(self, t: int, history: History) -> bool:
        """Play round `t`, from 1, into the history; False if no rent can be paid."""
        settings = self._recipe.world.streaming
        if t == 1:
            history.first_loss = self._fleet.loss()
        began = time.perf_counter()
        placed = self._placed(t)
        devices = np.arange(self._recipe.world.clients)
        each = self._iterations.choose(devices, round_rng(self._seed, t, Purpose.ITERATE))
        decided = time.perf_counter() - began
        if placed.exhausted:
            history.exhausted = True
            if history.rows:
                history.rows[-1]["loss"] = self._fleet.loss()
            return False
        self._left -= placed.rent_micro
        sample_s = settings.iteration_s * self._network.slowness[t - 1]
        most = settings.load_limit_s / sample_s if settings.enforce else None
        trained = self._fleet.train(t, each, most)
        test = t % settings.evaluate_every == 0 or t == self._recipe.rounds.count
        loss = self._fleet.loss() if test else np.nan
        seconds = trained.looked_at * settings.iteration_s * self._network.slowness[t - 1]
        began = time.perf_counter()
        transfer_s, aggregate_s = self._learn(t, placed, trained, seconds)
        learnt = time.perf_counter() - began
        peak_s = float(seconds.max())
        history.rows.append(
            {
                "rho": float(each.mean()),
                "done": float(trained.iterations.mean()) / trained.steps,
                "arrivals": int(trained.arrivals.sum()),
                "compute_s": float(seconds.sum()),
                "peak_s": peak_s,
                "over_s": max(peak_s - settings.load_limit_s, 0.0),
                "transfer_s": transfer_s,
                "aggregate_s": aggregate_s,
                "edge": -1 if placed.edge is None else placed.edge,
                "rent": placed.rent_micro / MICRO,
                "loss": loss,
                "squares": float(trained.squares.sum()),
                "naive": float(trained.naive.sum()),
                "tested": int(trained.tested.sum()),
                "limited": float(trained.limited.mean()),
                "decide_ms": 1000 * (decided + learnt),
            }
        )
        return True

    def _placed(self, t: int) -> Placement:
        """Choose an edge, whose transfer time is known as its mean."""
        if self._placement is None:
            return Placement()
        view = PlacementView(
            round=t,
            edge_live=np.ones(self._recipe.world.edges, dtype=np.bool_),
            edge_rent=self._network.rent_micro[t - 1],
            budget_micro=self._left,
            edge_transfer_s=self._expected_s,
        )
        return self._placement.choose(view, round_rng(self._seed, t, Purpose.PLACE))

    def _learn(
        self, t: int, placed: Placement, trained: FleetRound, seconds: FloatArray
    ) -> tuple[float, float]:
        transfer = whole = 0.0
        if self._placement is not None and placed.edge is not None:
            transfer = float(self._transfer_s[t - 1, placed.edge])
            whole = float(self._cost_s[t - 1, placed.edge])
            self._placement.learn(placed, whole)
        steps = self._recipe.world.streaming.steps
        feedback = _feedback(t, trained, seconds)
        self._iterations.learn(feedback, horizon=self._horizon(t), steps=steps)
        return transfer, whole - transfer

    def _horizon(self, t: int) -> float:
        """Return how many rounds the run may have: all, or as many as rents can be paid."""
        rounds = float(self._recipe.rounds.count)
        rents = self._network.rent_micro[t - 1]
        fitting = rents[rents <= self._left]
        if self._placement is None or not len(fitting):
            return rounds
        return min(rounds, t + self._left / float(fitting.mean()))


def is_alone(name: str) -> bool:
    """Return whether this pair aggregates nothing."""
    return name.endswith(f"+{ALONE}")


def best_edge(network: StreamNetwork, model_bytes: float, budget_micro: int) -> int:
    """Return the edge of least mean cost, in hindsight, that the budget pays in all rounds.

    If it pays none of them to the end, the edge that lasts longest.
    """
    cost = network.cost_s(model_bytes).mean(axis=0)
    spent = network.rent_micro.sum(axis=0)
    lasts = spent <= budget_micro
    return int(np.argmin(np.where(lasts, cost, np.inf) if lasts.any() else spent))


def chosen(recipe: TestbedRecipe, names: list[str]) -> list[str]:
    """Return the pairs that run; a word of `SETS` stands for its pairs."""
    wanted = list(dict.fromkeys(pair for name in names for pair in SETS.get(name, (name,))))
    for name in wanted:
        control, place = controls_of(name)
        make_iterations(recipe, control)
        if place != ALONE:
            make_placement(recipe, place, 0)
    return wanted


def make_iterations(recipe: TestbedRecipe, name: str) -> IterationControl:
    """Return an iteration control with the recipe's parameters for it."""
    if match := _FIXED.fullmatch(name):
        return iterations.create("fixed", {"iterations": int(match[1])})
    limit = {"load_limit_s": recipe.world.streaming.load_limit_s}
    return iterations.create(name, {**limit, **recipe.params(name)})


def make_placement(recipe: TestbedRecipe, name: str, best: int) -> PlacementPolicy:
    """Return a placement with the recipe's parameters; `best` is what ``fixed-best`` stands for."""
    if name == BEST:
        return placement.create("fixed", edge=best)
    if match := _FIXED.fullmatch(name):
        edge = int(match[1])
        if edge >= recipe.world.edges:
            raise RecipeError(
                "policy", f"names edge {edge}", f"there are {recipe.world.edges}, from 0"
            )
        return placement.create("fixed", edge=edge)
    return placement.create(name, **recipe.params(name))


def _feedback(round_: int, trained: FleetRound, seconds: FloatArray) -> Feedback:
    devices = len(seconds)
    clients, yes = np.arange(devices), np.ones(devices, dtype=np.bool_)
    per_iteration = np.full(devices, np.nan)
    np.divide(seconds, trained.iterations, out=per_iteration, where=trained.iterations > 0)
    view = RoundView(
        round=round_,
        pair_client=clients.astype(np.int32),
        pair_edge=np.zeros(devices, dtype=np.int32),
        pair_features=np.zeros((devices, 0), dtype=np.float32),
        feature_names=(),
        client_price=np.zeros(devices, dtype=np.int64),
        client_available=yes,
        edge_budget=np.zeros(1, dtype=np.int64),
    )
    return arrived(
        view,
        clients.astype(np.int64),
        yes,
        seconds,
        lc_s=seconds,
        arrivals=trained.arrivals,
        num_samples=trained.arrivals,
        seconds_per_iteration=per_iteration,
        steps=np.full(devices, trained.steps, dtype=np.int64),
        iterations=np.rint(trained.iterations / trained.steps).astype(np.int64),
        train_s=seconds,
        loss=trained.loss,
    )
