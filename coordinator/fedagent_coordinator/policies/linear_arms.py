"""Ridge regressions of many arms as arrays: LinUCB's memory (Li et al., 2010).

All arms keep the inverse of their own matrix, moved by rank-one updates
(Sherman-Morrison), so that a round costs O(K D^2) for K arms at once. The inner loops are
compiled by numba where it is installed; the tests hold them and the arrays together.
"""

import copy
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Self

import numpy as np

from .base import FloatArray, IntArray
from .state import ArrayState, floats

Upper = Callable[[IntArray, FloatArray, FloatArray, FloatArray, float, FloatArray], None]
Learn = Callable[[IntArray, FloatArray, FloatArray, FloatArray, FloatArray, FloatArray], None]


@dataclass(frozen=True, slots=True)
class ArmLoops:
    """Compiled loops; both write into their last arguments."""

    upper: Upper
    learn: Learn


@functools.cache
def compiled() -> ArmLoops | None:
    """Return the loops as machine code, None without numba; the first call takes a second."""
    if find_spec("numba") is None:
        return None
    from numba import njit  # noqa: PLC0415 - optional package, half a second

    return ArmLoops(upper=njit(nogil=True)(upper_loop), learn=njit(nogil=True)(learn_loop))


class LinearArms(ArrayState):
    """K regressions on D features.

    Attributes:
        inverse: float64[K, D, D], inverse of lambda I + sum x x^T.
        moment: float64[K, D], sum of x y.
        theta: float64[K, D], inverse times moment.
    """

    inverse = floats("edges", "width", "width", start=lambda arms: np.eye(arms.width) / arms.ridge)
    moment = floats("edges", "width")
    theta = floats("edges", "width")

    def __init__(self, width: int, ridge: float) -> None:
        self.width, self.ridge = width, ridge
        self.fix(width=width)

    def grown(self, arms: int) -> Self:
        """Return these arms and new ones that know nothing, at least so many in all."""
        larger = copy.copy(self)
        larger.grow(edges=arms)
        return larger

    def problems(self) -> Iterator[str]:
        """Refuse an inverse that no observations have."""
        if not (np.einsum("kii->ki", self.inverse) > 0).all():
            yield "has an inverse that is none"

    def upper(
        self, arm: IntArray, x: FloatArray, alpha: float, *, block: int = 1 << 16
    ) -> FloatArray:
        """Return the upper confidence bound of each row, float64[P].

        Args:
            arm: int64[P], whose regression evaluates the row.
            x: float64[P, D].
            alpha: Width of the bound in standard deviations.
            block: Rows at a time, which bounds the memory.
        """
        out = np.empty(len(x))
        loops = compiled()
        if loops is not None:
            loops.upper(arm, x, self.theta, self.inverse, alpha, out)
            return out
        flat = self.inverse.reshape(len(self.inverse), -1)
        for begin in range(0, len(x), block):
            rows = slice(begin, begin + block)
            k, part = arm[rows], x[rows]
            mean = np.einsum("pi,pi->p", part, self.theta[k])
            if alpha:
                # One long sum of products a row: faster than many small matrices.
                square = (part[:, :, None] * part[:, None, :]).reshape(len(part), -1)
                width = np.einsum("pk,pk->p", flat[k], square)
                mean += alpha * np.sqrt(np.maximum(width, 0.0, out=width), out=width)
            out[rows] = mean
        return out

    def learn(self, arm: IntArray, x: FloatArray, y: FloatArray) -> None:
        """Take in rows one after the other; those of different arms at once.

        Rows of the same arm go in waves, because each needs the inverse the last one left.
        """
        loops = compiled()
        if loops is not None:
            loops.learn(arm, x, y, self.inverse, self.moment, self.theta)
            return
        for wave in _waves(arm):
            k, part, seen = arm[wave], x[wave], y[wave]
            inverse = self.inverse[k]
            reach = np.matmul(inverse, part[:, :, None])[:, :, 0]
            scale = 1.0 + np.einsum("pi,pi->p", part, reach)
            inverse -= reach[:, :, None] * (reach / scale[:, None])[:, None, :]
            self.inverse[k] = inverse
            self.moment[k] += part * seen[:, None]
            self.theta[k] = np.einsum("kij,kj->ki", inverse, self.moment[k])


def _waves(arm: IntArray) -> list[IntArray]:
    """Split rows so that no arm is twice in a wave, in order of appearance."""
    if len(arm) <= 1:
        return [np.arange(len(arm), dtype=np.int64)] if len(arm) else []
    order = np.argsort(arm, kind="stable")
    ranked = arm[order]
    first = np.concatenate(([True], ranked[1:] != ranked[:-1]))
    starts = np.flatnonzero(first)
    turn = np.arange(len(arm)) - np.repeat(starts, np.diff(np.append(starts, len(arm))))
    return [np.sort(order[turn == wave]).astype(np.int64) for wave in range(int(turn.max()) + 1)]


def upper_loop(
    arm: IntArray,
    x: FloatArray,
    theta: FloatArray,
    inverse: FloatArray,
    alpha: float,
    out: FloatArray,
) -> None:
    """Write the upper confidence bound of every row into float64[P]."""
    size = x.shape[1]
    for p in range(len(arm)):
        k = arm[p]
        mean = 0.0
        width = 0.0
        for i in range(size):
            mean += theta[k, i] * x[p, i]
            reach = 0.0
            for j in range(size):
                reach += inverse[k, i, j] * x[p, j]
            width += reach * x[p, i]
        out[p] = mean + alpha * np.sqrt(max(width, 0.0))


def learn_loop(
    arm: IntArray,
    x: FloatArray,
    y: FloatArray,
    inverse: FloatArray,
    moment: FloatArray,
    theta: FloatArray,
) -> None:
    """Move the regressions of the named arms, row after row (Sherman-Morrison)."""
    size = x.shape[1]
    reach = np.empty(size)
    for p in range(len(arm)):
        k = arm[p]
        scale = 1.0
        for i in range(size):
            reach[i] = 0.0
            for j in range(size):
                reach[i] += inverse[k, i, j] * x[p, j]
            scale += x[p, i] * reach[i]
        for i in range(size):
            moment[k, i] += x[p, i] * y[p]
            for j in range(size):
                inverse[k, i, j] -= reach[i] * reach[j] / scale
        for i in range(size):
            theta[k, i] = 0.0
            for j in range(size):
                theta[k, i] += inverse[k, i, j] * moment[k, j]
