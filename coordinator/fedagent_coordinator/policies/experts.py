"""What the experts of `adaptive` know: what an uplink must do, and the odds that it does.

``tau = bits / download + work / compute + wait + bits / upload``, with bits, work and wait
learnt from updates that arrived, the work client by client, so that who overstates its compute
is soon known. The chance of an update in time is ``exp(-exp(x theta))``, exact for a link with
Rayleigh fading, or ``1 / (1 + exp(x theta))`` (logit). Beliefs about theta are a Gaussian that
outcomes sharpen by Newton's method, and that fades towards the prior.
"""

import math
from dataclasses import dataclass

import numpy as np

from .base import BoolArray, Feedback, FloatArray, IntArray, RoundView
from .state import ArrayState, floats, number

Rows = IntArray | slice
EVERY = slice(None)
_SHRINK = 1.0
"""Weight of the common work against a client's own, in observations."""
_FADE = 0.995
_MIN_RATE, _MIN_PACE = 1.0, 1e-6
"""Reports below are taken as this: a device that reports nonsense must not turn signs."""
_FLOOR = 0.02
"""Share of the deadline below which nothing is left for the upload."""
_CLIP = (-12.0, 5.0)
_STEPS = 3


class Slack(ArrayState):
    """Learnt times of a round's stages; whatever is not known yet is taken as nothing."""

    slack_bits = number(least=0)
    slack_wait = number(least=0)
    slack_work = floats("clients", least=0)
    slack_count = floats("clients", least=0)

    def required(self, view: RoundView, rows: Rows = EVERY) -> tuple[FloatArray, FloatArray]:
        """Return seconds left for the upload and the log of the demand it makes, float64[R].

        The demand is the required rate; with the feature ``bandwidth_hz`` it is the noise
        that this rate has to overcome, ``(2^(rate/b) - 1) b``, by Shannon.
        """
        left = np.full(len(view.pair_client), view.deadline_s)[rows]
        if not math.isfinite(view.deadline_s):
            return left, np.zeros(len(left))
        left = left - self.slack_wait - self._download(view, rows) - self._compute(view, rows)
        room = np.maximum(left, _FLOOR * view.deadline_s)
        rate = self._bits_or(view) / room
        band = optional(view, "bandwidth_hz", rows)
        if band is None:
            return left, np.log(rate)
        band = np.where(band > 0, band, 1.0)
        noise = np.expm1(np.minimum(rate / band, 400.0) * math.log(2.0)) * band
        return left, np.log(noise)

    def hopeless(self, left: FloatArray, deadline_s: float) -> BoolArray:
        """Return bool[R]: pairs with no time left for their upload; none without a deadline."""
        if not math.isfinite(deadline_s):
            return np.zeros(len(left), dtype=np.bool_)
        return left <= _FLOOR * deadline_s

    def learn(self, feedback: Feedback) -> None:
        """Take in the durations of what arrived."""
        view = feedback.view
        self.grow(clients=len(view.client_price))
        self.slack_work *= _FADE
        self.slack_count *= _FADE
        known = np.isfinite(feedback.dt_s) & np.isfinite(feedback.lc_s)
        rows = feedback.pairs[known]
        if not len(rows):
            return
        rate = optional(view, "download_bps", rows)
        if rate is not None:
            seen = float(np.median(feedback.dt_s[known] * np.maximum(rate, _MIN_RATE)))
            self.slack_bits = 0.9 * self.slack_bits + 0.1 * seen if self.slack_bits else seen
        speed = optional(view, "compute", rows)
        pace = 1.0 if speed is None else np.maximum(speed, _MIN_PACE)
        work = self._computing(feedback, known) * pace
        clients = view.pair_client[rows]
        np.add.at(self.slack_work, clients, np.where(np.isfinite(work), work, 0.0))
        np.add.at(self.slack_count, clients, np.isfinite(work).astype(np.float64))

    def _computing(self, feedback: Feedback, known: BoolArray) -> FloatArray:
        """Return seconds of computation, and learn how long a round waits beside it.

        Waits for arrivals do not grow when a device has less compute. A device that does not
        report the computation has computed all the time.
        """
        local = feedback.lc_s[known]
        if feedback.train_s is None:
            return local
        reported = feedback.train_s[known]
        usable = np.isfinite(reported) & (reported > 0)
        if not usable.any():
            return local
        computing = np.where(usable, np.minimum(reported, local), local)
        wait = float(np.median(local - computing))
        self.slack_wait = 0.9 * self.slack_wait + 0.1 * wait if self.slack_wait else wait
        return computing

    def _bits_or(self, view: RoundView) -> float:
        return self.slack_bits or 8.0 * view.model_bytes or 1.0

    def _download(self, view: RoundView, rows: Rows) -> FloatArray | float:
        rate = optional(view, "download_bps", rows)
        if rate is None:
            return 0.0
        return self._bits_or(view) / np.maximum(rate, _MIN_RATE)

    def _compute(self, view: RoundView, rows: Rows) -> FloatArray | float:
        total = float(self.slack_count.sum())
        if total <= 0:
            return 0.0
        common = float(self.slack_work.sum()) / total
        clients = view.pair_client[rows]
        known = clients < len(self.slack_work)
        at = np.where(known, clients, 0)
        count = np.where(known, self.slack_count[at], 0.0)
        mine = (np.where(known, self.slack_work[at], 0.0) + _SHRINK * common) / (count + _SHRINK)
        speed = optional(view, "compute", rows)
        return mine if speed is None else mine / np.maximum(speed, _MIN_PACE)


def optional(view: RoundView, name: str, rows: Rows = EVERY) -> FloatArray | None:
    """Return a feature of some pairs, float64[R], or None if it is not reported.

    A value that is missing becomes the median of the others, which moves nothing.
    """
    if name not in view.feature_names:
        return None
    index = view.feature_names.index(name)
    column: FloatArray = view.pair_features[rows, index].astype(np.float64)
    bad = ~np.isfinite(column)
    if not bad.any():
        return column
    if bad.all():
        return None
    column[bad] = np.median(column[~bad])
    return column


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Prior:
    """What is believed before anything is seen; `keep` of the evidence is left after a round."""

    mean: FloatArray
    precision: FloatArray
    keep: float
    logit: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Belief:
    """A Gaussian over theta: float64[D] and its precision, float64[D, D]."""

    theta: FloatArray
    precision: FloatArray


def start(prior: Prior) -> Belief:
    """Return the belief before anything is seen."""
    return Belief(prior.mean.copy(), np.diag(prior.precision))


def chance(prior: Prior, theta: FloatArray, x: FloatArray) -> FloatArray:
    """Return the probability of success of every row, float64[P]."""
    eta = np.clip(x @ theta, *_CLIP)
    np.exp(eta, out=eta)
    return 1.0 / (1.0 + eta) if prior.logit else np.exp(-eta, out=eta)


def updated(prior: Prior, belief: Belief, x: FloatArray, success: BoolArray) -> Belief:
    """Return the belief after one round's outcomes, x float64[S, D] and success bool[S]."""
    if not len(x):
        return belief
    k = prior.keep
    precision = k * belief.precision + (1 - k) * np.diag(prior.precision)
    pull = k * belief.precision @ belief.theta + (1 - k) * prior.precision * prior.mean
    centre = np.linalg.solve(precision, pull)
    theta = centre
    for _ in range(_STEPS):
        slope, weight = _derivatives(np.clip(x @ theta, *_CLIP), success, logit=prior.logit)
        hessian = precision + (x * weight[:, None]).T @ x
        theta = theta + np.linalg.solve(hessian, x.T @ slope - precision @ (theta - centre))
    return Belief(np.asarray(theta, dtype=np.float64), hessian)


def definite(precision: FloatArray) -> bool:
    """Return whether a matrix, float64[D, D], is some Gaussian's precision."""
    try:
        np.linalg.cholesky(precision)
    except np.linalg.LinAlgError:
        return False
    return True


def _derivatives(
    eta: FloatArray, success: BoolArray, *, logit: bool
) -> tuple[FloatArray, FloatArray]:
    """Return the slope of the log-likelihood in eta and its Fisher weight, float64[S] each."""
    rate = np.exp(eta)
    if logit:
        fails = rate / (1.0 + rate)
        return (~success) - fails, np.maximum(fails * (1.0 - fails), 1e-6)
    hazard = rate * np.exp(-rate) / -np.expm1(-rate)
    return np.where(success, -rate, hazard), np.maximum(rate * hazard, 1e-6)
