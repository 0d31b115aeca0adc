"""How often a model is right, on one set of samples or by client."""

import numpy as np
import numpy.typing as npt

from .blas import one_blas_thread
from .models import Model

_BLOCK = 4096


def right(
    model: Model,
    theta: npt.NDArray[np.float32],
    x: npt.NDArray[np.float32],
    y: npt.NDArray[np.int64],
) -> npt.NDArray[np.bool_]:
    """Return bool[n]: whose class float32[size] parameters predict from float32[n, features]."""
    result = np.empty(len(y), np.bool_)
    with one_blas_thread():
        for first in range(0, len(y), _BLOCK):
            part = slice(first, first + _BLOCK)
            scores = model.scores(theta[None], x[None, part])[0]
            result[part] = scores.argmax(axis=0) == y[part]
    return result


def mean_by_client(
    values: npt.NDArray[np.bool_], offsets: npt.NDArray[np.int64]
) -> npt.NDArray[np.float64]:
    """Return float64[N], the mean of each client's values; NaN where it has none."""
    sums = np.zeros(len(values) + 1, np.int64)
    np.cumsum(values, out=sums[1:])
    counts = np.diff(offsets)
    means = np.full(len(counts), np.nan)
    np.divide(np.diff(sums[offsets]), counts, out=means, where=counts > 0)
    return means
