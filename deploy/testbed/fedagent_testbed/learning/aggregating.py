"""The strategies of live runs on a study's flat parameters: at edges and at merges.

A model of an edge is {"": float32[d]}, with SCAFFOLD's control variate beside it.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from fedagent_coordinator.policies.base import FloatArray
from fedagent_task import aggregation
from fedagent_task.aggregation import (
    CONTROL,
    Arrays,
    Contribution,
    EdgeShare,
    MergeFacts,
    RunningMean,
    Strategy,
    Sums,
)
from fedagent_task.aggregation.alignment import gram_of, judged
from fedagent_task.aggregation.alignment import remembered as alignments_after
from fedagent_task.aggregation.averaging import FedAvg, FedBn, FedNova, FedProx
from fedagent_task.aggregation.bounds import Told, remembered, settled, told_of
from fedagent_task.aggregation.combining import add, combine
from fedagent_task.aggregation.robust import PLAIN, Robust
from fedagent_task.aggregation.robust import registry as robust_rules
from fedagent_task.errors import RecipeError
from fedagent_testbed.recipe import TestbedRecipe, Weighting

from .local_sgd import Floats, Indices

FEDAVG = FedAvg()


def strategy_of(recipe: TestbedRecipe) -> Strategy:
    """Return the strategy of a study, or raise `RecipeError` where the study has none such."""
    name, merge_every = recipe.aggregation.name, recipe.rounds.merge_every
    made = aggregation.create(name, **recipe.aggregation.params)
    if isinstance(made, FedBn):
        wrong = "is fedbn, and no model of a study has norm layers"
        raise RecipeError("aggregation.name", wrong, "take fedavg")
    if made.every_round and merge_every > 1:
        wrong = f"is {merge_every}, and {name} merges every round"
        raise RecipeError("rounds.merge_every", wrong, "take 1")
    if (made.controls or mu_of(made)) and recipe.world.training.model == "cnn":
        wrong = f"is {name}, and a study's cnn has no such client term"
        raise RecipeError("aggregation.name", wrong, "take world.training.model = mlp")
    return made


def rule_of(recipe: TestbedRecipe) -> Robust:
    """Return the robust rule of a study; raises what `Registry.create` raises."""
    return robust_rules.create(recipe.aggregation.robust, **recipe.aggregation.robust_params)


def mu_of(strategy: Strategy) -> float:
    """Return FedProx's mu; 0 of a strategy without."""
    return strategy.mu if isinstance(strategy, FedProx | FedNova) else 0.0


@dataclass(frozen=True, slots=True, eq=False)
class Updates:
    """What some of a round's clients have learnt; a round is a stream of these."""

    clients: Indices
    edges: Indices  # int64[C], the edge whose model each client started from
    samples: Indices  # int64[C], samples that each client trains on
    deltas: Floats  # float32[C, d], trained minus starting parameters
    steps: Indices | None = None  # int64[C], of the optimiser
    base_loss: FloatArray | None = None  # float64[C], of the starting model; None if not asked for
    controls: Floats | None = None  # float32[C, d], changes of the control variates


_Held = tuple[int, Contribution, dict[str, Floats]]
"""An update that a robust rule looks at with all others: its client, what it claims, its arrays."""


class EdgeModels:
    """The models of M edges since the last merge, and what edges and coordinator keep.

    Attributes:
        models: float32[M, d].
        controls: float32[M, d], SCAFFOLD's c at each edge; None without.
        learnt, steps: float64[M], weight and steps of the updates since the last merge.
        last: float32[d], the last global model; `control` is beside it.
    """

    def __init__(
        self,
        first: Floats,
        strategy: Strategy = FEDAVG,
        weighting: Weighting = "uniform",
        *,
        clients: int = 1,
        rate: float = 1.0,
        rule: Robust = PLAIN,
    ) -> None:
        self._strategy, self._rule = strategy, rule
        self._uniform, self._clients, self._rate = weighting == "uniform", clients, rate
        self._told: dict[int, tuple[Told, ...]] = {}
        self._alignments: dict[int, dict[str, float]] = {}
        self.begin(first)

    def begin(self, first: Floats) -> None:
        """Begin from float32[M, d]; what edges know of clients stays."""
        edges = len(first)
        self.models = first
        self.controls = np.zeros_like(first) if self._strategy.controls else None
        self.learnt, self.steps = np.zeros(edges), np.zeros(edges)
        self.state: Arrays = {}
        self.last = self._of(0)

    def take(self, round_: Iterable[Updates]) -> None:
        """Take what a round's clients have learnt from `models`; without updates as they are."""
        edges = range(len(self.models))
        sums, means = [Sums() for _ in edges], [RunningMean() for _ in edges]
        held: list[list[_Held]] = [[] for _ in edges]
        # One by one: the order of summation must not depend on how they are cut.
        for part in round_:
            for row, edge in enumerate(part.edges.tolist()):
                claim = self._claim(part, row)
                weighed = self._strategy.weigh(claim)
                delta = {"": part.deltas[row]}
                if part.controls is not None:
                    delta[CONTROL] = part.controls[row]
                if weighed.weight > 0 and type(self._rule) is Robust:
                    add(means[edge], delta, weighed)
                    sums[edge].add(weighed)
                elif weighed.weight > 0:
                    held[edge].append((int(part.clients[row]), claim, delta))
        models, controls = self.models.copy(), self.controls
        controls = None if controls is None else controls.copy()
        for edge in edges:
            if held[edge]:
                means[edge], sums[edge] = self._combined(edge, held[edge])
            if means[edge].weight:
                made = means[edge].apply(self._of(edge), self._strategy.scale(sums[edge]))
                models[edge] = made[""]
                if controls is not None:
                    controls[edge] = made[CONTROL]
        self.models, self.controls = models, controls
        self.learnt = self.learnt + [one.weight for one in sums]
        self.steps = self.steps + [one.local_steps for one in sums]

    def _claim(self, part: Updates, row: int) -> Contribution:
        steps = 0.0 if part.steps is None else float(part.steps[row])
        if (shrinks := mu_of(self._strategy) * self._rate) > 0:
            steps = (1.0 - (1.0 - shrinks) ** steps) / shrinks
        return Contribution(
            num_samples=float(part.samples[row]),
            norm=float(np.linalg.norm(part.deltas[row])),
            base_loss=0.0 if part.base_loss is None else float(part.base_loss[row]),
            local_steps=steps,
            uniform=self._uniform,
            rate=self._rate,
            most_steps=max(steps, 1.0),
        )

    def _combined(self, edge: int, held: list[_Held]) -> tuple[RunningMean, Sums]:
        """Return what a robust rule makes of an edge's updates; remembers them."""
        before = self._told.get(edge, ())
        norms = [float(np.linalg.norm(delta.get(CONTROL, 0.0))) for _, _, delta in held]
        told = [(claim, norm) for (_, claim, _), norm in zip(held, norms, strict=True)]
        found = settled(self._rule, self._strategy.weigh, told, before)
        self._told[edge] = remembered(before, [told_of(*one) for one in told])
        against = self._against(edge, held) if self._rule.directions else [False] * len(held)
        used, sums = [], Sums()
        for (_, _, delta), weighed, out in zip(held, found, against, strict=True):
            if not out:
                used.append((delta.copy, weighed))
                sums.add(weighed)
        return combine(self._rule, used), sums

    def _against(self, edge: int, held: list[_Held]) -> list[bool]:
        names = [str(client) for client, _, _ in held]
        before = self._alignments.get(edge, {})
        gram = gram_of([delta[""].astype(np.float64) for _, _, delta in held])
        now, against = judged(gram, np.array([before.get(name, np.nan) for name in names]))
        self._alignments[edge] = alignments_after(before, names, now)
        return [bool(one) for one in against]

    def merged(self) -> tuple[dict[str, Floats], Arrays]:
        """Return the global model that a merge makes now, and the state after it.

        It is that of the coordinator: where nobody has learnt nothing changes.
        """
        shares = [
            EdgeShare(weight=weight, local_steps=steps, uniform=self._uniform)
            for weight, steps in zip(self.learnt.tolist(), self.steps.tolist(), strict=True)
        ]
        combined, mean = self._strategy.combine(shares), RunningMean()
        for edge, weight in enumerate(combined.weights):
            if weight > 0:
                mean.add(self._of(edge), weight)
        if not mean.weight:
            return self._of(0), self.state
        merged = mean.apply({name: np.zeros_like(one) for name, one in self.last.items()})
        model: Arrays = merged
        state = self.state
        if self._strategy.acts and self.learnt.any():
            learnt, factor = float(self.learnt.sum()), combined.factor
            facts = MergeFacts(weight=learnt, clients=self._clients, factor=factor)
            model, state = self._strategy.server(self.last, merged, self.state, facts)
        return {name: np.asarray(one, np.float32) for name, one in model.items()}, state

    def merge(self) -> None:
        """Give all edges the merged model."""
        self.last, self.state = self.merged()
        edges = len(self.models)
        self.models = np.tile(self.last[""], (edges, 1))
        if self.controls is not None:
            self.controls = np.tile(self.last[CONTROL], (edges, 1))
        self.learnt, self.steps = np.zeros(edges), np.zeros(edges)

    def _of(self, edge: int) -> dict[str, Floats]:
        own = {"": self.models[edge]}
        return own if self.controls is None else {**own, CONTROL: self.controls[edge]}
