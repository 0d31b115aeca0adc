"""The inner loops of `linear_arms`, compiled by numba where it is there.

They are written for a compiler, one number at a time; `linear_arms` has the same in arrays
for machines without numba, and the tests hold the two together.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec

import numpy as np

from .base import FloatArray, IntArray

Upper = Callable[[IntArray, FloatArray, FloatArray, FloatArray, float, FloatArray], None]
Learn = Callable[[IntArray, FloatArray, FloatArray, FloatArray, FloatArray, FloatArray], None]


@dataclass(frozen=True, slots=True)
class Loops:
    """Compiled loops; both write into their last arguments."""

    upper: Upper
    learn: Learn


@functools.cache
def compiled() -> Loops | None:
    """Return the loops as machine code, None without numba; the first call takes a second."""
    if find_spec("numba") is None:
        return None
    from numba import njit  # noqa: PLC0415 - optional package, half a second

    return Loops(upper=njit(nogil=True)(upper), learn=njit(nogil=True)(learn))


def upper(
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


def learn(
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
