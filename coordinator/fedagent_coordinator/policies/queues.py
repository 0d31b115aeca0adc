"""Fairness queues: how far behind its guaranteed share each client is (RBCS-F eq. 6).

Z <- max(Z + beta - x, 0) in every round, also while the client is unavailable. A
client without a session (no visible pair) for more than `freeze_after` rounds keeps
its queue as it is until it comes back.
"""

import math

import numpy as np

from fedagent_protocol.errors import ParameterError
from fedagent_protocol.parameters import require

from .base import BoolArray, Feedback, FloatArray, IntArray, RoundView
from .state import ArrayState, floats, grown, ints


class FairnessQueues(ArrayState):
    """Queues of all clients ever seen.

    Args:
        name: The policy, for errors.
        beta: Rounds in which every client takes part at least, as a share of all.
        freeze_after: Rounds without a session after which a queue stands still.

    Raises:
        ParameterError: A parameter is out of range.
    """

    _queue = floats("clients", least=0)
    _idle = ints("clients")

    def __init__(self, name: str, *, beta: float, freeze_after: int) -> None:
        require(name, "beta", beta, 0 <= beta < 1, "in [0, 1)")
        require(name, "freeze_after", freeze_after, freeze_after >= 1, ">= 1")
        self._policy, self._beta, self._freeze_after = name, beta, freeze_after

    def lengths(self, clients: int) -> FloatArray:
        """Return Z of this many clients, float64[N]; new ones have 0."""
        return grown(self._queue, clients)

    def due(self, view: RoundView) -> int:
        """Return how many clients each round owes on average: beta N, rounded up.

        N counts the clients whose queues run, those with a session lately.
        """
        idle = np.where(_seen(view), 0, grown(self._idle, len(view.client_price)) + 1)
        return self._owed(int((idle <= self._freeze_after).sum()))

    def over_capacity(self, view: RoundView, most: int | None, taken: int) -> bool:
        """Return whether a round that took so many owes more than it could (`capacity`)."""
        due = self.due(view)
        return due > taken and due > capacity(view, most)

    def require_room(self, view: RoundView, clients_per_round: int) -> None:
        """Refuse a share that rounds like a run's first cannot give to everybody there.

        Later rounds are not refused: a new client or a higher price must not end a run. Nor is
        one that can take no client: that is not the parameters' fault.

        Raises:
            ParameterError: In the first round beta N is more than `capacity`.
        """
        room = capacity(view, clients_per_round)
        due = self._owed(int(_seen(view).sum()))
        if len(self._queue) or not room or due <= room:
            return
        limit, hint = "take part", "raise clients_per_round"
        if room < clients_per_round:
            limit, hint = "can be paid", "raise the edges' budgets"
        raise ParameterError(
            self._policy,
            "beta",
            f"is {self._beta}: it owes {due} clients a round and only {room} {limit};"
            f" lower beta or {hint}",
        )

    def step(self, feedback: Feedback) -> None:
        """Close a round: everybody ordered counts as taking part, in time or not."""
        view, clients = feedback.view, len(feedback.view.client_price)
        self._idle = np.where(_seen(view), 0, grown(self._idle, clients) + 1)
        took_part = np.zeros(clients)
        took_part[view.pair_client[feedback.pairs]] = 1.0
        queue = self.lengths(clients)
        moved = np.maximum(queue + self._beta - took_part, 0.0)
        self._queue = np.where(self._idle <= self._freeze_after, moved, queue)

    def _owed(self, running: int) -> int:
        """Return beta N, rounded up."""
        return math.ceil(self._beta * running - 1e-9)


def capacity(view: RoundView, most: int | None = None) -> int:
    """Return how many clients a round can take at most, if everybody were available.

    Never less than the truth: the cheapest clients are filled into the edges' budgets,
    once edge by edge as if no client were seen twice, once as if the edges had one purse.

    Args:
        view: The round; its pairs, prices and budgets count, not availability.
        most: The policy's own limit, m.
    """
    rows = np.flatnonzero(view.pair_price <= view.edge_budget[view.pair_edge])
    edge, price = view.pair_edge[rows], view.pair_price[rows]
    order = np.lexsort((price, edge))
    ends = np.searchsorted(edge[order], np.arange(1, len(view.edge_budget) + 1))
    purses = zip(np.split(price[order], ends), view.edge_budget.tolist(), strict=False)
    apart = sum(_paid(ascending, budget) for ascending, budget in purses)
    clients, first = np.unique(view.pair_client[rows], return_index=True)
    together = _paid(np.sort(price[first]), sum(view.edge_budget.tolist()))
    return min(apart, together, len(clients) if most is None else most)


def _paid(price: IntArray, budget: int) -> int:
    """Return how many of these ascending prices a budget pays."""
    # As floats, which are exact up to any edge's budget: sums of integers could overflow.
    return int(np.searchsorted(np.cumsum(price, dtype=np.float64), budget, side="right"))


def _seen(view: RoundView) -> BoolArray:
    """Return which clients have a session, bool[N]."""
    seen = np.zeros(len(view.client_price), dtype=np.bool_)
    seen[view.pair_client] = True
    return seen
