"""What a pair's context promises: four experts that know nothing of who the device is.

Two regressions on what the deadline asks of the uplink (`slack`), with a long and a short
memory; a logistic one, with curvature, on demand, rate and compute; and bins of every feature
(`bins`). Their average follows their log-loss.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from .base import BoolArray, Feedback, FloatArray, IntArray, RoundView
from .bins import BinnedContext
from .regression import Belief, Prior, chance, definite, start, updated
from .slack import EVERY, Rows, Slack, optional
from .state import ArrayState, floats

LOW = 1e-3
"""No forecast is surer than this: one surprise must not silence an expert."""
_LOGS = ("distance_km", "upload_bps", "download_bps")
_PER_DB = math.log(10.0) / 10.0
_WIDTH = 7
_PHYSICS = Prior(
    mean=np.array([-1.2, 1.0, 1.9, -1.0, 0.0, -1.0, 0.0]),
    precision=np.array([0.25, 4.0, 1.0, 1.0, 1.0, 1.0, 1.0]),
    keep=1.0,
)
_CURVED = Prior(
    mean=np.array([-1.0, 1.5, -1.0, -0.5, 0.0, 0.0, 0.0]),
    precision=np.array([0.25, 0.25, 0.25, 0.25, 0.5, 0.5, 0.5]),
    keep=0.998,
    logit=True,
)
_BINS_KEEP = 0.998
_AMONG = 2048
"""Pairs of a view from which the range of what is reported is learnt, about."""
CONTEXT = ("long", "short", "curved", "bins")


@dataclass(frozen=True, slots=True, eq=False)
class Context:
    """What the experts read of R pairs: float64[R, 7] twice, int64[R, columns], bool[R]."""

    physics: FloatArray
    curved: FloatArray
    bins: IntArray
    hopeless: BoolArray


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

    parts = ("_slack", "_bins")
    mixture = floats(len(CONTEXT), start=1.0 / len(CONTEXT))
    _centre = floats(2 + len(_LOGS), start=np.nan, nan=True)
    _theta = floats(3, _WIDTH)
    _precision = floats(3, _WIDTH, _WIDTH)

    def __init__(self, memory: float, share: float) -> None:
        short = Prior(mean=_PHYSICS.mean, precision=_PHYSICS.precision, keep=1.0 - 1.0 / memory)
        self._priors = (_PHYSICS, short, _CURVED)
        self._theta = np.array([start(prior).theta for prior in self._priors])
        self._precision = np.array([start(prior).precision for prior in self._priors])
        self._share = share
        self._slack, self._bins = Slack(), BinnedContext(_BINS_KEEP)

    def forecasts(self, context: Context) -> FloatArray:
        """Return float64[4, R], the forecast of every expert."""
        promised = np.empty((len(CONTEXT), len(context.hopeless)))
        for i, prior in enumerate(self._priors):
            x = context.curved if prior.logit else context.physics
            promised[i] = chance(prior, x @ self._theta[i])
            if not prior.logit:
                promised[i][context.hopeless] = LOW
        promised[-1] = self._bins.chance(context.bins)
        return np.clip(promised, LOW, 1 - LOW, out=promised)

    def learn(
        self, context: Context, promised: FloatArray, success: BoolArray, weight: FloatArray
    ) -> None:
        """Weigh the experts by their forecasts, float64[4, S], then teach them."""
        self.mixture = mixed(self.mixture, promised, success, weight, self._share)
        possible = ~context.hopeless
        for i, prior in enumerate(self._priors):
            some = EVERY if prior.logit else possible
            x = (context.curved if prior.logit else context.physics)[some]
            belief = Belief(self._theta[i], self._precision[i])
            belief = updated(prior, belief, x, success[some], weight[some])
            self._theta[i], self._precision[i] = belief.theta, belief.precision
        self._bins.learn(context.bins, success, weight)

    def observe(self, feedback: Feedback) -> None:
        """Learn durations, and the range of what is reported."""
        view = feedback.view
        some = slice(None, None, 1 + len(view.pair_client) // _AMONG)
        self._bins.observe(view, some, self._slack.required(view, some)[1])
        self._slack.learn(feedback)

    def read(self, view: RoundView, rows: Rows) -> Context:
        """Return what the experts read; what is not reported stays at its centre."""
        left, demand = self._slack.required(view, rows)
        centre = np.where(np.isfinite(self._centre), self._centre, 0.0)
        physics = np.zeros((len(left), _WIDTH))
        physics[:, 0] = 1.0
        physics[:, 1] = np.clip(demand - centre[0], -8.0, 12.0)
        for k, column in self._levels(view, rows):
            physics[:, 1 + k] = np.clip(column - centre[k], -8.0, 8.0)
        need, rate = physics[:, 1] / 2.0, physics[:, 4] / 2.0
        speed = optional(view, "compute", rows)
        pace = np.zeros(len(left)) if speed is None else np.clip((speed - 2.0) / 2.0, -2.0, 4.0)
        squares = (need * need, need * rate, rate * rate)
        curved = np.stack((np.ones(len(left)), need, rate, pace, *squares), axis=1)
        hopeless = self._slack.hopeless(left, view.deadline_s)
        return Context(physics, curved, self._bins.indices(view, rows, demand), hopeless)

    def settle_centre(self, view: RoundView) -> None:
        """Take the first medians of what is reported as the origin."""
        if len(view.pair_client) == 0:
            return
        if not np.isfinite(self._centre[0]) and np.isfinite(view.deadline_s):
            self._centre[0] = float(np.median(self._slack.required(view)[1]))
        if np.isfinite(self._centre).all():
            return
        for k, column in self._levels(view, EVERY):
            if not np.isfinite(self._centre[k]):
                self._centre[k] = float(np.median(column))

    def problems(self) -> Iterator[str]:
        """Refuse weights that are no shares, and beliefs that no Gaussian has."""
        if not is_shares(self.mixture):
            yield "has weights that are no shares"
        for i, precision in enumerate(self._precision):
            if not definite(precision):
                yield f"precision {i} is none"

    def _levels(self, view: RoundView, rows: Rows) -> Iterator[tuple[int, FloatArray]]:
        """Yield the logarithms of what is reported of the link, and their positions."""
        for k, name in enumerate(_LOGS, start=1):
            column = optional(view, name, rows)
            if column is not None:
                yield k, np.log(np.maximum(column, 1e-9))
        signal = optional(view, "signal_dbm", rows)
        if signal is not None:
            yield len(_LOGS) + 1, signal * _PER_DB


def is_shares(weights: FloatArray) -> bool:
    """Return whether these are positive and sum to 1."""
    return bool((weights > 0).all()) and abs(float(weights.sum()) - 1) < 1e-6
