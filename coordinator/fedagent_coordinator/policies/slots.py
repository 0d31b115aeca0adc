"""Slots, rewards and sets of clients: what all policies over client sets share.

A slot is L rounds with one set of clients; its reward is the mean opinion on the
model after its last round (ALGORITHMS section 5).
"""

import math

import numpy as np

from fedagent_coordinator.errors import ParameterError, StateError

from .base import MAX_COUNT, MAX_MICRO, BoolArray, Feedback, FloatArray, IntArray, RoundView, State
from .selection import fill
from .states import ascending, check_arrays, require

LAYOUT: dict[str, type[np.generic]] = {"slot": np.int64, "running": np.int64}
"""Arrays that a `Slot` adds to its policy's state."""

_WINDOW = 64


class Slot:
    """The running slot and how many are over.

    Its set is what was really played in its first round. Members who drop out leave
    the later rounds smaller and are asked again when they are back; nobody takes
    their place.

    Args:
        rounds: L.

    Attributes:
        played: Slots that are over.
        running: int64[S], the set of the running slot, sorted; empty between slots.
    """

    def __init__(self, rounds: int) -> None:
        self._rounds = rounds
        self._round = 0
        self.played = 0
        self.running: IntArray = np.empty(0, dtype=np.int64)

    @property
    def t(self) -> int:
        """The number of the slot that runs or comes next, from 1."""
        return self.played + 1

    def advance(self, feedback: Feedback) -> IntArray:
        """Count a round; return the clients to credit if it ended a slot, else none.

        A slot starts with the first round in which anybody played. Credited is the
        set that played in its last round: if that differs, it is another arm.
        """
        none: IntArray = np.empty(0, dtype=np.int64)
        clients = np.unique(feedback.view.pair_client[feedback.pairs]).astype(np.int64)
        if self._round == 0:
            if not len(clients):
                return none
            self.running = clients
        self._round += 1
        if self._round < self._rounds:
            return none
        self._round = 0
        self.running = none
        self.played += len(clients) > 0
        return clients

    def state(self) -> dict[str, IntArray]:
        """Return the arrays of `LAYOUT`."""
        return {
            "slot": np.array([self.played, self._round], dtype=np.int64),
            "running": self.running.copy(),
        }

    def restore(self, name: str, state: State) -> None:
        """Continue from the arrays of `LAYOUT`.

        Raises:
            StateError: They are of a policy with shorter slots, or no state at all.
        """
        check_arrays(name, state, {"slot": (2,), "running": ("clients",)})
        clock, running = state["slot"], state["running"].astype(np.int64)
        require(name, ascending(running), "has a set that is not sorted")
        played, at = (int(value) for value in clock)
        if not at < self._rounds or (at == 0) != (len(running) == 0):
            raise StateError(name, f"is in round {at} of slots of {self._rounds}")
        self.played, self._round, self.running = played, at, running


def reward(opinions: FloatArray | None) -> float:
    """Return the mean of the opinions that there are; NaN without any."""
    if opinions is None:
        return math.nan
    known = opinions[np.isfinite(opinions)]
    return float(known.mean()) if len(known) else math.nan


def candidates(view: RoundView) -> BoolArray:
    """Return bool[N]: available clients that some visible edge's whole budget pays."""
    seen = view.pair_client
    # Prices and budgets of all pairs are dear to gather, and mostly every edge pays everybody.
    if view.edge_budget.min(initial=MAX_MICRO) < view.client_price.max(initial=0):
        seen = seen[view.pair_price <= view.edge_budget[view.pair_edge]]
    there = np.zeros(len(view.client_price), dtype=np.bool_)
    there[seen.astype(np.intp)] = True  # numpy writes by int32 indices at half the speed
    return np.asarray(there & view.client_available)


def take(view: RoundView, clients: IntArray, limit: int) -> IntArray:
    """Return a pair for each client that still fits, in order, `limit` at most.

    A client seen by several edges goes to the one with the largest budget that still
    pays for it (ties by edge index); its price is the same everywhere.

    Args:
        view: The round.
        clients: int64[S], distinct, best first; those out of sight are skipped.
        limit: How many to take.
    """
    near = np.zeros(len(view.client_price), dtype=np.bool_)
    rank = np.empty(len(near), dtype=np.int64)
    window = max(_WINDOW, 4 * limit)
    while True:
        first = clients[:window]
        near[first], rank[first] = True, np.arange(len(first))
        rows = np.flatnonzero(near[view.pair_client])
        client, edge = view.pair_client[rows], view.pair_edge[rows]
        order = rows[np.lexsort((edge, -view.edge_budget[edge], rank[client]))]
        pairs = fill(view, order.astype(np.int64))[:limit]
        if len(pairs) == limit or window >= len(clients):
            return pairs
        window *= 4


def check_set(name: str, *, clients_per_round: int, slot_rounds: int, mu: float = 0.0) -> None:
    """Refuse parameters out of range.

    Raises:
        ParameterError: A count is below 1, or `mu` is negative or not finite.
    """
    for parameter, count in (
        ("clients_per_round", clients_per_round),
        ("slot_rounds", slot_rounds),
    ):
        if not 1 <= count <= MAX_COUNT:
            raise ParameterError(name, parameter, f"is {count}: must be in 1..{MAX_COUNT}")
    if not (math.isfinite(mu) and mu >= 0):
        raise ParameterError(name, "mu", f"is {mu}: must be finite and >= 0")
