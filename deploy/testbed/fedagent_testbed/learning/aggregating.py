"""The strategies of live runs on a study's flat parameters: at edges, at merges, at clients.

A model of an edge is {"": float32[d]}, with SCAFFOLD's control variate beside it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

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
    Weighed,
)
from fedagent_task.aggregation.alignment import gram_of, judged
from fedagent_task.aggregation.alignment import remembered as alignments_after
from fedagent_task.aggregation.averaging import FedAvg, FedBn, FedNova, FedProx
from fedagent_task.aggregation.bounds import Told, remembered, settled, told_of
from fedagent_task.aggregation.combining import combine
from fedagent_task.aggregation.robust import Robust
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


@dataclass(slots=True, eq=False)
class Usual:
    """A robust rule, and what each edge remembers of the updates before."""

    rule: Robust
    before: dict[int, tuple[Told, ...]] = field(default_factory=dict)
    alignments: dict[int, dict[str, float]] = field(default_factory=dict)

    def combined(
        self, strategy: Strategy, edge: int, held: Sequence["_Held"]
    ) -> tuple[RunningMean, list[Weighed]]:
        """Return the sum of an edge's updates, and how they weigh; remembers them."""
        before = self.before.get(edge, ())
        told = [(one, _norm(delta.get(CONTROL))) for _, one, delta in held]
        found = settled(self.rule, strategy.weigh, told, before)
        self.before[edge] = remembered(before, [told_of(*one) for one in told])
        against = self._against(edge, held) if self.rule.directions else [False] * len(held)
        used = [
            (partial(_itself, delta), weighed)
            for (_, _, delta), weighed, out in zip(held, found, against, strict=True)
            if not out
        ]
        return combine(self.rule, used), [weighed for _, weighed in used]

    def _against(self, edge: int, held: Sequence["_Held"]) -> list[bool]:
        names = [str(client) for client, _, _ in held]
        before = self.alignments.get(edge, {})
        gram = gram_of([delta[""].astype(np.float64) for _, _, delta in held])
        now, against = judged(gram, np.array([before.get(name, np.nan) for name in names]))
        self.alignments[edge] = alignments_after(before, names, now)
        return [bool(one) for one in against]


def _itself(delta: Arrays) -> Arrays:
    return delta


def _norm(array: Floats | None) -> float:
    return 0.0 if array is None else float(np.linalg.norm(array))


_Held = tuple[int, Contribution, dict[str, Floats]]


@dataclass(slots=True, eq=False)
class RoundSums:
    """The sums of a round at M edges."""

    edges: int
    strategy: Strategy = FEDAVG
    weighting: Weighting = "uniform"
    rate: float = 1.0
    usual: "Usual | None" = None
    means: list[RunningMean] = field(init=False)
    sums: list[Sums] = field(init=False)
    _held: list[list[_Held]] = field(init=False)

    def __post_init__(self) -> None:
        self.means = [RunningMean() for _ in range(self.edges)]
        self.sums = [Sums() for _ in range(self.edges)]
        self._held = [[] for _ in range(self.edges)]

    def add(self, part: Updates) -> None:
        """Add updates one by one: the order of summation must not depend on how they are cut."""
        for row, edge in enumerate(part.edges.tolist()):
            told = self._told(part, row)
            weighed = self.strategy.weigh(told)
            if weighed.weight <= 0:
                continue
            delta = {"": part.deltas[row]}
            if part.controls is not None:
                delta[CONTROL] = part.controls[row]
            if self.usual is not None:
                self._held[edge].append((int(part.clients[row]), told, delta))
                continue
            self.means[edge].add(delta, weighed.weight, weighed.coefficient)
            self.sums[edge].add(weighed)

    def _settle(self) -> None:
        """Make the sums of a robust rule of what was held back for it."""
        for edge, held in enumerate(self._held):
            if held and self.usual is not None:
                self.means[edge], weighed = self.usual.combined(self.strategy, edge, held)
                for one in weighed:
                    self.sums[edge].add(one)
        self._held = [[] for _ in self._held]

    def models(self, start: Floats, controls: Floats | None = None) -> tuple[Floats, Floats | None]:
        """Return the edges' models, float32[M, d], and control variates; without updates as is."""
        self._settle()
        models, kept = start.copy(), None if controls is None else controls.copy()
        for edge, (mean, sums) in enumerate(zip(self.means, self.sums, strict=True)):
            if mean.weight:
                base: Arrays = {"": start[edge]}
                if controls is not None:
                    base = {**base, CONTROL: controls[edge]}
                made = mean.apply(base, self.strategy.scale(sums))
                models[edge] = made[""]
                if kept is not None:
                    kept[edge] = made[CONTROL]
        return models, kept

    def _told(self, part: Updates, row: int) -> Contribution:
        steps = 0.0 if part.steps is None else float(part.steps[row])
        if (shrinks := mu_of(self.strategy) * self.rate) > 0:
            steps = (1.0 - (1.0 - shrinks) ** steps) / shrinks
        return Contribution(
            num_samples=float(part.samples[row]),
            norm=float(np.linalg.norm(part.deltas[row])),
            base_loss=0.0 if part.base_loss is None else float(part.base_loss[row]),
            local_steps=steps,
            uniform=self.weighting == "uniform",
            rate=self.rate,
            most_steps=max(steps, 1.0),
        )


@dataclass(slots=True, eq=False)
class EdgeModels:
    """The models of M edges since the last merge, and what the coordinator keeps.

    Attributes:
        models: float32[M, d].
        controls: float32[M, d], SCAFFOLD's c at each edge; None without.
        learnt, steps: float64[M], weight and steps of the updates since the last merge.
        last: float32[d], the last global model; `control` is beside it.
    """

    models: Floats
    strategy: Strategy
    weighting: Weighting
    clients: int
    controls: Floats | None = field(init=False)
    learnt: FloatArray = field(init=False)
    steps: FloatArray = field(init=False)
    last: dict[str, Floats] = field(init=False)
    state: Arrays = field(init=False)

    def __post_init__(self) -> None:
        self.controls = np.zeros_like(self.models) if self.strategy.controls else None
        self.learnt, self.steps = np.zeros(len(self.models)), np.zeros(len(self.models))
        self.state = {}
        self.last = self._of(0)

    def take(self, round_: RoundSums, start: Floats) -> None:
        """Take the edges' models after a round from float32[M, d]."""
        self.models, self.controls = round_.models(start, self.controls)
        self.learnt = self.learnt + [one.weight for one in round_.sums]
        self.steps = self.steps + [one.local_steps for one in round_.sums]

    def merged(self) -> tuple[dict[str, Floats], Arrays]:
        """Return the global model that a merge makes now, and the state after it.

        It is that of the coordinator: where nobody has learnt nothing changes.
        """
        shares = [
            EdgeShare(weight=weight, local_steps=steps, uniform=self.weighting == "uniform")
            for weight, steps in zip(self.learnt.tolist(), self.steps.tolist(), strict=True)
        ]
        combined, mean = self.strategy.combine(shares), RunningMean()
        for edge, weight in enumerate(combined.weights):
            if weight > 0:
                mean.add(self._of(edge), weight)
        if not mean.weight:
            return self._of(0), self.state
        merged = mean.apply({name: np.zeros_like(one) for name, one in self.last.items()})
        model: Arrays = merged
        state = self.state
        if self.strategy.acts and self.learnt.any():
            learnt, factor = float(self.learnt.sum()), combined.factor
            facts = MergeFacts(weight=learnt, clients=self.clients, factor=factor)
            model, state = self.strategy.server(self.last, merged, self.state, facts)
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
