"""strSAGA's arithmetic on ratings: a step touches the rows of one user and one item.

Mean gradients are paid late, row by row, as `strsaga_sparse` does for features. A stored
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
from .strsaga_dense import cells, grown
from .strsaga_loops import Loops

Doubles = npt.NDArray[np.float64]

_GROWTH = 1.5


class FactorTable:
    """The set, its gradients, the factors and the sums of the gradients.

    A row of a table is one user or item: factors and bias, their sums, last.

    Args:
        spec: Sizes and penalty of the model.
        rate: Step size.
        loops: Compiled loops, or None.
    """

    block = 1 << 16
    """Most iterations of one `advance`."""

    def __init__(self, spec: ModelSpec, *, rate: float, loops: Loops | None) -> None:
        self._rank, self._l2 = spec.rank, spec.l2
        self._rate, self._loops = rate, loops
        self._users = np.zeros((spec.users, 2 * spec.rank + 3))
        self._items = np.zeros((spec.items, 2 * spec.rank + 3))
        self._mean = np.zeros(2)
        self._clock = np.zeros(1)
        self._pair, self._y = np.empty((0, 2), np.int32), np.empty(0)
        self._delta = np.empty((0, 2 * spec.rank + 1))
        self._buffer_pair, self._buffer_y = self._pair, self._y

    @property
    def nbytes(self) -> int:
        """Memory of the stored samples with all that belongs to them."""
        return self._pair.nbytes + self._y.nbytes + self._delta.nbytes

    def begin(self, weights: Mapping[str, npt.NDArray[np.float32]]) -> None:
        """Start from these weights with an empty set."""
        tables = (self._users, "users", "user_bias"), (self._items, "items", "item_bias")
        for table, rows, bias in tables:
            table[:, : self._rank], table[:, self._rank] = weights[rows], weights[bias]
            table[:, self._rank + 1 :] = 0.0
        self._mean[:] = weights["bias"][0], 0.0
        self._clock[0] = 0.0

    def offer(self, x: Inputs, y: Labels, room: int) -> None:
        """Take new samples into the buffer; the set may grow to `room` from now on."""
        pairs = x.dense() if isinstance(x, Csr) else x
        self._buffer_pair = np.array(pairs, np.int32, order="C")
        self._buffer_y = np.array(y, np.float64)
        if room > len(self._y):
            size = room if len(self._y) == 0 else max(room, int(_GROWTH * len(self._y)))
            self._pair, self._y = grown(self._pair, size), grown(self._y, size)
            self._delta = grown(self._delta, size)

    def advance(self, moves: Moves) -> float:
        """Do some iterations; return the sum of the losses before each step."""
        if self._loops:
            return self._loops.factors(
                self._rate, self._l2, moves.stored, moves.source, moves.slot, moves.draw,
                self._buffer_pair, self._buffer_y, self._pair, self._y, self._delta,
                self._users, self._items, self._mean, self._clock,
            )  # fmt: skip
        return self._walk(moves)

    def weights(self) -> dict[str, Doubles]:
        """Return the weights as they are now."""
        rank = self._rank
        for table in (self._users, self._items):
            late = self._rate * (self._clock[0] - table[:, -1:])
            table[:, : rank + 1] -= late * table[:, rank + 1 : -1]
            table[:, -1] = self._clock[0]
        return {
            "bias": self._mean[:1],
            "item_bias": self._items[:, rank],
            "items": self._items[:, :rank],
            "user_bias": self._users[:, rank],
            "users": self._users[:, :rank],
        }

    def _walk(self, moves: Moves) -> float:
        rank, size, rate, l2 = self._rank, self._rank + 1, self._rate, self._l2
        n, total, past = moves.stored, 0.0, float(self._clock[0])
        mean, mean_sum = self._mean.tolist()
        change = np.empty((2, size))
        pairs, y = self._pair.tolist(), cells(self._y)
        for source, slot, i in zip(moves.source, moves.slot, moves.draw, strict=True):
            if slot >= 0:
                n, lost = self._store(n, source, slot, past)
                mean_sum -= lost
                pairs[slot] = self._pair[slot].tolist()
            if i < 0:
                continue
            user, item = pairs[i]
            u, v, delta = self._users[user], self._items[item], self._delta[i]
            u[:size] -= (rate * (past - u[-1])) * u[size:-1]
            v[:size] -= (rate * (past - v[-1])) * v[size:-1]
            p, q = u[:rank], v[:rank]
            error = float(p.dot(q) + u[rank] + v[rank]) + mean - y[i]
            total += 0.5 * error * error
            past += 1.0 / n
            change[0, :rank], change[1, :rank] = error * q, error * p
            fresh = error - float(delta[-1])
            change[:, :rank] -= delta[:-1].reshape(2, rank)
            delta[:-1] += change[:, :rank].reshape(-1)
            delta[-1] = error
            change[:, rank] = fresh
            if l2:
                p *= 1.0 - rate * l2
                q *= 1.0 - rate * l2
            for row, turn in ((u, change[0]), (v, change[1])):
                row[:size] -= rate * turn + (rate / n) * row[size:-1]
                row[size:-1] += turn
                row[-1] = past
            mean -= rate * (fresh + mean_sum / n)
            mean_sum += fresh
        self._mean[:], self._clock[0] = (mean, mean_sum), past
        return total

    def _store(self, n: int, source: int, slot: int, past: float) -> tuple[int, float]:
        """Put a sample into a slot; return the size of the set and the bias' gradient lost."""
        size, gone = self._rank + 1, 0.0
        if slot < n:
            user, item = self._pair[slot]
            lost = self._delta[slot]
            gone = float(lost[-1])
            halves = (self._users[user], lost[: size - 1]), (self._items[item], lost[size - 1 : -1])
            for row, slope in halves:
                row[:size] -= (self._rate * (past - row[-1])) * row[size:-1]
                row[size : 2 * size - 1] -= slope
                row[2 * size - 1] -= gone
                row[-1] = past
        self._pair[slot] = self._buffer_pair[source]
        self._y[slot] = self._buffer_y[source]
        self._delta[slot] = 0.0
        return max(n, slot + 1), gone
