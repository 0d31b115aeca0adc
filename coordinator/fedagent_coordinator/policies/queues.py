"""Fairness queues: how far behind its guaranteed share each client is (RBCS-F eq. 6).

Z <- max(Z + beta - x, 0) in every round, also while the client is unavailable. A
client without a session (no visible pair) for more than `freeze_after` rounds keeps
its queue as it is until it comes back.
"""

import math
from collections.abc import Mapping
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from fedagent_coordinator.errors import ParameterError

from .base import BoolArray, Feedback, FloatArray, IntArray, RoundView
from .states import Shape, check_arrays

_T = TypeVar("_T", bound=np.generic)

LAYOUT: Mapping[str, type[np.generic]] = {"queue": np.float64, "idle": np.int64}
"""Arrays of `FairnessQueues.state`."""


class FairnessQueues:
    """Queues of all clients ever seen.

    Args:
        name: The policy, for errors.
        beta: Rounds in which every client takes part at least, as a share of all.
        freeze_after: Rounds without a session after which a queue stands still.

    Raises:
        ParameterError: A parameter is out of range.
    """

    def __init__(self, name: str, *, beta: float, freeze_after: int) -> None:
        if not 0 <= beta < 1:
            raise ParameterError(name, "beta", f"is {beta!r}: must be in [0, 1)")
        if freeze_after < 1:
            raise ParameterError(name, "freeze_after", f"is {freeze_after!r}: must be >= 1")
        self._name, self._beta, self._freeze_after = name, beta, freeze_after
        self._queue: FloatArray = np.zeros(0)
        self._idle: IntArray = np.zeros(0, dtype=np.int64)

    def lengths(self, clients: int) -> FloatArray:
        """Return Z of this many clients, float64[N]; new ones have 0."""
        return _grown(self._queue, clients)

    def due(self, view: RoundView) -> int:
        """Return how many clients each round owes on average: beta N, rounded up.

        N counts the clients whose queues run, those with a session lately.
        """
        idle = np.where(_seen(view), 0, _grown(self._idle, len(view.client_price)) + 1)
        return self._owed(int((idle <= self._freeze_after).sum()))

    def over_capacity(self, view: RoundView, most: int | None, taken: int) -> bool:
        """Return whether a round that took so many owes more than it could (`capacity`)."""
        due = self.due(view)
        return due > taken and due > capacity(view, most)

    def require_room(self, view: RoundView, clients_per_round: int) -> None:
        """Refuse a share that rounds like a run's first cannot give to everybody there.

        Later rounds are not refused: who joins or a price that rises must not end a run.
        A round that can take nobody says nothing about the parameters.

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
            self._name,
            "beta",
            f"is {self._beta}: it owes {due} clients a round and only {room} {limit};"
            f" lower beta or {hint}",
        )

    def step(self, feedback: Feedback) -> None:
        """Close a round: everybody ordered counts as taking part, in time or not."""
        view, clients = feedback.view, len(feedback.view.client_price)
        self._idle = np.where(_seen(view), 0, _grown(self._idle, clients) + 1)
        took_part = np.zeros(clients)
        took_part[view.pair_client[feedback.pairs]] = 1.0
        queue = self.lengths(clients)
        moved = np.maximum(queue + self._beta - took_part, 0.0)
        self._queue = np.where(self._idle <= self._freeze_after, moved, queue)

    def _owed(self, running: int) -> int:
        """Return beta N, rounded up."""
        return math.ceil(self._beta * running - 1e-9)

    def state(self) -> dict[str, npt.NDArray[np.generic]]:
        """Return copies of the queues, as `LAYOUT` says."""
        return {"queue": self._queue.copy(), "idle": self._idle.copy()}

    def restore(self, arrays: Mapping[str, npt.NDArray[np.generic]]) -> None:
        """Continue from arrays that `base.checked_state` has passed.

        Raises:
            StateError: The arrays are not columns of one length, or hold no debts.
        """
        shapes: dict[str, Shape] = {"queue": ("clients",), "idle": ("clients",)}
        check_arrays(self._name, arrays, shapes, at_least_0=("queue",))
        self._queue = arrays["queue"].astype(np.float64)
        self._idle = arrays["idle"].astype(np.int64)


def capacity(view: RoundView, most: int | None = None) -> int:
    """Return how many clients a round can take at most, if everybody were available.

    Never less than the truth: the cheapest clients are filled into the edges' budgets,
    once edge by edge as if nobody were seen twice, once as if the edges had one purse.

    Args:
        view: The round; its pairs, prices and budgets count, not who is available.
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


def _grown(column: npt.NDArray[_T], clients: int) -> npt.NDArray[_T]:
    """Return a copy with at least this many clients, new ones 0."""
    grown = np.zeros(max(clients, len(column)), dtype=column.dtype)
    grown[: len(column)] = column
    return grown
