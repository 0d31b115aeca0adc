"""`round-robin`: predefined sets of clients, one after the other (GDA, baseline)."""

from collections.abc import Sequence

import numpy as np

from .base import IntArray, RoundView, Selection, StatelessPolicy
from .fixed import check_clients
from .selection import explained
from .slots import check_set, take

_NAME = "round-robin"


class RoundRobinPolicy(StatelessPolicy):
    """Take the sets in turn, each for a slot; the turn follows from the round's number.

    Args:
        sets: Client indices of each set (the paper has five, the first is its clients
            {1, 2, 11, 16, 20}, counted from 1; the others are drawn). None: blocks of
            K consecutive clients of all N known, so that later clients make new blocks.
        clients_per_round: K, for blocks only.
        slot_rounds: L, rounds with one set of clients.
    """

    needs: frozenset[str] = frozenset()

    def __init__(
        self,
        *,
        sets: Sequence[Sequence[int]] | None = None,
        clients_per_round: int = 5,
        slot_rounds: int = 1,
    ) -> None:
        check_set(_NAME, clients_per_round=clients_per_round, slot_rounds=slot_rounds)
        self._sets = None if sets is None else [check_clients(_NAME, "sets", s) for s in sets]
        if self._sets is not None and not self._sets:
            check_clients(_NAME, "sets", ())
        self._size = clients_per_round
        self._rounds = slot_rounds

    def select(self, view: RoundView, rng: np.random.Generator) -> Selection:  # noqa: ARG002
        """Decide one round: whoever of the set's clients can be chosen and fits."""
        turn = (view.round - 1) // self._rounds
        clients, number = self._set(turn, len(view.client_price))
        return explained(view, take(view, clients, len(clients)), notes={"set": float(number)})

    def _set(self, turn: int, total: int) -> tuple[IntArray, int]:
        """Return the clients of this turn's set that exist, and the set's number."""
        if self._sets is not None:
            number = turn % len(self._sets)
            return self._sets[number][self._sets[number] < total], number
        number = turn % max(1, -(-total // self._size))
        start = number * self._size
        return np.arange(start, min(start + self._size, total), dtype=np.int64), number
