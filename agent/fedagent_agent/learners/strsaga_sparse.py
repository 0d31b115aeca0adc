"""strSAGA's arithmetic on sparse rows: a step touches the sample's features only.

The mean gradient moves every weight in every iteration. It is paid later: `past` is the
sum of 1/n over the iterations, and before weight j is read it is moved by what has
passed since it was last (ALGORITHMS section 7). With a penalty the weights are a scale
times what the table holds, and what passes is divided by the scale.
"""

import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from fedagent_task.models import Inputs, Labels
from fedagent_task.samples import Csr

from .strsaga_book import Moves
from .strsaga_dense import grown, residuals, signed
from .strsaga_loops import Loops

Doubles = npt.NDArray[np.float64]

_GROWTH = 1.5
_LEAST_SCALE = 1e-100


class SparseTable:
    """As `DenseTable`; a row of the table is one feature: weights, sums, last.

    Samples are rows of one growing store, and the set refers to them.

    Args:
        loss: Code of the loss.
        outputs: Scores of the model.
        width: Features of a sample.
        rate: Step size.
        l2: Penalty of the weights, outside the table of gradients.
        loops: Compiled loops, or None.
    """

    def __init__(
        self, loss: int, outputs: int, width: int, *, rate: float, l2: float, loops: Loops | None
    ) -> None:
        self._loss, self._rate, self._decay = loss, rate, 1.0 - rate * l2
        self._outputs, self._loops = outputs, loops
        self._table = np.zeros((width, 2 * outputs + 1))
        self._bias = np.zeros((2, outputs))
        self._clock = np.array([0.0, 1.0])
        self._columns, self._values = np.empty(0, np.int32), np.empty(0, np.float32)
        self._used = self._stored = 0
        self._start, self._length = np.empty(0, np.int64), np.empty(0, np.int32)
        self._y, self._delta = np.empty(0), np.empty((0, outputs))
        self._buffer_start, self._buffer_length = self._start, self._length
        self._buffer_y = self._y

    @property
    def block(self) -> int:
        """Most iterations of one `advance`: the scale must not vanish within it."""
        if self._decay == 1.0:
            return 1 << 16
        return max(1, min(1 << 16, int(math.log(_LEAST_SCALE) / math.log(self._decay))))

    @property
    def nbytes(self) -> int:
        """Memory of the stored samples with all that belongs to them."""
        own = (self._start, self._length, self._y, self._delta, self._columns, self._values)
        return sum(array.nbytes for array in own)

    def begin(self, weights: Mapping[str, npt.NDArray[np.float32]]) -> None:
        """Start from these weights with an empty set."""
        k = self._outputs
        self._table[:, :k] = weights["weight"].T
        self._table[:, k:] = 0.0
        self._bias[0], self._bias[1] = weights["bias"], 0.0
        self._clock[:] = 0.0, 1.0
        self._stored = 0

    def offer(self, x: Inputs, y: Labels, room: int) -> None:
        """Take new samples into the buffer; the set may grow to `room` from now on."""
        new = x if isinstance(x, Csr) else Csr.from_dense(x)
        self._make_room(len(new.values))
        end = self._used + len(new.values)
        self._columns[self._used : end] = new.indices
        self._values[self._used : end] = new.values
        self._buffer_start = new.indptr[:-1] + self._used
        self._buffer_length = new.lengths.astype(np.int32)
        self._buffer_y = signed(y, self._loss, self._outputs)
        self._used = end
        if room > len(self._y):
            size = room if len(self._y) == 0 else max(room, int(_GROWTH * len(self._y)))
            self._start, self._length = grown(self._start, size), grown(self._length, size)
            self._y, self._delta = grown(self._y, size), grown(self._delta, size)

    def advance(self, moves: Moves) -> float:
        """Do some iterations; return the sum of the losses before each step."""
        if self._loops:
            total = self._loops.sparse(
                self._loss, self._rate, self._decay, moves.stored, moves.source, moves.slot,
                moves.draw, self._columns, self._values, self._buffer_start,
                self._buffer_length, self._buffer_y, self._start, self._length, self._y,
                self._delta, self._table, self._bias, self._clock,
            )  # fmt: skip
        else:
            total = self._walk(moves)
        self._stored = max(moves.stored, 1 + int(max(moves.slot, default=-1)))
        if self._clock[1] < _LEAST_SCALE:
            self._flush()
        return total

    def weights(self) -> dict[str, Doubles]:
        """Return the weights as they are now."""
        self._flush()
        return {"weight": self._table[:, : self._outputs].T, "bias": self._bias[0]}

    def _flush(self) -> None:
        """Pay everything that is due."""
        k, (past, scale) = self._outputs, self._clock
        late = self._rate * (past - self._table[:, 2 * k])
        self._table[:, :k] -= late[:, None] * self._table[:, k : 2 * k]
        self._table[:, :k] *= scale
        self._table[:, 2 * k] = 0.0
        self._clock[:] = 0.0, 1.0

    def _walk(self, moves: Moves) -> float:
        k, rate, n, total = self._outputs, self._rate, moves.stored, 0.0
        table, bias, decay = self._table, self._bias, self._decay
        past, scale = self._clock.tolist()
        columns, values = self._columns, self._values
        for source, slot, i in zip(moves.source, moves.slot, moves.draw, strict=True):
            if slot >= 0:
                n = self._store(n, source, slot, past)
            if i < 0:
                continue
            part = slice(self._start[i], self._start[i] + self._length[i])
            at, value = columns[part], values[part].astype(np.float64)[:, None]
            rows = table[at]
            w, g, last = rows[:, :k], rows[:, k : 2 * k], rows[:, 2 * k :]
            w -= (rate * (past - last)) * g
            sigma = scale * value[:, 0].dot(w) + bias[0]
            total += residuals(self._loss, sigma, self._y[i])
            change = sigma - self._delta[i]
            self._delta[i] = sigma
            scale *= decay
            passed = 1.0 / (n * scale)
            past += passed
            turn = value * change
            w -= (rate * passed) * g + (rate / scale) * turn
            g += turn
            last[...] = past
            table[at] = rows
            bias[0] -= rate * (change + bias[1] / n)
            bias[1] += change
        self._clock[:] = past, scale
        return total

    def _store(self, n: int, source: int, slot: int, past: float) -> int:
        """Put a sample into a slot; return the size of the set."""
        k = self._outputs
        if slot < n:
            first = self._start[slot]
            part = slice(first, first + self._length[slot])
            rows, lost = self._table[self._columns[part]], self._delta[slot]
            rows[:, :k] -= self._rate * (past - rows[:, 2 * k :]) * rows[:, k : 2 * k]
            rows[:, k : 2 * k] -= self._values[part, None] * lost
            rows[:, 2 * k] = past
            self._table[self._columns[part]] = rows
            self._bias[1] -= lost
        self._start[slot] = self._buffer_start[source]
        self._length[slot] = self._buffer_length[source]
        self._y[slot] = self._buffer_y[source]
        self._delta[slot] = 0.0
        return max(n, slot + 1)

    def _make_room(self, more: int) -> None:
        """Drop rows that nothing refers to, once they are half of the store, or grow it."""
        if self._used + more <= len(self._values):
            return
        start, length = self._start[: self._stored], self._length[: self._stored]
        alive = int(length.sum())
        size = max(alive + more, int(_GROWTH * alive))
        indptr = np.concatenate([np.zeros(1, np.int64), np.cumsum(length, dtype=np.int64)])
        at = np.repeat(start - indptr[:-1], length) + np.arange(alive)
        self._columns = grown(self._columns[at], size)
        self._values = grown(self._values[at], size)
        self._start[: self._stored] = indptr[:-1]
        self._used = alive
