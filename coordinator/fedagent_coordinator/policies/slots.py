"""Slots, rewards and sets of clients: what all policies over client sets share.

A slot is L rounds with one set of clients; its reward is the mean opinion on the
model after its last round (ALGORITHMS section 5).
"""

import math
from collections.abc import Iterator

import numpy as np

from fedagent_protocol.parameters import require

from .base import MAX_COUNT, MAX_MICRO, BoolArray, Feedback, FloatArray, IntArray, RoundView
from .selection import fill
from .state import ArrayState, ints

_WINDOW = 64


class Slot(ArrayState):
    """The running slot and how many are over.

    Its set is what was really played in its first round. Members who drop out leave
    the later rounds smaller and are chosen again when they are back; they are not
    replaced.

    Args:
        rounds: L.

    Attributes:
        running: int64[S], the set of the running slot, sorted; empty between slots.
    """

    slot = ints(2)
    """Slots that are over, and rounds of the running one."""
    running = ints("running", ascending=True)

    def __init__(self, rounds: int) -> None:
        self._rounds = rounds

    @property
    def t(self) -> int:
        """The number of the slot that runs or comes next, from 1."""
        return int(self.slot[0]) + 1

    def advance(self, feedback: Feedback) -> IntArray:
        """Count a round; return the clients to credit if it ended a slot, else none.

        A slot starts with the first round in which a client played. Credited is the
        set that played in its last round: if that differs, it is another arm.
        """
        none: IntArray = np.empty(0, dtype=np.int64)
        clients = np.unique(feedback.view.pair_client[feedback.pairs]).astype(np.int64)
        over, done = self.slot.tolist()
        if done == 0:
            if not len(clients):
                return none
            self.running = clients
        if done + 1 < self._rounds:
            self.slot[1] = done + 1
            return none
        self.slot[:] = over + (len(clients) > 0), 0
        self.running = none
        return clients

    def problems(self) -> Iterator[str]:
        """Refuse the state of a policy with shorter slots."""
        at = int(self.slot[1])
        if not at < self._rounds or (at == 0) != (len(self.running) == 0):
            yield f"is in round {at} of slots of {self._rounds}"


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
    """Refuse counts below 1 and a `mu` that is negative or not finite."""
    for parameter, count in (
        ("clients_per_round", clients_per_round),
        ("slot_rounds", slot_rounds),
    ):
        require(name, parameter, count, 1 <= count <= MAX_COUNT, f"in 1..{MAX_COUNT}")
    require(name, "mu", mu, math.isfinite(mu) and mu >= 0, "finite and >= 0")
