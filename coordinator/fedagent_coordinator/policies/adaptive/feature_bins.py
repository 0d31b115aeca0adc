"""Success by the context alone: a smooth step function of every reported feature.

An additive logistic regression on bins of each feature (a generalised additive model): it knows
no physics, so that it finds what physics does not say, such as "only middling compute". Bins
are quantiles of what was reported lately; neighbouring bins are alike a priori.
"""

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from fedagent_coordinator.policies.base import BoolArray, FloatArray
from fedagent_coordinator.policies.state import ArrayState, floats, ints

from .regression import Belief, Prior, chance, definite, updated
from .upload_demand import Reported

_FEATURES = 18
"""Columns at most: the demand, and as many features as agents report."""
_BINS = 8
_WIDTH = _BINS + 1  # the last is for values that are missing
_SIZE = 1 + _FEATURES * _WIDTH
_SAMPLE = 256
"""Reports of each feature that its quantiles are taken from, the oldest replaced first."""
_PER_ROUND = 16
"""Reports that the first rounds add; later rounds a quarter."""
_MOST = 4096
"""Outcomes of a round that are learnt from; more say nothing new of so few coefficients."""
Bins = npt.NDArray[np.uint8]


def _smooth() -> FloatArray:
    """Return float64[D, D]: bins near 0, and nearer to their neighbours."""
    one = np.eye(_WIDTH) * 0.3
    for b in range(_BINS - 1):
        one[b : b + 2, b : b + 2] += 2.0 * np.array([[1.0, -1.0], [-1.0, 1.0]])
    precision = np.eye(_SIZE) * 0.2
    for f in range(_FEATURES):
        rows = slice(1 + f * _WIDTH, 1 + (f + 1) * _WIDTH)
        precision[rows, rows] = one
    return precision


class BinnedContext(ArrayState):
    """Chances of success by bins of features."""

    features = ints("columns")  # checksum of the name of each column that is used
    sample = floats("columns", _SAMPLE, start=np.nan, nan=True)
    next_row = ints(1)
    bin_theta = floats(_SIZE)
    bin_precision = floats(_SIZE, _SIZE, start=lambda _self: _smooth())

    def __init__(self, keep: float) -> None:
        mean = np.zeros(_SIZE)
        mean[0] = -1.0
        self._prior = Prior(mean=mean, precision=_smooth(), keep=keep, logit=True)
        self._used = self._prior
        self.bin_theta = mean.copy()
        self._edges: FloatArray | None = None

    def chance(self, bins: Bins) -> FloatArray:
        """Return float64[R] for bins as `read` gives them."""
        eta = np.full(bins.shape[1], self.bin_theta[0])
        for column, its in zip(self.bin_theta[1:].reshape(-1, _WIDTH), bins, strict=False):
            eta += column.take(its)
        return chance(self._prior, eta)

    def read(self, reported: Reported, demand: FloatArray) -> Bins:
        """Return uint8[columns, R], the bin of each pair in every column."""
        if self._edges is None:
            self._edges = self._quantiles()
        values = self._columns(reported)
        bins = np.empty((len(self.features), len(demand)), dtype=np.uint8)
        if len(bins):
            bins[0] = _passed(demand[None], self._edges[:1])
            bins[1:] = _passed(values, self._edges[1:])
            bins[0, ~np.isfinite(demand)] = _BINS
            if not reported.whole or values is not reported.values:
                bins[1:][~np.isfinite(values)] = _BINS
        return bins

    def learn(self, bins: Bins, success: BoolArray, weight: FloatArray) -> None:
        """Take in outcomes of pairs with bins as `read` gives them."""
        some = slice(None, None, 1 + (len(success) - 1) // _MOST)
        bins, success, weight = bins[:, some], success[some], weight[some]
        # Coefficients of columns that nobody reports stay at their prior.
        used = slice(1 + len(bins) * _WIDTH)
        mean, precision = self._prior.mean[used], self._prior.matrix[used, used]
        if len(self._used.mean) != len(mean):
            self._used = replace(self._prior, mean=mean, precision=precision)
        x = np.zeros((len(success), used.stop))
        x[:, 0] = 1.0
        x[np.arange(len(x)), 1 + _WIDTH * np.arange(len(bins))[:, None] + bins] = 1.0
        belief = Belief(self.bin_theta[used], self.bin_precision[used, used])
        belief = updated(self._used, belief, x, success, weight)
        self.bin_theta[used], self.bin_precision[used, used] = belief.theta, belief.precision

    def observe(self, reported: Reported, demand: FloatArray) -> None:
        """Learn what is reported of some pairs of a view, and their demands."""
        names, known = _codes(reported.view.feature_names), set(self.features.tolist())
        new = [code for code in names if code not in known]
        if not len(self.features):
            new.insert(0, 0)
        new = new[: _FEATURES - len(self.features)]
        old = len(self.features)
        self.grow(columns=old + len(new))
        self.features[old:] = new
        begun = bool(np.isfinite(self.sample[0]).all()) if len(self.sample) else False
        count = _PER_ROUND // 4 if begun else _PER_ROUND
        at = (int(self.next_row[0]) + np.arange(count)) % _SAMPLE
        columns = np.concatenate((demand[None], self._columns(reported)))
        finite = np.isfinite(columns)
        columns[~finite] = np.nan  # which sorts last
        columns.sort(axis=1)
        sizes = finite.sum(axis=1)
        known = sizes.nonzero()[0]
        take = ((np.arange(count) + 0.5) / count * sizes[known, None]).astype(np.int64)
        self.sample[known[:, None], at] = columns[known[:, None], take]
        self.next_row = np.array([(at[-1] + 1) % _SAMPLE], dtype=np.int64)
        self._edges = None

    def _columns(self, reported: Reported) -> FloatArray:
        """Return float64[columns - 1, R], all but the demand; NaN where nothing is reported."""
        names = _codes(reported.view.feature_names)
        at = [names.get(code, len(names)) for code in self.features.tolist()[1:]]
        if at == list(range(len(names))):
            return reported.values
        nothing = np.full((1, len(reported.client)), np.nan)
        return np.concatenate((reported.values, nothing))[at]

    def restored(self) -> None:
        """Take the bins anew."""
        self._edges = None

    def problems(self) -> Iterator[str]:
        """Refuse beliefs that no Gaussian has."""
        if not definite(self.bin_precision):
            yield "bin_precision is none"
        if len(self.features) > _FEATURES:
            yield f"has more than {_FEATURES} columns"

    def _quantiles(self) -> FloatArray:
        """Return float64[columns, bins - 1], the edges; infinite where nothing was reported."""
        finite, shares = np.isfinite(self.sample), np.arange(1, _BINS) / _BINS
        if finite.all():
            return _quantiles_of(np.sort(self.sample, axis=1), shares)
        edges = np.full((len(self.features), _BINS - 1), np.inf)
        # Columns that were always reported have as many values: one call does for all of them.
        counts = finite.sum(axis=1)
        for count in set(counts.tolist()) - {0}:
            its = np.flatnonzero(counts == count)
            values = self.sample[its][finite[its]].reshape(len(its), count)
            edges[its] = _quantiles_of(np.sort(values, axis=1), shares)
        return edges


def _passed(values: FloatArray, edges: FloatArray) -> Bins:
    """Return uint8[C, R], how many of a column's edges, [C, Q], each of its values is above."""
    above = values[:, None, :] > edges[:, :, None]
    passed: Bins = above.view(np.uint8).sum(axis=1, dtype=np.uint8)
    return passed


def _quantiles_of(rows: FloatArray, shares: FloatArray) -> FloatArray:
    """Return float64[C, Q] of sorted rows, float64[C, n]: `np.quantile`, for few rows faster."""
    at = shares * (rows.shape[1] - 1)
    low = np.floor(at).astype(np.int64)
    high, part = np.minimum(low + 1, rows.shape[1] - 1), at - low
    below, above = rows[:, low], rows[:, high]
    step = above - below
    found = np.where(part < 0.5, below + step * part, above - step * (1.0 - part))
    return np.asarray(found, dtype=np.float64)


@lru_cache(maxsize=16)
def _codes(names: tuple[str, ...]) -> Mapping[int, int]:
    """Return where each feature is, by the checksum of its name."""
    return {zlib.crc32(name.encode()): k for k, name in enumerate(names)}
