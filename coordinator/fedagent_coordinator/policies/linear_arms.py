"""Ridge regressions of many arms as arrays: LinUCB's memory (Li et al., 2010).

All arms keep the inverse of their own matrix, moved by rank-one updates
(Sherman-Morrison), so that a round costs O(K D^2) for K arms at once.
"""

import numpy as np

from .base import FloatArray, IntArray
from .linear_loops import compiled


class LinearArms:
    """K regressions on D features.

    Attributes:
        inverse: float64[K, D, D], inverse of lambda I + sum x x^T.
        moment: float64[K, D], sum of x y.
        theta: float64[K, D], inverse times moment.
    """

    def __init__(self, dimensions: int, ridge: float) -> None:
        self._ridge = ridge
        self.inverse = np.empty((0, dimensions, dimensions))
        self.moment = np.empty((0, dimensions))
        self.theta = np.empty((0, dimensions))

    def grown(self, arms: int) -> "LinearArms":
        """Return these arms and new ones that know nothing, at least so many in all."""
        more = arms - len(self.moment)
        if more <= 0:
            return self
        d = self.moment.shape[1]
        fresh = np.broadcast_to(np.eye(d) / self._ridge, (more, d, d))
        larger = LinearArms(d, self._ridge)
        larger.set(
            np.concatenate((self.inverse, fresh)),
            np.concatenate((self.moment, np.zeros((more, d)))),
            np.concatenate((self.theta, np.zeros((more, d)))),
        )
        return larger

    def set(self, inverse: FloatArray, moment: FloatArray, theta: FloatArray) -> None:
        """Continue from kept arrays."""
        self.inverse, self.moment, self.theta = inverse, moment, theta

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
