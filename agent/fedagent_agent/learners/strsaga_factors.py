"""strSAGA's arithmetic on ratings: a step touches the rows of one user and one item.

The mean of the gradients is kept in mind as `strsaga_sparse` does it. A stored sample keeps
its whole gradient, which is no multiple of anything.
"""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from fedagent_task.models import Inputs, Labels
from fedagent_task.models.base import Csr
from fedagent_task.recipe.spec import ModelSpec

from .strsaga_book import Moves
from .strsaga_dense import grown
from .strsaga_loops import SagaLoops, factors
from .strsaga_sparse import FLUSH_AFTER

Doubles = npt.NDArray[np.float64]


class FactorTable:
    """The set, its gradients, the factors and the sums of the gradients.

    A row of the set is user, item, rating and gradient, that of the user's factors and
    bias and that of the item's. A row of a table is a user or an item: factors and bias
    with what is due, then their sums.
    """

    block = FLUSH_AFTER
    """Most iterations of one `advance`."""

    def __init__(self, spec: ModelSpec, *, rate: float, loops: SagaLoops | None) -> None:
        self._rank, self._l2, self._rate = spec.rank, spec.l2, rate
        self._loop = loops.factors if loops is not None else factors
        self._users = np.zeros((spec.users, 2 * spec.rank + 2))
        self._items = np.zeros((spec.items, 2 * spec.rank + 2))
        self._mean = np.zeros(2)
        self._clock = np.zeros(1)
        self._iterations = 0
        self._kept = np.empty((0, 2 * spec.rank + 5))
        self._buffer_pair, self._buffer_y = np.empty((0, 2), np.int32), np.empty(0)

    @property
    def nbytes(self) -> int:
        """Memory of the stored samples with all that belongs to them."""
        return self._kept.nbytes

    def begin(self, weights: Mapping[str, npt.NDArray[np.float32]]) -> None:
        """Start from these weights with an empty set."""
        tables = (self._users, "users", "user_bias"), (self._items, "items", "item_bias")
        for table, rows, bias in tables:
            table[:, : self._rank], table[:, self._rank] = weights[rows], weights[bias]
            table[:, self._rank + 1 :] = 0.0
        self._mean[:] = weights["bias"][0], 0.0
        self._clock[0], self._iterations = 0.0, 0

    def offer(self, x: Inputs, y: Labels, room: int) -> None:
        """Take new samples into the buffer; `room` is what the set may need from now on."""
        pairs = x.dense() if isinstance(x, Csr) else x
        self._buffer_pair = np.array(pairs, np.int32, order="C")
        self._buffer_y = np.array(y, np.float64)
        if room > len(self._kept):
            self._kept = grown(self._kept, room)

    def advance(self, moves: Moves) -> float:
        """Do some iterations; return the sum of the losses before each step."""
        total = self._loop(
            self._rate,
            self._l2,
            moves.stored,
            (moves.source, moves.slot, moves.draw),
            (self._buffer_pair, self._buffer_y),
            self._kept,
            self._users,
            self._items,
            self._mean,
            self._clock,
        )
        self._iterations += len(moves.draw)
        if self._iterations >= FLUSH_AFTER:
            self._flush()
        return total

    def weights(self) -> dict[str, Doubles]:
        """Return the weights as they are now."""
        self._flush()
        rank = self._rank
        return {
            "bias": self._mean[:1],
            "item_bias": self._items[:, rank],
            "items": self._items[:, :rank],
            "user_bias": self._users[:, rank],
            "users": self._users[:, :rank],
        }

    def _flush(self) -> None:
        size = self._rank + 1
        for table in (self._users, self._items):
            table[:, :size] -= self._clock[0] * table[:, size:]
        self._clock[0], self._iterations = 0.0, 0
