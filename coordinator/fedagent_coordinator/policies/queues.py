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

from fedagent_coordinator.errors import ParameterError, StateError

from .base import BoolArray, Feedback, FloatArray, IntArray, RoundView

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
        running = int((idle <= self._freeze_after).sum())
        return math.ceil(self._beta * running - 1e-9)

    def require_room(self, view: RoundView, clients_per_round: int) -> None:
        """Refuse a share that rounds of this size cannot give to everybody.

        Raises:
            ParameterError: beta N is more than `clients_per_round`.
        """
        due = self.due(view)
        if due > clients_per_round:
            raise ParameterError(
                self._name,
                "beta",
                f"is {self._beta}: it owes {due} clients a round and only {clients_per_round}"
                " take part; lower beta or raise clients_per_round",
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

    def state(self) -> dict[str, npt.NDArray[np.generic]]:
        """Return copies of the queues, as `LAYOUT` says."""
        return {"queue": self._queue.copy(), "idle": self._idle.copy()}

    def restore(self, arrays: Mapping[str, npt.NDArray[np.generic]]) -> None:
        """Continue from arrays that `base.checked_state` has passed.

        Raises:
            StateError: The arrays are not columns of one length.
        """
        if arrays["queue"].ndim != 1 or arrays["queue"].shape != arrays["idle"].shape:
            raise StateError(self._name, "queue and idle are not columns of one length")
        self._queue = arrays["queue"].astype(np.float64)
        self._idle = arrays["idle"].astype(np.int64)


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
