"""`ucb`: classic UCB over K-subsets, the baseline of GDA (ALGORITHMS section 5).

One pull per arm first, in a seeded random order that is drawn as it goes; then the arm of the
largest mean + mu sqrt(ln t / count), ties to the smaller ascending client tuple. Only arms of
clients that can be chosen this round count. Page: docs/policies/baselines.md.
"""

import itertools
import math
from typing import ClassVar

import numpy as np

from fedagent_coordinator.policies.base import (
    OPINIONS,
    BoolArray,
    Feedback,
    IntArray,
    RoundView,
    Selection,
)
from fedagent_coordinator.policies.selection import explained
from fedagent_coordinator.policies.state import ArrayState

from .arms import ArmTable, Slot, candidates, check_set, reward, take


class UcbPolicy(ArrayState):
    """UCB over K-subsets, every arm once first."""

    name = "ucb"
    parts: ClassVar[tuple[str, ...]] = ("_slot", "_arms")
    needs: frozenset[str] = frozenset({OPINIONS})

    def __init__(
        self, *, clients_per_round: int = 5, mu: float = 1.0, slot_rounds: int = 1
    ) -> None:
        check_set(self.name, clients_per_round=clients_per_round, slot_rounds=slot_rounds, mu=mu)
        self._size = clients_per_round
        self._mu = mu
        self._slot = Slot(slot_rounds)
        self._arms = ArmTable(clients_per_round)

    def select(self, view: RoundView, rng: np.random.Generator) -> Selection:
        """Continue the slot, or start a new arm, or the best of all."""
        there = candidates(view)
        notes = {"slot": float(self._slot.t)}
        clients = self._slot.running
        if not len(clients):
            clients = self._next(there, rng, notes)
        return explained(view, take(view, clients, self._size), notes=notes)

    def learn(self, feedback: Feedback) -> None:
        """Count the round; at the end of a slot, credit the arm that was played."""
        clients = self._slot.advance(feedback)
        self._arms.credit(clients, reward(feedback.opinions))

    def _next(
        self, there: BoolArray, rng: np.random.Generator, notes: dict[str, float]
    ) -> IntArray:
        clients = np.flatnonzero(there).astype(np.int64)
        if len(clients) <= self._size:
            return clients
        rows = np.flatnonzero(self._arms.inside(there)).astype(np.int64)
        total = math.comb(len(clients), self._size)
        notes["explore"] = float(len(rows) < total)
        if len(rows) < total:
            return self._unplayed(clients, len(rows), total, rng)
        index = self._arms.index(rows, self._mu, self._slot.t)
        notes["index"] = float(index.max())
        top = self._arms.arms[rows[index == index.max()]].tolist()
        return np.array(min(top), dtype=np.int64)

    def _unplayed(
        self, clients: IntArray, played: int, total: int, rng: np.random.Generator
    ) -> IntArray:
        """Draw uniformly among the arms of these clients that were never played."""
        if total > 2 * played:
            while True:  # at least every second draw is new
                arm = np.sort(rng.choice(clients, self._size, replace=False))
                if self._arms.row(arm) is None:
                    return arm
        skip = int(rng.integers(total - played))
        every = itertools.combinations(clients.tolist(), self._size)
        new = (arm for arm in every if self._arms.row(np.array(arm)) is None)
        return np.array(next(itertools.islice(new, skip, None)), dtype=np.int64)
