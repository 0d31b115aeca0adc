"""`linucb`: one linear regression of success per edge, with its confidence (COCS, baseline 3).

The features are 1, f1, f2, f1^2 and f1 f2, where f1 is the logarithm of the download rate and
f2 the compute, both scaled to [0, 1] by running bounds (ALGORITHMS section 3, reference).

Parameters: docs/policies/linucb.md.
"""

from collections.abc import Iterator

import numpy as np

from fedagent_coordinator.solvers import Solver, assign
from fedagent_coordinator.solvers import create as create_solver
from fedagent_protocol.parameters import require

from .base import Feedback, FloatArray, IntArray, RoundView, Selection
from .exchange_time import MIN_RIDGE
from .linear_arms import LinearArms
from .selection import explained
from .state import ArrayState, floats

_SIZE = 5
_LEAST = 1e-9
_START = (np.array([4.5, 2.0]), np.array([7.0, 4.0]))
"""Bounds of log10(bit/s) and compute before anything is seen (ALGORITHMS section 3)."""


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
        everything = np.arange(len(view.pair_client), dtype=np.int64)
        arms = self._arms.grown(len(view.edge_budget))
        scores = arms.upper(
            view.pair_edge.astype(np.int64), self._features(view, everything), self._alpha
        )
        pairs = assign(view, np.maximum(scores, _LEAST), self._solver, rng)
        return explained(view, pairs, scores)

    def learn(self, feedback: Feedback) -> None:
        """Regress X of what was played, then move the bounds."""
        view = feedback.view
        x = self._features(view, feedback.pairs)
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

    def _features(self, view: RoundView, rows: IntArray) -> FloatArray:
        """Return what the regressions see of some pairs, float64[R, 5]."""
        scaled = (self._raw(view)[rows] - self._low) / (self._high - self._low)
        one, two = np.clip(scaled, 0.0, 1.0).T
        return np.stack((np.ones(len(rows)), one, two, one * one, one * two), axis=1)

    def _raw(self, view: RoundView) -> FloatArray:
        """Return log rate and compute of all pairs, float64[P, 2]."""
        rate = np.log10(np.maximum(view.feature("download_bps"), 1.0))
        return np.stack((rate, view.feature("compute")), axis=1)
