"""Losses over class scores [S, classes, B], and their derivatives in place."""

from typing import Literal

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32] | npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]
Loss = Literal["softmax", "crammer-singer", "one-vs-rest"]


def losses(kind: Loss, z: Array, y: Labels) -> npt.NDArray[np.float64]:
    """Return the loss of each sample, float64[S, B]; y is int64[S, B]."""
    z = z.astype(np.float64)
    at = _true(y)
    true = z[at].copy()
    if kind == "softmax":
        top = z.max(axis=1)
        return np.asarray(np.log(np.exp(z - top[:, None]).sum(axis=1)) + top - true)
    if kind == "crammer-singer":
        z += 1.0
        z[at] -= 1.0
        return np.asarray(z.max(axis=1) - true)
    z[at] *= -1.0
    return np.asarray(np.maximum(1.0 + z, 0.0).sum(axis=1))


def to_residual(kind: Loss, z: Array, y: Labels, weight: Array) -> None:
    """Turn scores into d(weighted loss)/d(scores); weight is [S, B]."""
    at = _true(y)
    if kind == "softmax":
        z -= z.max(axis=1, keepdims=True)
        np.exp(z, out=z)
        z /= z.sum(axis=1, keepdims=True)
        z[at] -= 1.0
        z *= weight[:, None]
    elif kind == "crammer-singer":
        z[at] -= 1.0
        rival = _true(z.argmax(axis=1))
        z[...] = 0.0
        z[rival] = weight
        z[at] -= weight
    else:
        z[at] *= -1.0
        np.greater(z, -1.0, out=z, casting="unsafe")
        z *= weight[:, None]
        z[at] *= -1.0


def _true(
    y: npt.NDArray[np.intp],
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Return the index of the score of class y of every sample."""
    s, b = y.shape
    return np.arange(s)[:, None], y, np.arange(b)[None, :]
