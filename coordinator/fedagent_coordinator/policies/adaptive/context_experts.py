"""What a pair's context promises: three experts that know nothing of who the device is.

Two regressions on what the deadline asks of the uplink (`demand`), with a long and a short
memory, and bins of every feature (`feature_bins`). Their average follows their log-loss.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fedagent_coordinator.policies.base import BoolArray, Feedback, FloatArray, IntArray, RoundView
from fedagent_coordinator.policies.state import ArrayState, floats

from .feature_bins import BinnedContext, Bins
from .regression import Belief, Prior, chance, definite, start, updated
from .upload_demand import EVERY, Reported, Rows, UploadDemand

LOW = 1e-3
"""No forecast is surer than this: one surprise must not silence an expert."""
_SIGNAL = "signal_dbm"
_LEVELS = ("distance_km", "upload_bps", "download_bps", _SIGNAL)
_PER_DB = math.log(10.0) / 10.0
_WIDTH = 6
"""Columns of each regression; their priors below are what physics says of an unknown radio:
more demand and distance, less success; more rate and signal, more."""
_PHYSICS = Prior(
    mean=np.array([-1.2, 1.0, 1.9, -1.0, 0.0, -1.0]),
    precision=np.array([0.25, 4.0, 1.0, 1.0, 1.0, 1.0]),
    keep=1.0,
)
_BINS_KEEP = 0.998
"""What a round leaves of the bins' evidence: 500 rounds count."""
_AMONG = 2048
"""Pairs of a view from which the range of what is reported is learnt, about."""
_WHOLE = 1 << 15
"""Pairs of a view that is read once, and as a whole: who decides on it learns from it too."""
CONTEXT = ("long", "short", "bins")


@dataclass(frozen=True, slots=True, eq=False)
class Context:
    """What the experts read of R pairs."""

    reported: Reported
    demand: FloatArray  # float64[R]
    physics: FloatArray  # float64[6, R]
    bins: Bins  # uint8[columns, R]
    hopeless: BoolArray  # bool[R]

    def take(self, rows: IntArray) -> "Context":
        """Return the same of some of its pairs."""
        return Context(
            self.reported.take(rows),
            self.demand[rows],
            self.physics[:, rows],
            self.bins[:, rows],
            self.hopeless[rows],
        )


def mixed(
    weights: FloatArray, forecasts: FloatArray, success: BoolArray, counts: FloatArray, share: float
) -> FloatArray:
    """Return the weights after outcomes: by log-loss, and a share for all alike.

    `forecasts` is float64[E, S]; `counts`, float64[S], is how much each outcome is evidence.
    """
    gain = np.where(success, np.log(forecasts), np.log1p(-forecasts)) @ counts
    weights = np.asarray(weights * np.exp(gain - gain.max()), dtype=np.float64)
    mixed_in = (1 - share) * weights / weights.sum() + share / len(weights)
    return np.asarray(mixed_in, dtype=np.float64)


class ContextExperts(ArrayState):
    """Chances of success by the context alone."""

    parts = ("_demand", "_bins")
    mixture = floats(len(CONTEXT), start=1.0 / len(CONTEXT))
    _centre = floats(1 + len(_LEVELS), start=np.nan, nan=True)
    _theta = floats(2, _WIDTH)
    _precision = floats(2, _WIDTH, _WIDTH)

    def __init__(self, memory: float, share: float) -> None:
        short = Prior(mean=_PHYSICS.mean, precision=_PHYSICS.precision, keep=1.0 - 1.0 / memory)
        self._priors = (_PHYSICS, short)
        self._theta = np.array([start(prior).theta for prior in self._priors])
        self._precision = np.array([start(prior).precision for prior in self._priors])
        self._share = share
        self._demand, self._bins = UploadDemand(), BinnedContext(_BINS_KEEP)
        self._last: tuple[RoundView, Context] | None = None  # until something is learnt

    def forecasts(self, context: Context) -> FloatArray:
        """Return float64[3, R], the forecast of every expert."""
        promised = np.empty((len(CONTEXT), len(context.hopeless)))
        by_physics = promised[:2]
        chance(_PHYSICS, np.matmul(self._theta, context.physics, out=by_physics))
        np.copyto(by_physics, LOW, where=context.hopeless)  # nothing can arrive
        promised[-1] = self._bins.chance(context.bins)
        return promised.clip(LOW, 1 - LOW, out=promised)

    def learn(
        self, context: Context, promised: FloatArray, success: BoolArray, weight: FloatArray
    ) -> None:
        """Weigh the experts by their forecasts, float64[3, S], then teach them."""
        self.mixture = mixed(self.mixture, promised, success, weight, self._share)
        possible = ~context.hopeless
        by_physics = context.physics.T[possible], success[possible], weight[possible]
        for i, prior in enumerate(self._priors):
            belief = updated(prior, Belief(self._theta[i], self._precision[i]), *by_physics)
            self._theta[i], self._precision[i] = belief.theta, belief.precision
        self._bins.learn(context.bins, success, weight)

    def observe(self, feedback: Feedback, context: Context) -> None:
        """Learn durations of what was read of the ordered pairs, and the range of all reports."""
        view = feedback.view
        some = slice(None, None, 1 + len(view.pair_client) // _AMONG)
        if len(view.pair_client) > _WHOLE:
            reported = Reported.of(view, some)
            demand = self._demand.required(reported)[1]
        else:
            whole = self.read(view, EVERY)
            reported, demand = whole.reported.take(some), whole.demand[some]
        self._bins.observe(reported, demand)
        self._demand.learn(feedback, context.reported)
        self._last = None

    def read(self, view: RoundView, rows: Rows) -> Context:
        """Return what the experts read; what is not reported stays at its centre."""
        if len(view.pair_client) > _WHOLE:
            return self._read(view, rows)
        if self._last is None or self._last[0] is not view:
            self._last = view, self._read(view, EVERY)
        whole = self._last[1]
        return whole.take(rows) if isinstance(rows, np.ndarray) else whole

    def _read(self, view: RoundView, rows: Rows) -> Context:
        reported = Reported.of(view, rows)
        left, demand = self._demand.required(reported)
        centre = np.where(np.isfinite(self._centre), self._centre, 0.0)
        physics = np.zeros((_WIDTH, len(left)))
        physics[0] = 1.0
        np.subtract(demand, centre[0], out=physics[1])
        physics[1].clip(-8.0, 12.0, out=physics[1])
        for k in range(1, len(centre)):
            column = _level(reported, k)
            if column is not None:
                np.subtract(column, centre[k], out=physics[1 + k])
                physics[1 + k].clip(-8.0, 8.0, out=physics[1 + k])
        hopeless = self._demand.hopeless(left, view.deadline_s)
        bins = self._bins.read(reported, demand)
        return Context(reported, demand, physics, bins, hopeless)

    def settle_centre(self, view: RoundView) -> None:
        """Take the first medians of what is reported as the origin."""
        if len(view.pair_client) == 0:
            return
        for k in np.flatnonzero(~np.isfinite(self._centre)).tolist():
            if not (_LEVELS[k - 1] in view.feature_names if k else math.isfinite(view.deadline_s)):
                continue
            reported = Reported.of(view)
            column = _level(reported, k) if k else self._demand.required(reported)[1]
            if column is not None:
                self._centre[k] = float(np.median(column))
                self._last = None

    def restored(self) -> None:
        """Read anew."""
        self._last = None

    def problems(self) -> Iterator[str]:
        """Refuse weights that are no shares, and beliefs that no Gaussian has."""
        if not is_shares(self.mixture):
            yield "has weights that are no shares"
        for i, precision in enumerate(self._precision):
            if not definite(precision):
                yield f"precision {i} is none"


def _level(reported: Reported, k: int) -> FloatArray | None:
    """Return the logarithm of what is reported of the link, of the k-th kind from 1."""
    name = _LEVELS[k - 1]
    column = reported.optional(name)
    if column is None:
        return None
    return column * _PER_DB if name == _SIGNAL else np.log(np.maximum(column, 1e-9))


def is_shares(weights: FloatArray) -> bool:
    """Return whether these are positive and sum to 1."""
    return bool((weights > 0).all()) and abs(float(weights.sum()) - 1) < 1e-6
