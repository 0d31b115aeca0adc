"""`cocs`: COCS, Algorithm 1, with counters that pairs may share (ALGORITHMS section 3).

Contexts are scaled to the unit cube by running bounds and cut into h^D cells. Each
cell, of a pair, of an edge or of all, has a counter C and a mean p of arrivals in
time. While any visible pair has C <= K(t) = k_scale t^z ln t, the round explores: as
many such pairs as the budgets pay for, the rest by p. Otherwise it solves P2 with p.

With one counter per pair and k_scale 1, which is the paper, K(t) outgrows the counters
and the policy explores in every round (`cocs_paper.py`). Counters that are shared fill
up M or N M times as fast.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from zlib import crc32

import numpy as np

from fedagent_coordinator.errors import ParameterError
from fedagent_coordinator.solvers import Solver
from fedagent_coordinator.solvers import create as create_solver

from .assigning import assign
from .base import (
    BoolArray,
    Feedback,
    FloatArray,
    IntArray,
    RoundView,
    Selection,
    State,
    checked_state,
)
from .selection import explained, spent_per_edge
from .states import Shape, ascending, check_arrays, require

_NAME = "cocs"
_SCOPES = ("pair", "edge", "global")
_MAX_EDGES = 2**16
_MAX_CELLS = 2**15
_LAYOUT = {
    "keys": np.int64,
    "counts": np.int64,
    "successes": np.int64,
    "low": np.float64,
    "high": np.float64,
    "made_for": np.int64,
}


@dataclass(frozen=True, slots=True, eq=False)
class _Cells:
    """Counters by key, sorted: int64[K] each."""

    keys: IntArray
    counts: IntArray
    successes: IntArray

    def lookup(self, keys: IntArray) -> tuple[IntArray, IntArray]:
        """Return counts and successes of these keys, 0 where never played."""
        at = np.searchsorted(self.keys, keys)
        known = np.zeros(len(keys), dtype=np.bool_)
        inside = at < len(self.keys)
        known[inside] = self.keys[at[inside]] == keys[inside]
        counts, successes = np.zeros((2, len(keys)), dtype=np.int64)
        counts[known] = self.counts[at[known]]
        successes[known] = self.successes[at[known]]
        return counts, successes

    def with_plays(self, keys: IntArray, success: BoolArray) -> "_Cells":
        """Return the counters after one more play of each of these keys."""
        merged, inverse = np.unique(np.concatenate((self.keys, keys)), return_inverse=True)
        counts, successes = np.zeros((2, len(merged)), dtype=np.int64)
        old = len(self.keys)
        counts[inverse[:old]] = self.counts
        successes[inverse[:old]] = self.successes
        np.add.at(counts, inverse[old:], 1)
        np.add.at(successes, inverse[old:], success.astype(np.int64))
        return _Cells(merged, counts, successes)


class CocsPolicy:
    """COCS with shared counters.

    Args:
        scope: Who shares a counter: ``pair`` (nobody), ``edge`` or ``global``.
        k_scale: Factor of K(t).
        logs: Scale rates and bandwidths by their logarithms, which spread more evenly.
        horizon: T, the number of rounds that h is made for.
        h: Cells per dimension; None computes ceil(T^(1/(3 alpha + D))).
        alpha: Hoelder exponent of the success probability.
        features: The D context features, each scaled by its running bounds.
        solver: Name of the solver of P2, or a solver.
    """

    def __init__(
        self,
        *,
        scope: str = "global",
        k_scale: float = 0.005,
        logs: bool = True,
        horizon: int = 1000,
        h: int | None = None,
        alpha: float = 1.0,
        features: Sequence[str] = ("download_bps", "compute"),
        solver: str | Solver = "density",
    ) -> None:
        _require(scope in _SCOPES, "scope", scope, f"must be one of {', '.join(_SCOPES)}")
        _require(k_scale >= 0, "k_scale", k_scale, "must be >= 0")
        _require(horizon >= 1, "horizon", horizon, "must be >= 1")
        _require(h is None or h >= 1, "h", h, "must be >= 1")
        _require(0 < alpha <= 1, "alpha", alpha, "must be in (0, 1]")
        _require(0 < len(set(features)) == len(features), "features", features, "names each once")
        self._scope, self._k_scale, self._logs = scope, k_scale, logs
        self._features = tuple(features)
        dimensions = len(self._features)
        self._h = h or math.ceil(horizon ** (1 / (3 * alpha + dimensions)) - 1e-9)
        _require(self._h**dimensions <= _MAX_CELLS, "h", self._h, "makes too many cells")
        self._z = 2 * alpha / (3 * alpha + dimensions)
        self._solver = create_solver(solver) if isinstance(solver, str) else solver
        empty = np.empty(0, dtype=np.int64)
        self._cells = _Cells(empty, empty, empty)
        self._low = np.full(dimensions, np.inf)
        self._high = np.full(dimensions, -np.inf)

    @property
    def needs(self) -> frozenset[str]:
        """The context features."""
        return frozenset(self._features)

    def select(self, view: RoundView, rng: np.random.Generator) -> Selection:
        """Explore while any pair is under-explored, otherwise solve P2 with p."""
        counts, successes = self._cells.lookup(self._keys(view, self._contexts(view)))
        rate = successes / np.maximum(counts, 1)
        limit = self._k_scale * view.round**self._z * math.log(view.round)
        under = (counts <= limit) & view.eligible
        none = np.empty(0, dtype=np.int64)
        first = self._solve(view, under, np.ones(len(under)), none, rng)
        rest = self._solve(view, ~under & view.eligible, rate, first, rng)
        pairs = np.concatenate((first, rest))
        scores = np.where(counts > 0, rate, np.nan)
        notes = {"explore": float(under.any()), "under_explored": float(under.sum()), "k": limit}
        return explained(view, pairs, scores, notes)

    def learn(self, feedback: Feedback) -> None:
        """Count every played pair in the cell it was seen in, then move the bounds."""
        contexts = self._contexts(feedback.view)
        keys = self._keys(feedback.view, contexts)[feedback.pairs]
        self._cells = self._cells.with_plays(keys, feedback.X)
        if len(contexts):
            self._low = np.minimum(self._low, contexts.min(axis=0))
            self._high = np.maximum(self._high, contexts.max(axis=0))

    def state(self) -> State:
        """Return counters and bounds."""
        return {
            "keys": self._cells.keys.copy(),
            "counts": self._cells.counts.copy(),
            "successes": self._cells.successes.copy(),
            "low": self._low.copy(),
            "high": self._high.copy(),
            "made_for": self._made_for(),
        }

    def restore(self, state: State) -> None:
        """Continue from `state` exactly.

        Raises:
            StateError: The state is of another policy or other features.
        """
        arrays = checked_state(_NAME, state, _LAYOUT)
        made = np.array_equal(arrays["made_for"], self._made_for())
        require(_NAME, made, "is of another scope, h, logs or features")
        low, high = arrays["low"].astype(np.float64), arrays["high"].astype(np.float64)
        shapes: dict[str, Shape] = dict.fromkeys(("keys", "counts", "successes"), ("cells",))
        check_arrays(_NAME, arrays, shapes)
        keys, counts, successes = (arrays[key].astype(np.int64) for key in shapes)
        sane = ascending(keys) and bool((successes <= counts).all())
        require(_NAME, sane, "has counters that are none")
        bounds = low.shape == high.shape == self._low.shape
        fresh = bounds and bool(np.isposinf(low).all() and np.isneginf(high).all())
        known = bounds and bool((np.isfinite(low) & np.isfinite(high) & (low <= high)).all())
        require(_NAME, fresh or known, "has bounds that are none")
        self._cells = _Cells(keys, counts, successes)
        self._low, self._high = low, high

    def _made_for(self) -> IntArray:
        """Return what the meaning of the counters depends on, int64[4]."""
        features = crc32("\n".join(self._features).encode())
        scope = _SCOPES.index(self._scope)
        return np.array([scope, self._h, self._logs, features], dtype=np.int64)

    def _contexts(self, view: RoundView) -> FloatArray:
        """Return the raw contexts, float64[P, D]."""
        return np.column_stack([self._context(view, name) for name in self._features])

    def _context(self, view: RoundView, name: str) -> FloatArray:
        """Return one context of every pair, float64[P]."""
        column = view.feature(name)
        if self._logs and name.endswith(("_bps", "_hz")):
            return np.asarray(np.log10(np.maximum(column, 1.0)), dtype=np.float64)
        return column

    def _keys(self, view: RoundView, contexts: FloatArray) -> IntArray:
        """Return the counter key of every pair: client, edge and cell in one int64.

        What the scope does not tell apart is 0.
        """
        if len(view.edge_budget) > _MAX_EDGES:
            raise ParameterError(_NAME, "edges", f"are more than {_MAX_EDGES}")
        width = self._high - self._low
        known = np.isfinite(width) & (width > 0)
        scaled = np.zeros(contexts.shape)
        scaled[:, known] = (contexts[:, known] - self._low[known]) / width[known]
        index = np.clip((scaled * self._h).astype(np.int64), 0, self._h - 1)
        weights = self._h ** np.arange(len(self._features), dtype=np.int64)
        cell = index @ weights
        if self._scope == "global":
            return np.asarray(cell, dtype=np.int64)
        owner = view.pair_edge.astype(np.int64)
        if self._scope == "pair":
            owner += view.pair_client.astype(np.int64) * _MAX_EDGES
        return np.asarray(owner * _MAX_CELLS + cell, dtype=np.int64)

    def _solve(
        self,
        view: RoundView,
        wanted: BoolArray,
        value: FloatArray,
        chosen: IntArray,
        rng: np.random.Generator,
    ) -> IntArray:
        """Solve P2 over the wanted pairs with what `chosen` leaves; ties by chance."""
        busy = np.zeros(len(view.client_price), dtype=np.bool_)
        busy[view.pair_client[chosen]] = True
        spent = np.asarray(spent_per_edge(view, chosen), dtype=np.int64)
        return assign(
            view,
            value,
            self._solver,
            rng,
            wanted=wanted & ~busy[view.pair_client],
            budget=view.edge_budget - spent,
        )


def _require(holds: bool, parameter: str, value: object, rule: str) -> None:
    """Refuse a parameter that breaks its rule."""
    if not holds:
        raise ParameterError(_NAME, parameter, f"is {value!r}: {rule}")
