"""strSAGA's arithmetic on sparse rows: a step touches the sample's features only.

The mean gradient, which moves every weight in every iteration, is kept in mind: what is
stored of a weight is w + due·G, with G its sum of gradients and `due` the sum of rate/n over
the iterations since the last flush. An iteration that changes G by c·x then changes what is
stored by due'·c·x less the step itself: the lazy average of ALGORITHMS section 7. With a
penalty the weights are a scale times that, and what is due is divided by the scale.
"""

import math
from collections.abc import Mapping
from typing import Literal

import numpy as np
import numpy.typing as npt

from fedagent_task.models import Inputs, Labels
from fedagent_task.models.base import Csr

from .strsaga_book import Moves
from .strsaga_dense import Step, cells, grown, residuals, signed
from .strsaga_loops import scalar

Doubles = npt.NDArray[np.float64]

_GROWTH = 1.5
_MIN_SCALE = 1e-100
FLUSH_AFTER = 8192
"""Iterations between flushes: due·G grows with them, and takes digits from the weights."""


class SparseTable:
    """As `DenseTable`; a row of the table is one feature: weights with what is due, sums.

    Samples are rows of one growing store, and the set refers to them.
    """

    def __init__(self, step: Step) -> None:
        self._loss, self._rate, self._loops = step.loss, step.rate, step.loops
        self._decay, outputs, width = 1.0 - step.rate * step.l2, step.outputs, step.width
        self._outputs = outputs
        # Numpy takes whole columns at some rows, a compiled loop row after row.
        order: Literal["C", "F"] = "C" if self._loops else "F"
        self._table = np.zeros((width, 2 * outputs), order=order)
        self._bias = np.zeros((2, outputs))
        self._clock = np.array([0.0, 1.0])
        self._columns, self._values = np.empty(0, np.int32), np.empty(0, np.float32)
        self._used = self._stored = self._iterations = 0
        self._start, self._length = np.empty(0, np.int64), np.empty(0, np.int32)
        self._y, self._delta = np.empty(0), np.empty((0, outputs))
        self._buffer_start, self._buffer_length = self._start, self._length
        self._buffer_y = self._y

    @property
    def block(self) -> int:
        """Most iterations of one `advance`: the scale must not vanish within it."""
        if self._decay == 1.0:
            return FLUSH_AFTER
        return max(1, min(FLUSH_AFTER, int(math.log(_MIN_SCALE) / math.log(self._decay))))

    def begin(self, weights: Mapping[str, npt.NDArray[np.float32]]) -> None:
        """Start from these weights with an empty set."""
        k = self._outputs
        self._table[:, :k] = weights["weight"].T
        self._table[:, k:] = 0.0
        self._bias[0], self._bias[1] = weights["bias"], 0.0
        self._clock[:] = 0.0, 1.0
        self._stored = self._iterations = 0

    def offer(self, x: Inputs, y: Labels, room: int) -> None:
        """Take new samples into the buffer; `room` is what the set may need from now on."""
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
            self._start, self._length = grown(self._start, room), grown(self._length, room)
            self._y, self._delta = grown(self._y, room), grown(self._delta, room)

    def advance(self, moves: Moves) -> float:
        """Do some iterations; return the sum of the losses before each step."""
        if self._loops:
            total = self._loops.sparse(
                (self._loss, self._rate, self._decay, moves.stored),
                (moves.source, moves.slot, moves.draw),
                (self._columns, self._values),
                (self._buffer_start, self._buffer_length, self._buffer_y),
                (self._start, self._length, self._y, self._delta),
                self._table,
                self._bias,
                self._clock,
            )
        else:
            total = self._one(moves) if self._outputs == 1 else self._many(moves)
        self._stored = max(moves.stored, 1 + int(max(moves.slot, default=-1)))
        self._iterations += len(moves.draw)
        if self._iterations >= FLUSH_AFTER or self._clock[1] < _MIN_SCALE:
            self._flush()
        return total

    def weights(self) -> dict[str, Doubles]:
        """Return the weights as they are now."""
        self._flush()
        return {"weight": self._table[:, : self._outputs].T, "bias": self._bias[0]}

    def _flush(self) -> None:
        k, (due, scale) = self._outputs, self._clock
        self._table[:, :k] -= due * self._table[:, k:]
        self._table[:, :k] *= scale
        self._clock[:] = 0.0, 1.0
        self._iterations = 0

    def _one(self, moves: Moves) -> float:
        loss, rate, decay, n, total = self._loss, self._rate, self._decay, moves.stored, 0.0
        weights, sums = self._table[:, 0], self._table[:, 1]
        bias, bias_sum = self._bias[:, 0].tolist()
        due, scale = self._clock.tolist()
        y, delta = cells(self._y), cells(self._delta.reshape(-1))
        for source, slot, i in zip(moves.source, moves.slot, moves.draw, strict=True):
            if slot >= 0:
                bias_sum -= delta[slot] if slot < n else 0.0
                n = self._store(n, source, slot, due)
            if i < 0:
                continue
            at, value = self._row(i)
            w, g = weights[at], sums[at]
            z = scale * float(value.dot(w) - due * value.dot(g)) + bias
            sigma, each, factor = scalar(loss, z, y[i])
            total += each + math.log(factor)
            change = sigma - delta[i]
            delta[i] = sigma
            scale *= decay
            due += rate / (n * scale)
            value *= change
            g += value
            value *= due - rate / scale
            w += value
            weights[at], sums[at] = w, g
            bias -= rate * (change + bias_sum / n)
            bias_sum += change
        self._clock[:], self._bias[:, 0] = (due, scale), (bias, bias_sum)
        return total

    def _many(self, moves: Moves) -> float:
        k, rate, n, total = self._outputs, self._rate, moves.stored, 0.0
        bias, decay = self._bias, self._decay
        due, scale = self._clock.tolist()
        for source, slot, i in zip(moves.source, moves.slot, moves.draw, strict=True):
            if slot >= 0:
                bias[1] -= self._delta[slot] if slot < n else 0.0
                n = self._store(n, source, slot, due)
            if i < 0:
                continue
            at, value = self._row(i)
            rows = self._table[at]
            reach = value.dot(rows)
            sigma = scale * (reach[:k] - due * reach[k:]) + bias[0]
            total += residuals(self._loss, sigma, self._y[i])
            change = sigma - self._delta[i]
            self._delta[i] = sigma
            scale *= decay
            due += rate / (n * scale)
            turn = value[:, None] * change
            rows[:, k:] += turn
            turn *= due - rate / scale
            rows[:, :k] += turn
            self._table[at] = rows
            bias[0] -= rate * (change + bias[1] / n)
            bias[1] += change
        self._clock[:] = due, scale
        return total

    def _row(self, slot: int) -> tuple[npt.NDArray[np.intp], Doubles]:
        first = self._start[slot]
        part = slice(first, first + self._length[slot])
        return self._columns[part].astype(np.intp), self._values[part].astype(np.float64)

    def _store(self, n: int, source: int, slot: int, due: float) -> int:
        """The biases of what an occupied slot had are the caller's to take out."""
        if slot < n:
            k = self._outputs
            at, value = self._row(slot)
            gone = value[:, None] * self._delta[slot]
            self._table[at, :k] -= due * gone
            self._table[at, k:] -= gone
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
