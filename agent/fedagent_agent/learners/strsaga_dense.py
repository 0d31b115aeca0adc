"""strSAGA's arithmetic on dense rows: one scalar per stored sample and output."""

import math
from collections.abc import Mapping, MutableSequence
from dataclasses import dataclass
from typing import TypeVar, cast

import numpy as np
import numpy.typing as npt

from fedagent_task.models import Inputs, Labels
from fedagent_task.models.base import Csr

from .strsaga_book import Moves
from .strsaga_loops import HINGE, SOFTMAX, SQUARED_HINGE, SagaLoops, residual, scalar

Doubles = npt.NDArray[np.float64]
T = TypeVar("T", bound=np.generic)

_LARGE = 1e200


@dataclass(frozen=True, slots=True)
class Step:
    """What a step on a generalised linear model depends on."""

    loss: int  # its code
    outputs: int
    width: int
    rate: float  # step size
    l2: float  # penalty of the weights, outside the table of gradients
    loops: SagaLoops | None  # compiled loops, or None


class DenseTable:
    """The set, its gradients as scalars, the weights and the sum of the gradients.

    Weights and sums are float64 [outputs, features + 1]; the last column is the bias,
    the weight of a feature that is always 1 and is not stored.
    """

    block = 1 << 16
    """Most iterations of one `advance`."""

    def __init__(self, step: Step) -> None:
        self._loss, self._rate, self._loops = step.loss, step.rate, step.loops
        self._decay, outputs, width = 1.0 - step.rate * step.l2, step.outputs, step.width
        self._w = np.zeros((outputs, width + 1))
        self._g = np.zeros((outputs, width + 1))
        self._x = np.empty((0, width), np.float32)
        self._y = np.empty(0)
        self._delta = np.empty((0, outputs))
        self._buffer_x, self._buffer_y = self._x, self._y

    def begin(self, weights: Mapping[str, npt.NDArray[np.float32]]) -> None:
        """Start from these weights with an empty set."""
        self._w[:, :-1], self._w[:, -1] = weights["weight"], weights["bias"]
        self._g[...] = 0.0

    def offer(self, x: Inputs, y: Labels, room: int) -> None:
        """Take new samples into the buffer; `room` is what the set may need from now on."""
        self._buffer_x = x.dense() if isinstance(x, Csr) else np.array(x, np.float32, order="C")
        self._buffer_y = signed(y, self._loss, len(self._w))
        if room > len(self._y):
            self._x = grown(self._x, room)
            self._y = grown(self._y, room)
            self._delta = grown(self._delta, room)

    def advance(self, moves: Moves) -> float:
        """Do some iterations; return the sum of the losses before each step."""
        if self._loops:
            loop = self._loops.dense_one if len(self._w) == 1 else self._loops.dense_many
            return loop(
                (self._loss, self._rate, self._decay, moves.stored),
                (moves.source, moves.slot, moves.draw),
                (self._buffer_x, self._buffer_y),
                (self._x, self._y, self._delta),
                self._w,
                self._g,
            )
        return self._one(moves) if len(self._w) == 1 else self._many(moves)

    def weights(self) -> dict[str, Doubles]:
        """Return the weights as they are now."""
        return {"weight": self._w[:, :-1], "bias": self._w[:, -1]}

    def _store(self, n: int, source: int, slot: int, g: Doubles) -> int:
        if slot < n:
            lost = self._delta[slot]
            g[:, :-1] -= lost[:, None] * self._x[slot]
            g[:, -1] -= lost
        self._x[slot] = self._buffer_x[source]
        self._y[slot] = self._buffer_y[source]
        self._delta[slot] = 0.0
        return max(n, slot + 1)

    def _one(self, moves: Moves) -> float:
        """Do iterations of one output.

        Weights, sums and the sample are the rows of one matrix; a step is the product
        ``[[decay, -rate/n, -rate·c], [0, 1, c]]`` with it, into another: two calls of BLAS
        an iteration instead of seven of numpy.
        """
        loss, rate, lost = self._loss, self._rate, 1.0 - self._decay
        now, after = _views(self._w, self._g), _views(self._w, self._g)
        step = np.array([[self._decay, 0.0, 0.0], [0.0, 1.0, 0.0]])
        put = cells(step.reshape(-1))
        x, n, total, product = self._x, moves.stored, 0.0, 1.0
        y, delta = cells(self._y), cells(self._delta.reshape(-1))
        for source, slot, i in zip(moves.source, moves.slot, moves.draw, strict=True):
            matrix, _, w, sums, sample, padded = now
            if slot >= 0:
                n = self._store(n, source, slot, sums)
            if i < 0:
                continue
            sample[:] = x[i]
            sigma, each, factor = scalar(loss, float(w.dot(padded)), y[i])
            change = sigma - delta[i]
            delta[i] = sigma
            total += each
            product *= factor
            if product > _LARGE:
                total += math.log(product)
                product = 1.0
            put[1], put[2], put[5] = -rate / n, -rate * change, change
            step.dot(matrix, after[1])
            if lost:
                after[2][-1] += lost * w[-1]
            now, after = after, now
        self._w[0], self._g[0] = now[1]
        return total + math.log(product)

    def _many(self, moves: Moves) -> float:
        w, g, rate, n, total = self._w, self._g, self._rate, moves.stored, 0.0
        sample, turn, drift = np.ones(w.shape[1]), np.empty_like(w), np.empty_like(w)
        for source, slot, i in zip(moves.source, moves.slot, moves.draw, strict=True):
            if slot >= 0:
                n = self._store(n, source, slot, g)
            if i < 0:
                continue
            sample[:-1] = self._x[i]
            sigma = w.dot(sample)
            total += residuals(self._loss, sigma, self._y[i])
            change = sigma - self._delta[i]
            self._delta[i] = sigma
            np.multiply(g, rate / n, out=drift)
            np.multiply(change[:, None], sample, out=turn)
            g += turn
            turn *= rate
            drift += turn
            if self._decay != 1.0:
                w[:, :-1] *= self._decay
            w -= drift
        return total


def residuals(loss: int, z: Doubles, y: float) -> float:
    """Turn scores [outputs] into d loss / d scores, in place; return the loss."""
    if loss != SOFTMAX:
        return residual(loss, z, y)[0]  # a hinge has no logarithm
    z -= z.max()
    true = float(z[int(y)])
    np.exp(z, out=z)
    total = float(z.sum())
    z /= total
    z[int(y)] -= 1.0
    return math.log(total) - true


def signed(y: Labels, loss: int, outputs: int) -> Doubles:
    """Return labels as the loops take them: -1 and +1 for a hinge of two classes."""
    labels = np.array(y, np.float64)
    hinge = loss in (HINGE, SQUARED_HINGE) and outputs == 1
    return 2.0 * labels - 1.0 if hinge else labels


def grown(rows: npt.NDArray[T], size: int) -> npt.NDArray[T]:
    """Return an array with this many rows that begins with the given ones.

    What is not filled yet takes no memory: the system gives pages as they are written.
    """
    larger = np.empty((size, *rows.shape[1:]), rows.dtype)
    larger[: len(rows)] = rows
    return larger


def cells(numbers: npt.NDArray[np.float64]) -> MutableSequence[float]:
    """Return an array's numbers as plain floats, much faster one by one than the array."""
    return cast("MutableSequence[float]", numbers.data)


def _views(w: Doubles, g: Doubles) -> tuple[Doubles, ...]:
    """Return a matrix of weights, sums and a sample, and views of its parts."""
    matrix = np.vstack([w, g, np.ones_like(w)])
    return matrix, matrix[:2], matrix[0], matrix[1:2], matrix[2, :-1], matrix[2]
