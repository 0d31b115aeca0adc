"""What a deadline asks of the uplink, by the times of a round's other stages.

``tau = bits / download + work / compute + wait + bits / upload``, with bits, work and wait
learnt from updates that arrived, the work client by client, so that who overstates its compute
is soon known.
"""

import math

import numpy as np

from fedagent_coordinator.policies.base import BoolArray, Feedback, FloatArray, IntArray, RoundView
from fedagent_coordinator.policies.state import ArrayState, floats, grown, number

Rows = IntArray | slice
EVERY = slice(None)
_SHRINK = 1.0
"""Weight of the usual work against a client's own, in observations."""
_FADE, _FADED = 0.995, 1e-3
"""Of a client's observations in every round, and what is left of one when it counts no more."""
_AMONG = 4096
"""Pairs whose median stands for values that are missing, about."""
_MIN_RATE, _MIN_PACE = 1.0, 1e-6
"""Reports below are taken as this: a device that reports nonsense must not turn signs."""
_MOST_WORK = 10.0
"""Times the median client's work that one client's counts in the usual work."""
_FLOOR = 0.02
"""Share of the deadline below which nothing is left for the upload."""


class UploadDemand(ArrayState):
    """Learnt times of a round's stages; whatever is not known yet is taken as nothing."""

    stage_bits = number(least=0)
    stage_wait_s = number(least=0)
    stage_usual_work = number(least=0)  # a round's work, of all clients
    stage_work = floats("clients", least=0)
    stage_count = floats("clients", least=0)
    _works: FloatArray | None = None  # what is expected of each client; until something is learnt

    def required(self, view: RoundView, rows: Rows = EVERY) -> tuple[FloatArray, FloatArray]:
        """Return seconds left for the upload and the log of the demand it makes, float64[R].

        The demand is the required rate; with the feature ``bandwidth_hz`` it is the noise
        that this rate has to overcome, ``(2^(rate/b) - 1) b``, by Shannon.
        """
        left = np.full(len(view.pair_client[rows]), view.deadline_s)
        if not math.isfinite(view.deadline_s):
            return left, np.zeros(len(left))
        left -= self.stage_wait_s
        left -= self._download(view, rows)
        left -= self._compute(view, rows)
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
        view, self._works = feedback.view, None
        self.grow(clients=len(view.client_price))
        self.stage_work *= _FADE
        self.stage_count *= _FADE
        known = np.isfinite(feedback.dt_s) & np.isfinite(feedback.lc_s)
        rows = feedback.pairs[known]
        if not len(rows):
            return
        rate = optional(view, "download_bps", rows)
        if rate is not None:
            seen = _median(feedback.dt_s[known] * np.maximum(rate, _MIN_RATE))
            self.stage_bits = 0.9 * self.stage_bits + 0.1 * seen if self.stage_bits else seen
        speed = optional(view, "compute", rows)
        pace = 1.0 if speed is None else np.maximum(speed, _MIN_PACE)
        work = self._computing(feedback, known) * pace
        clients, finite = view.pair_client[rows], np.isfinite(work)
        np.add.at(self.stage_work, clients, np.where(finite, work, 0.0))
        np.add.at(self.stage_count, clients, finite.astype(np.float64))
        told = self.stage_count > _FADED
        if told.any():
            count = self.stage_count[told]
            work = self.stage_work[told] / count
            # One client that claims a huge compute must not decide the mean.
            worked = np.sort(work[work > 0])
            if len(worked):  # of two the smaller: neither may lift the bound for itself
                work = np.minimum(work, _MOST_WORK * worked[(len(worked) - 1) // 2])
            self.stage_usual_work = float(work @ count / count.sum())

    def restored(self) -> None:
        """Forget what followed from the state before."""
        self._works = None

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
        wait = _median(local - computing)
        self.stage_wait_s = 0.9 * self.stage_wait_s + 0.1 * wait if self.stage_wait_s else wait
        return computing

    def _bits_or(self, view: RoundView) -> float:
        return self.stage_bits or 8.0 * view.model_bytes or 1.0

    def _download(self, view: RoundView, rows: Rows) -> FloatArray | float:
        rate = optional(view, "download_bps", rows)
        if rate is None:
            return 0.0
        return self._bits_or(view) / np.maximum(rate, _MIN_RATE)

    def _compute(self, view: RoundView, rows: Rows) -> FloatArray:
        size = len(view.client_price)
        if self._works is None or len(self._works) < size:
            work, count = grown(self.stage_work, size), grown(self.stage_count, size)
            self._works = (work + _SHRINK * self.stage_usual_work) / (count + _SHRINK)
        mine: FloatArray = self._works[view.pair_client[rows]]
        speed = optional(view, "compute", rows)
        return mine if speed is None else mine / np.maximum(speed, _MIN_PACE)


def _median(values: FloatArray) -> float:
    """Return the median of some finite values: `np.median`, of few faster."""
    ranked, half = np.sort(values), len(values) // 2
    return float(ranked[half] if len(values) % 2 else (ranked[half - 1] + ranked[half]) / 2.0)


def optional(view: RoundView, name: str, rows: Rows = EVERY) -> FloatArray | None:
    """Return a feature of some pairs, float64[R], or None if it is not reported.

    A value that is missing becomes the median of the view's others, which moves nothing.
    """
    if name not in view.feature_names:
        return None
    index = view.feature_names.index(name)
    column: FloatArray = view.pair_features[rows, index].astype(np.float64)
    bad = ~np.isfinite(column)
    if not bad.any():
        return column
    # Of the same pairs whichever rows are asked for, so that a round is learnt as it was chosen.
    others = view.pair_features[:: 1 + len(view.pair_features) // _AMONG, index]
    others = others[np.isfinite(others)]
    if not len(others):
        others = view.pair_features[:, index]
        others = others[np.isfinite(others)]
    if not len(others):
        return None
    column[bad] = np.median(others)
    return column
