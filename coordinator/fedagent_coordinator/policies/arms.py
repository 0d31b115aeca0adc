"""Played K-subsets of clients with their mean rewards and pull counts."""

import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from fedagent_coordinator.errors import StateError

from .base import BoolArray, FloatArray, IndexArray, IntArray, State
from .states import Shape, check_arrays, require

LAYOUT: dict[str, type[np.generic]] = {
    "arms": np.int32,
    "arm_mean": np.float64,
    "arm_count": np.int64,
}
"""Arrays that a table adds to its policy's state."""


def keys_of(rows: IndexArray) -> list[bytes]:
    """Return one key per row, int32[A, K] of ascending clients.

    Keys compare as the rows do as tuples, because they are big-endian.
    """
    width = rows.shape[1] * 4
    data = rows.astype(">i4").tobytes()
    return [data[at : at + width] for at in range(0, len(data), width)]


class ArmTable:
    """Arms that have been played; memory O(A K).

    Args:
        size: K, clients of an arm. Sets of another size are no arms: with K or fewer
            clients there is nothing to choose, so nothing to learn.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._members: IndexArray = np.empty((0, size), dtype=np.int32)
        self._mean: FloatArray = np.empty(0)
        self._count: IntArray = np.empty(0, dtype=np.int64)
        self._row: dict[bytes, int] = {}
        self._top = -1

    def __len__(self) -> int:
        """Return A."""
        return len(self._row)

    @property
    def members(self) -> IndexArray:
        """int32[A, K], clients of each arm, ascending, in the order of first plays."""
        return self._members[: len(self)]

    @property
    def keys(self) -> Mapping[bytes, int]:
        """Row of each arm by its key (`keys_of`)."""
        return self._row

    def row(self, clients: IntArray) -> int | None:
        """Return the row of these ascending clients, None if never played."""
        return self._row.get(clients.astype(">i4").tobytes())

    def credit(self, clients: IntArray, reward: float, prior: float | None = None) -> bool:
        """Take in one play of ascending clients; return whether it made a new arm.

        Args:
            clients: int64[S]; ignored unless S = K.
            reward: Of the slot; ignored if NaN.
            prior: Mean of a new arm before this play, which counts as one play too.
        """
        if len(clients) != self._size or math.isnan(reward):
            return False
        row = self.row(clients)
        if row is not None:
            self._add(row, reward)
            return False
        row = len(self)
        if row == len(self._mean):
            self._grow()
        self._members[row] = clients
        self._top = max(self._top, int(clients[-1]))
        self._row[clients.astype(">i4").tobytes()] = row
        self._mean[row], self._count[row] = (reward, 1) if prior is None else (prior, 1)
        if prior is not None:
            self._add(row, reward)
        return True

    def require_known(self, clients: int) -> None:
        """Refuse arms of clients that do not exist: indices only grow, so the state is not ours.

        Raises:
            StateError: An arm names a client from `clients` on.
        """
        if self._top >= clients:
            raise StateError("arms", f"names client {self._top}, and there are {clients}")

    def inside(self, allowed: BoolArray) -> BoolArray:
        """Return bool[A]: arms whose clients are all allowed (bool[N]).

        Raises:
            StateError: See `require_known`.
        """
        self.require_known(len(allowed))
        if allowed.all():
            return np.ones(len(self), dtype=np.bool_)
        return np.asarray(allowed[self.members].all(axis=1))

    def index(self, rows: IntArray, mu: float, t: int) -> FloatArray:
        """Return the UCB index of these rows: mean + mu sqrt(ln t / count)."""
        return np.asarray(self._mean[rows] + mu * np.sqrt(math.log(t) / self._count[rows]))

    def state(self) -> dict[str, npt.NDArray[np.generic]]:
        """Return the arrays of `LAYOUT`."""
        return {
            "arms": self.members.copy(),
            "arm_mean": self._mean[: len(self)].copy(),
            "arm_count": self._count[: len(self)].copy(),
        }

    def restore(self, name: str, state: State) -> None:
        """Continue from the arrays of `LAYOUT`.

        Raises:
            StateError: They are of arms of another size, or contradict each other.
        """
        shapes: dict[str, Shape] = {
            "arms": ("arms", self._size),
            "arm_mean": ("arms",),
            "arm_count": ("arms",),
        }
        check_arrays(name, state, shapes)
        require(
            name,
            bool(state["arm_count"].astype(np.bool_).all()),
            "has an arm that was never played",
        )
        members = state["arms"].astype(np.int32)
        row = {key: at for at, key in enumerate(keys_of(members))}
        if len(row) != len(members) or (np.diff(members, axis=1) <= 0).any():
            raise StateError(name, "has an arm twice, or one that is not sorted")
        self._members, self._row = members, row
        self._top = int(members.max(initial=-1))
        self._mean = state["arm_mean"].astype(np.float64)
        self._count = state["arm_count"].astype(np.int64)

    def _add(self, row: int, reward: float) -> None:
        """Move a mean by one more play."""
        count = int(self._count[row])
        self._mean[row] = (self._mean[row] * count + reward) / (count + 1)
        self._count[row] = count + 1

    def _grow(self) -> None:
        """Double the room."""
        room = max(16, len(self))
        self._members = np.concatenate(
            (self._members, np.zeros((room, self._size), dtype=np.int32))
        )
        self._mean = np.concatenate((self._mean, np.zeros(room)))
        self._count = np.concatenate((self._count, np.zeros(room, dtype=np.int64)))
