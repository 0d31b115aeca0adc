"""Played K-subsets of clients with their mean rewards and pull counts."""

import math
from collections.abc import Iterator, Mapping

import numpy as np

from fedagent_coordinator.errors import StateError

from .base import BoolArray, FloatArray, IndexArray, IntArray
from .state import ArrayState, floats, indices, ints


def keys_of(rows: IndexArray) -> list[bytes]:
    """Return one key per row, int32[A, K] of ascending clients.

    Keys compare as the rows do as tuples, because they are big-endian.
    """
    width = rows.shape[1] * 4
    data = rows.astype(">i4").tobytes()
    return [data[at : at + width] for at in range(0, len(data), width)]


class ArmTable(ArrayState):
    """Arms that have been played; memory O(A K).

    Args:
        size: K, clients of an arm. Sets of another size are no arms: with K or fewer
            clients there is nothing to choose, so nothing to learn.

    Attributes:
        arms: int32[A, K], clients of each arm, ascending, in the order of first plays.
        keys: Row of each arm by its key (`keys_of`).
    """

    arms = indices("arms", "size")
    arm_mean = floats("arms")
    arm_count = ints("arms")

    def __init__(self, size: int) -> None:
        self.fix(size=size)
        self._size = size
        self._row: dict[bytes, int] = {}
        self._top = -1

    def __len__(self) -> int:
        """Return A."""
        return len(self.arms)

    def row(self, clients: IntArray) -> int | None:
        """Return the row of these ascending clients, None if never played."""
        return self.keys.get(clients.astype(">i4").tobytes())

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
        self.arms = np.concatenate((self.arms, clients[np.newaxis].astype(np.int32)))
        self.arm_mean = np.concatenate((self.arm_mean, [reward if prior is None else prior]))
        self.arm_count = np.concatenate((self.arm_count, [1]))
        self._row[clients.astype(">i4").tobytes()] = row
        self._top = max(self._top, int(clients[-1]))
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
        return np.asarray(allowed[self.arms].all(axis=1))

    def index(self, rows: IntArray, mu: float, t: int) -> FloatArray:
        """Return the UCB index of these rows: mean + mu sqrt(ln t / count)."""
        return np.asarray(self.arm_mean[rows] + mu * np.sqrt(math.log(t) / self.arm_count[rows]))

    @property
    def keys(self) -> Mapping[bytes, int]:
        """Row of each arm by its key (`keys_of`)."""
        return self._row

    def problems(self) -> Iterator[str]:
        """Refuse arms that contradict each other."""
        if not self.arm_count.all():
            yield "has an arm that was never played"
        if len(set(keys_of(self.arms))) != len(self) or (np.diff(self.arms, axis=1) <= 0).any():
            yield "has an arm twice, or one that is not sorted"

    def restored(self) -> None:
        """Find the arms' rows again."""
        self._row = {key: row for row, key in enumerate(keys_of(self.arms))}
        self._top = int(self.arms.max(initial=-1))

    def _add(self, row: int, reward: float) -> None:
        """Move a mean by one more play."""
        count = int(self.arm_count[row])
        self.arm_mean[row] = (self.arm_mean[row] * count + reward) / (count + 1)
        self.arm_count[row] = count + 1
