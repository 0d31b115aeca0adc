"""`linucb`: one linear regression of success per edge, with its confidence (COCS, baseline 3).

The features are 1, f1, f2, f1^2 and f1 f2, where f1 is the logarithm of the download rate and
f2 the compute, both scaled to [0, 1] by running bounds (ALGORITHMS section 3, reference).
All arms keep the inverse of their own matrix (Li et al., 2010), moved by rank-one updates. Page:
docs/policies/baselines.md.
"""

import copy
from collections.abc import Iterator
from typing import Self

import numpy as np

from fedagent_coordinator.solvers import Solver, assign
from fedagent_coordinator.solvers import create as create_solver
from fedagent_protocol.registry import require

from .base import Aspects, Feedback, FloatArray, IntArray, RoundView, Selection
from .selection import explained
from .state import ArrayState, floats

MIN_RIDGE = 1e-9
"""With less, a first observation leaves nothing of the inverse but rounding."""
BLOCK = 1 << 16
"""Rows whose widths are computed at a time, which bounds the memory."""
_SIZE = 5
_LEAST = 1e-9
_START = (np.array([4.5, 2.0]), np.array([7.0, 4.0]))
"""Bounds of log10(bit/s) and compute before anything is seen (ALGORITHMS section 3)."""


class LinearArms(ArrayState):
    """K regressions on D features."""

    inverse = floats("arms", "width", "width", start=lambda arms: np.eye(arms.width) / arms.ridge)
    moment = floats("arms", "width")
    theta = floats("arms", "width")

    def __init__(self, width: int, ridge: float) -> None:
        self.width, self.ridge = width, ridge
        self.fix(width=width)

    def grown(self, arms: int) -> Self:
        """Return these arms and new ones that know nothing, at least so many in all."""
        larger = copy.copy(self)
        larger.grow(arms=arms)
        return larger

    def problems(self) -> Iterator[str]:
        """Refuse an inverse that no observations have."""
        if not (np.einsum("kii->ki", self.inverse) > 0).all():
            yield "has an inverse that is none"

    def upper(self, arm: IntArray, x: FloatArray, alpha: float) -> FloatArray:
        """Return the upper confidence bound of each row, float64[P].

        `arm`, int64[P], names the regression that evaluates the row of x, float64[P, D]; `alpha` is
        the width in standard deviations, below 0 for the lower bound.
        """
        out = np.empty(len(x))
        flat = self.inverse.reshape(len(self.inverse), self.width**2)
        for begin in range(0, len(x), BLOCK):
            rows = slice(begin, begin + BLOCK)
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


class LinUcbPolicy(ArrayState):
    """LinUCB per edge, P2 solved with its upper bounds."""

    name = "linucb"
    parts = ("_arms",)
    needs = frozenset({"download_bps", "compute"})
    _low = floats(2, start=_START[0])
    _high = floats(2, start=_START[1])

    def __init__(
        self, *, alpha: float = 0.1, ridge: float = 1.0, solver: str | Solver = "density"
    ) -> None:
        require(self.name, "alpha", alpha, alpha >= 0, ">= 0")
        require(self.name, "ridge", ridge, ridge >= MIN_RIDGE, f">= {MIN_RIDGE:g}")
        self._alpha = alpha
        self._arms = LinearArms(_SIZE, ridge)
        self._solver = create_solver(solver) if isinstance(solver, str) else solver

    def select(self, view: RoundView, rng: np.random.Generator) -> Selection:
        """Solve P2 with the upper bounds; ties by chance."""
        arms, edges = self._arms.grown(len(view.edge_budget)), view.pair_edge.astype(np.int64)
        scores = arms.upper(edges, self._features(view), self._alpha)
        pairs = assign(view, np.maximum(scores, _LEAST), self._solver, rng)
        return explained(view, pairs, scores)

    def aspects(self, view: RoundView) -> Aspects:
        """Return the regression's mean, and the width that makes it a bound."""
        x = self._features(view)
        arms, edges = self._arms.grown(len(view.edge_budget)), view.pair_edge.astype(np.int64)
        mean = arms.upper(edges, x, 0.0)
        return {"mean": mean, "width": arms.upper(edges, x, self._alpha) - mean}

    def learn(self, feedback: Feedback) -> None:
        """Regress X of what was played, then move the bounds."""
        view = feedback.view
        x = self._features(view)[feedback.pairs]
        edges = view.pair_edge[feedback.pairs].astype(np.int64)
        self._arms = self._arms.grown(len(view.edge_budget))
        self._arms.learn(edges, x, feedback.X.astype(np.float64))
        raw = self._raw(view)
        if len(raw):
            self._low = np.minimum(self._low, raw.min(axis=0))
            self._high = np.maximum(self._high, raw.max(axis=0))

    def problems(self) -> Iterator[str]:
        """Refuse bounds between which nothing lies."""
        if not (self._low < self._high).all():
            yield "has bounds that are none"

    def _features(self, view: RoundView) -> FloatArray:
        scaled = (self._raw(view) - self._low) / (self._high - self._low)
        one, two = np.clip(scaled, 0.0, 1.0).T
        return np.stack((np.ones(len(one)), one, two, one * one, one * two), axis=1)

    def _raw(self, view: RoundView) -> FloatArray:
        rate = np.log10(np.maximum(view.feature("download_bps"), 1.0))
        return np.stack((rate, view.feature("compute")), axis=1)
