"""Who is ordered over a run, held against who could deliver: three figures per run.

Everything is counted round by round, so that a run of a million clients keeps a few columns.
"""

from dataclasses import dataclass, field

import numpy as np

from fedagent_coordinator.policies import RoundView
from fedagent_coordinator.policies.base import BoolArray, IndexArray, IntArray

from .history import longer

_SETTLED = 20
"""Rounds without a chance that a policy has to find out."""
_SURE = 1.0 - 1e-9
_COUNTS = ("idle", "longest", "ill", "known_ill", "wasted", "waiting", "waited")


def _zeros() -> IntArray:
    return np.zeros(0, dtype=np.int64)


@dataclass(slots=True, eq=False)
class Coverage:
    """What is counted of every client, each int64[N] or bool[N] (ALGORITHMS section 9).

    A client cannot deliver while each of its pairs has the chance 0. It always delivers, and can
    be paid, if in every round a pair that its edge's budget pays has the chance 1.
    """

    rounds: int = 0
    always: BoolArray = field(default_factory=lambda: np.zeros(0, dtype=np.bool_))
    payable: BoolArray = field(default_factory=lambda: np.zeros(0, dtype=np.bool_))
    idle: IntArray = field(default_factory=_zeros)  # rounds since the last order
    longest: IntArray = field(default_factory=_zeros)  # most of them so far
    ill: IntArray = field(default_factory=_zeros)  # rounds on end without a chance
    known_ill: IntArray = field(default_factory=_zeros)  # of those, the ones after the first 20
    wasted: IntArray = field(default_factory=_zeros)  # orders in these
    waiting: IntArray = field(default_factory=_zeros)  # 1 + rounds since it has a chance again
    waited: IntArray = field(default_factory=_zeros)  # most of them at its next order; 0: none yet

    def count(self, view: RoundView, ordered: IndexArray) -> None:
        """Count a round with its truth: int32[S], the clients that were ordered."""
        total, first = len(view.client_price), self.rounds == 0
        self._grow(total, first=first)
        self.rounds += 1
        truth, there = view.known_truth(), view.eligible
        paid = there & (view.pair_price <= view.edge_budget[view.pair_edge])
        able = _any(view, total, truth.chance > 0)
        taken = np.zeros(total, dtype=np.bool_)
        taken[ordered] = True
        payable = _any(view, total, paid)
        self.payable |= payable
        self.always &= _any(view, total, paid & (truth.chance >= _SURE))
        self.idle = np.where(taken, 0, self.idle + 1)
        self.longest = np.maximum(self.longest, self.idle)
        self._wait(able, payable, taken)
        self.ill = np.where(able | ~_any(view, total, there), 0, self.ill + 1)
        known = self.ill > _SETTLED
        self.known_ill += known
        self.wasted += known & taken

    def _wait(self, able: BoolArray, payable: BoolArray, taken: BoolArray) -> None:
        """Count the rounds in which one could be ordered again, until it is."""
        self.waiting[able & (self.ill > _SETTLED)] = 1
        waits = self.waiting > 0
        back = waits & taken & able
        self.waited[back] = np.maximum(self.waited, self.waiting)[back]
        self.waiting[back] = 0
        self.waiting += waits & able & payable & ~taken

    @property
    def never_rate(self) -> float | None:
        """Largest share of rounds in which a client is ordered that has had no chance for 20."""
        some = self.known_ill > 0
        if not some.any():
            return None
        return float((self.wasted[some] / self.known_ill[some]).max())

    @property
    def back_rounds(self) -> float | None:
        """Most rounds in which one that has a chance again could be paid and is not ordered.

        Up to the end for who was not ordered again.
        """
        most = np.maximum(self.waited, self.waiting)
        return float(most.max()) - 1 if most.any() else None

    @property
    def left_out(self) -> float | None:
        """Most rounds on end without an order, of those that always deliver and can be paid."""
        return float(self.longest[self.always].max()) if self.always.any() else None

    def _grow(self, total: int, *, first: bool) -> None:
        # Who comes later was not there in every round.
        self.always = longer(self.always, total, fill=first)
        self.payable = longer(self.payable, total, fill=False)
        for name in _COUNTS:
            setattr(self, name, longer(getattr(self, name), total, fill=False))


def _any(view: RoundView, total: int, pairs: BoolArray) -> BoolArray:
    found = np.zeros(total, dtype=np.bool_)
    found[view.pair_client[pairs]] = True
    return found
