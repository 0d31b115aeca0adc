"""The samples of all clients in one array, each client's split into train and held-out."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .datasets import LearningData
from .partition import Partition

_HELD_OUT = 0
"""First word of the spawn key of a client's split; rounds use theirs (`trainer`)."""


@dataclass(frozen=True, slots=True, eq=False)
class Shards:
    """One part of every client's samples, client after client.

    Attributes:
        x: float32[total, features].
        y: int64[total].
        offsets: int64[N + 1]; client n holds rows ``offsets[n]:offsets[n + 1]``.
    """

    x: npt.NDArray[np.float32]
    y: npt.NDArray[np.int64]
    offsets: npt.NDArray[np.int64]

    @property
    def counts(self) -> npt.NDArray[np.int64]:
        """int64[N], samples of each client."""
        return np.diff(self.offsets)

    def of(self, client: int) -> slice:
        """Return the rows of one client."""
        return slice(int(self.offsets[client]), int(self.offsets[client + 1]))


def split(
    data: LearningData, partition: Partition, *, held_out: float, seed: int
) -> tuple[Shards, Shards]:
    """Return what clients train on, and what each keeps back to evaluate models.

    A client holds out the share `held_out` of its samples, rounded, and at least
    one of two or more; it always trains on one at least. Shares are drawn per
    client, so that they do not depend on how many clients there are.
    """
    train: list[npt.NDArray[np.int64]] = []
    held: list[npt.NDArray[np.int64]] = []
    for client in range(len(partition)):
        rows = partition.of(client)
        rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(_HELD_OUT, client)))
        count = len(rows)
        keep = min(max(round(held_out * count), 1), count - 1) if held_out and count else 0
        shuffled = rng.permutation(rows)
        held.append(shuffled[:keep])
        train.append(shuffled[keep:])
    return _gathered(data, train), _gathered(data, held)


def _gathered(data: LearningData, parts: list[npt.NDArray[np.int64]]) -> Shards:
    """Copy the rows side by side: training then walks memory it can foresee."""
    offsets = np.zeros(len(parts) + 1, np.int64)
    np.cumsum([len(part) for part in parts], out=offsets[1:])
    rows = np.concatenate(parts)
    return Shards(data.x[rows], data.y[rows], offsets)
