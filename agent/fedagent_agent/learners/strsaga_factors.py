"""strSAGA's arithmetic on ratings: a step touches the rows of one user and one item.

The mean of the gradients is kept in mind as `strsaga_sparse` does it. A stored
sample keeps its whole gradient, which is no multiple of anything: the error times the
item's factors, the error times the user's, the error. The penalty is that of the two
rows, outside the table.
"""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from fedagent_task.models import Inputs, Labels
from fedagent_task.samples import Csr
from fedagent_task.spec import ModelSpec

from .strsaga_book import Moves
from .strsaga_dense import grown
from .strsaga_loops import Loops, lose_rating
from .strsaga_sparse import FLUSH_AFTER

Doubles = npt.NDArray[np.float64]


class FactorTable:
    """The set, its gradients, the factors and the sums of the gradients.

    A row of the set is user, item, rating and gradient. A row of a table is a user or
    an item: factors and bias with what is due, then their sums.

    Args:
        spec: Sizes and penalty of the model.
        rate: Step size.
        loops: Compiled loops, or None.
    """

    block = FLUSH_AFTER
    """Most iterations of one `advance`."""

    def __init__(self, spec: ModelSpec, *, rate: float, loops: Loops | None) -> None:
        self._rank, self._l2 = spec.rank, spec.l2
        self._rate, self._loops = rate, loops
        self._users = np.zeros((spec.users, 2 * spec.rank + 2))
        self._items = np.zeros((spec.items, 2 * spec.rank + 2))
        self._mean = np.zeros(2)
        # The second cell only takes what the loop must be seen to use.
        self._clock = np.zeros(2)
        self._iterations = 0
        self._kept = np.empty((0, 2 * spec.rank + 4))
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
        if self._loops:
            total = self._loops.factors(
                self._rate, self._l2, moves.stored, moves.source, moves.slot, moves.draw,
                self._buffer_pair, self._buffer_y, self._kept,
                self._users, self._items, self._mean, self._clock,
            )  # fmt: skip
        else:
            total = self._walk(moves)
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
        """Pay everything that is due."""
        size = self._rank + 1
        for table in (self._users, self._items):
            table[:, :size] -= self._clock[0] * table[:, size:]
        self._clock[0], self._iterations = 0.0, 0

    def _walk(self, moves: Moves) -> float:
        rank, size, rate, l2 = self._rank, self._rank + 1, self._rate, self._l2
        n, total, due = moves.stored, 0.0, float(self._clock[0])
        mean, mean_sum = self._mean.tolist()
        change, now = np.empty((2, size)), np.empty((2, size))
        factors, swapped = now[:, :rank], now[::-1, :rank]
        kept = self._kept
        for source, slot, i in zip(moves.source, moves.slot, moves.draw, strict=True):
            if slot >= 0:
                mean_sum -= kept[slot, -1] if slot < n else 0.0
                n = self._store(n, source, slot, due)
            if i < 0:
                continue
            user, item, y, *_ = kept[i].tolist()
            u, v, own = self._users[int(user)], self._items[int(item)], kept[i, 3:]
            now[0] = u[:size] - due * u[size:]
            now[1] = v[:size] - due * v[size:]
            error = float(factors[0].dot(factors[1]) + now[0, rank] + now[1, rank]) + mean - y
            total += 0.5 * error * error
            fresh, own[-1] = error - own[-1], error
            np.multiply(swapped, error, out=change[:, :rank])
            gradients = own[:-1].reshape(2, rank)
            change[:, :rank] -= gradients
            gradients += change[:, :rank]
            change[:, rank] = fresh
            u[size:] += change[0]
            v[size:] += change[1]
            due += rate / n
            change *= due - rate
            if l2:
                change[:, :rank] -= (rate * l2) * factors
            u[:size] += change[0]
            v[:size] += change[1]
            mean -= rate * (fresh + mean_sum / n)
            mean_sum += fresh
        self._mean[:], self._clock[0] = (mean, mean_sum), due
        return total

    def _store(self, n: int, source: int, slot: int, due: float) -> int:
        """Put a sample into a slot; return the size of the set. The mean is the caller's."""
        if slot < n:
            user, item = self._kept[slot, :2].astype(np.intp)
            lose_rating(self._kept[slot, 3:], due, self._users[user], self._items[item])
        self._kept[slot, :2] = self._buffer_pair[source]
        self._kept[slot, 2] = self._buffer_y[source]
        self._kept[slot, 3:] = 0.0
        return max(n, slot + 1)
