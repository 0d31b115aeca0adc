"""Policies over client sets, slot by slot, where every slot starts from the same model or not.

With `training.reset` the reward of a set is a function of the set: it is trained once per trial,
with the batches of the first slot, and remembered. What that leaves out is the order of batches,
which moves a reward by 0.0004 (`gda-mnist`, {1..5}); a hundred trials become affordable.
"""

from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np

from fedagent_coordinator import policies
from fedagent_coordinator.policies import Purpose, RoundView, round_rng
from fedagent_coordinator.policies.base import FloatArray, IntArray
from fedagent_testbed.learning.trainer import FederatedLearner
from fedagent_testbed.study import load_recipe, make_world
from fedagent_testbed.study.selection import policy_params

Members = tuple[int, ...]
BELIEVED = 30
"""Slots of which beliefs are kept."""


@dataclass(eq=False)
class Played:
    """A policy's slots of one trial.

    Attributes:
        opinion: float64[T], mean opinion after each slot.
        sets: Who was chosen.
        belief: float64[T, N] of a policy that has beliefs, else None.
    """

    opinion: FloatArray
    sets: list[Members]
    belief: FloatArray | None


@dataclass(eq=False)
class SlotWorld:
    """One trial: data, positions and the first model, all by its seed."""

    sets: tuple[str, ...]
    seed: int
    known: dict[Members, FloatArray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.recipe = load_recipe("gda-mnist", self.sets)
        self._world = make_world(self.recipe, self.seed)
        self._fresh = FederatedLearner(self.recipe, self.seed)
        self._first = self._fresh.opinions()
        self._view = self._world.view(1)

    def opinions(self, clients: Members) -> FloatArray:
        """Return what all think after a slot of this set from the first model, float64[N]."""
        if clients not in self.known:
            self.known[clients] = self._slot(self._fresh, 1, np.array(clients))
        return self.known[clients]

    def play(
        self, name: str, slots: int, own: tuple[str, ...] = (), *, shuffled: bool = False
    ) -> Played:
        """Play a policy, with keys of its own over the recipe's, for so many slots.

        Shuffled: it sees clients under other numbers, so that ties to the smaller number tell
        nothing of data; sets are named by the data all the same.
        """
        order = np.arange(self.recipe.world.clients)
        if shuffled:
            order = np.random.default_rng(self.seed).permutation(order)
        base, params = policy_params(load_recipe("gda-mnist", (*self.sets, *own)), name)
        if "slot_rounds" in params:
            params["slot_rounds"] = 1  # a slot is one round here
        policy = policies.create(base, **params)
        reset = self.recipe.world.training.reset
        learner = self._fresh if reset else FederatedLearner(self.recipe, self.seed)
        opinions, means, sets, beliefs = self._first, list[float](), list[Members](), []
        for t in range(1, slots + 1):
            view = replace(self._view, round=t, opinions=opinions[order])
            chosen = policy.select(view, round_rng(self.seed, t, Purpose.SELECT)).pairs
            clients = np.sort(order[np.unique(view.pair_client[chosen])])
            members = tuple(clients.tolist())
            opinions = (
                self.opinions(members)
                if reset
                else self._slot(learner, t, clients.astype(np.int64))
            )
            policy.learn(replace(self._world.play(view, chosen), opinions=opinions[order]))
            means.append(float(opinions.mean()))
            sets.append(members)
            if name == "bp-ucb" and t <= BELIEVED:
                beliefs.append(policy.state()["belief"].copy())
        return Played(np.array(means), sets, np.array(beliefs) if beliefs else None)

    def climb(self, start: Members) -> Members:
        """Return a set that no exchange of one member betters, from `start` by best exchanges."""
        everybody, best = set(range(self.recipe.world.clients)), start
        while True:
            nearby = [
                tuple(sorted({*best, new} - {old}))
                for old in best
                for new in sorted(everybody - set(best))
            ]
            found = max(nearby, key=lambda one: float(self.opinions(one).mean()))
            if self.opinions(found).mean() <= self.opinions(best).mean():
                return best
            best = found

    def _slot(self, learner: FederatedLearner, slot: int, clients: IntArray) -> FloatArray:
        rounds = self.recipe.world.training.slot_rounds
        for round_ in range((slot - 1) * rounds + 1, slot * rounds + 1):
            view = self._world.view(round_)
            learner.advance(self._world.play(view, _pairs(view, clients)))
        return learner.opinions()


@lru_cache(maxsize=10)
def world(sets: tuple[str, ...], seed: int) -> SlotWorld:
    """Return a trial's world; a block of trials shares what it has trained."""
    return SlotWorld(sets, seed)


def _pairs(view: RoundView, clients: IntArray) -> IntArray:
    """Return each client's first pair."""
    _, first = np.unique(view.pair_client, return_index=True)
    return np.asarray(first[clients], dtype=np.int64)
