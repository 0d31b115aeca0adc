"""`cocs`: COCS, Algorithm 1; pairs may share counters (ALGORITHMS section 3).

Contexts are scaled to the unit cube by running bounds and cut into h^D cells. Each
cell, of a pair, of an edge or of all, has a counter C and a mean p of arrivals in
time. While any visible pair has C <= K(t) = k_scale t^z ln t, the round explores: as
many such pairs as the budgets pay for, the rest by p, at least 1 / (C + 2) with `floor`.
Page: docs/policies/cocs.md.
"""

import math
from collections.abc import Iterator, Sequence
from functools import partial
from zlib import crc32

import numpy as np

from fedagent_coordinator.solvers import Solver, assign
from fedagent_coordinator.solvers import create as create_solver
from fedagent_protocol.errors import ParameterError
from fedagent_protocol.registry import require

from .base import Aspects, BoolArray, Feedback, FloatArray, IntArray, RoundView, Selection
from .selection import explained
from .state import ArrayState, floats, ints

_SCOPES = ("pair", "edge", "global")
_MAX_EDGES = 2**16
_MAX_CELLS = 2**15


class _Cells(ArrayState):
    """Counters of the cells that were played, by key: int64[K] each."""

    keys = ints("cells", ascending=True)
    counts = ints("cells")
    successes = ints("cells")

    def lookup(self, keys: IntArray) -> tuple[IntArray, IntArray]:
        at = np.searchsorted(self.keys, keys)
        known = np.zeros(len(keys), dtype=np.bool_)
        inside = at < len(self.keys)
        known[inside] = self.keys[at[inside]] == keys[inside]
        counts, successes = np.zeros((2, len(keys)), dtype=np.int64)
        counts[known] = self.counts[at[known]]
        successes[known] = self.successes[at[known]]
        return counts, successes

    def count(self, keys: IntArray, success: BoolArray) -> None:
        merged, inverse = np.unique(np.concatenate((self.keys, keys)), return_inverse=True)
        counts, successes = np.zeros((2, len(merged)), dtype=np.int64)
        old = len(self.keys)
        counts[inverse[:old]] = self.counts
        successes[inverse[:old]] = self.successes
        np.add.at(counts, inverse[old:], 1)
        np.add.at(successes, inverse[old:], success.astype(np.int64))
        self.keys, self.counts, self.successes = merged, counts, successes

    def problems(self) -> Iterator[str]:
        if (self.successes > self.counts).any():
            yield "has counters that are none"


class CocsPolicy(ArrayState):
    """COCS with shared counters."""

    name = "cocs"
    parts = ("_cells",)
    _low = floats("features", start=np.inf, infinite=True)
    _high = floats("features", start=-np.inf, infinite=True)
    _made_for = ints(4)
    """What the meaning of the counters depends on."""

    def __init__(
        self,
        *,
        scope: str = "global",
        k_scale: float = 0.005,
        logs: bool = True,
        floor: bool = True,
        horizon: int = 1000,
        h: int | None = None,
        alpha: float = 1.0,
        features: Sequence[str] = ("download_bps", "compute"),
        solver: str | Solver = "density",
    ) -> None:
        check = partial(require, self.name)
        check("scope", scope, scope in _SCOPES, f"one of {', '.join(_SCOPES)}")
        check("k_scale", k_scale, k_scale >= 0, ">= 0")
        check("horizon", horizon, horizon >= 1, ">= 1")
        check("h", h, h is None or h >= 1, ">= 1")
        check("alpha", alpha, 0 < alpha <= 1, "in (0, 1]")
        check("features", features, 0 < len(set(features)) == len(features), "each name once")
        self._scope, self._k_scale, self._logs, self._floor = scope, k_scale, logs, floor
        self._features = tuple(features)
        dimensions = len(self._features)
        self._h = h or math.ceil(horizon ** (1 / (3 * alpha + dimensions)) - 1e-9)
        few = self._h**dimensions <= _MAX_CELLS
        check("h", self._h, few, f"smaller: at most {_MAX_CELLS} cells")
        self._z = 2 * alpha / (3 * alpha + dimensions)
        self._solver = create_solver(solver) if isinstance(solver, str) else solver
        self._cells = _Cells()
        self.fix(features=dimensions)
        self._made_for = self._meaning()

    @property
    def needs(self) -> frozenset[str]:
        """The context features."""
        return frozenset(self._features)

    def select(self, view: RoundView, rng: np.random.Generator) -> Selection:
        """Explore while any pair is under-explored, otherwise solve P2 with p."""
        counts, successes = self._cells.lookup(self._keys(view, self._contexts(view)))
        rate = successes / np.maximum(counts, 1)
        if self._floor:
            rate = np.maximum(rate, 1.0 / (counts + 2))
        limit = self._k_scale * view.round**self._z * math.log(view.round)
        under = (counts <= limit) & view.eligible
        first = assign(view, np.ones(len(under)), self._solver, rng, wanted=under)
        known = ~under & view.eligible
        rest = assign(view, rate, self._solver, rng, wanted=known, after=first)
        pairs = np.concatenate((first, rest))
        scores = np.where(counts > 0, rate, np.nan)
        notes = {"explore": float(under.any()), "under_explored": float(under.sum()), "k": limit}
        return explained(view, pairs, scores, notes)

    def aspects(self, view: RoundView) -> Aspects:
        """Return the plays of the cell that each pair is in, and how many make it explored."""
        counts, _ = self._cells.lookup(self._keys(view, self._contexts(view)))
        limit = self._k_scale * view.round**self._z * math.log(view.round)
        enough = np.full(len(counts), limit)
        return {"plays of its cell": counts.astype(np.float64), "explored above": enough}

    def learn(self, feedback: Feedback) -> None:
        """Count every played pair in the cell it was seen in, then move the bounds."""
        contexts = self._contexts(feedback.view)
        keys = self._keys(feedback.view, contexts)[feedback.pairs]
        self._cells.count(keys, feedback.X)
        if len(contexts):
            self._low = np.minimum(self._low, contexts.min(axis=0))
            self._high = np.maximum(self._high, contexts.max(axis=0))

    def problems(self) -> Iterator[str]:
        """Refuse counters of another meaning, and impossible bounds."""
        if not np.array_equal(self._made_for, self._meaning()):
            yield "is of another scope, h, logs or features"
        low, high = self._low, self._high
        fresh = np.isposinf(low).all() and np.isneginf(high).all()
        if not fresh and not (np.isfinite(low) & np.isfinite(high) & (low <= high)).all():
            yield "has bounds that are none"

    def _meaning(self) -> IntArray:
        features = crc32("\n".join(self._features).encode())
        scope = _SCOPES.index(self._scope)
        return np.array([scope, self._h, self._logs, features], dtype=np.int64)

    def _contexts(self, view: RoundView) -> FloatArray:
        columns = []
        for name in self._features:
            column = view.feature(name)
            if self._logs and name.endswith(("_bps", "_hz")):
                column = np.log10(np.maximum(column, 1.0))
            columns.append(column)
        return np.column_stack(columns)

    def _keys(self, view: RoundView, contexts: FloatArray) -> IntArray:
        """Return client, edge and cell of every pair in one int64, 0 for what the scope unites."""
        if len(view.edge_budget) > _MAX_EDGES:
            raise ParameterError(self.name, "edges", f"are more than {_MAX_EDGES}")
        width = self._high - self._low
        known = np.isfinite(width) & (width > 0)
        scaled = np.zeros(contexts.shape)
        scaled[:, known] = (contexts[:, known] - self._low[known]) / width[known]
        # Before the cast: what no integer can hold would become the least one.
        index = np.clip(scaled * self._h, 0, self._h - 1).astype(np.int64)
        weights = self._h ** np.arange(len(self._features), dtype=np.int64)
        cell = index @ weights
        if self._scope == "global":
            return np.asarray(cell, dtype=np.int64)
        owner = view.pair_edge.astype(np.int64)
        if self._scope == "pair":
            owner += view.pair_client.astype(np.int64) * _MAX_EDGES
        return np.asarray(owner * _MAX_CELLS + cell, dtype=np.int64)
