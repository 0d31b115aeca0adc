"""What a deadline asks of the uplink, by the times of a round's other stages.

``tau = bits / download + work / compute + wait + bits / upload``, with bits, work and wait
learnt from updates that arrived, the work client by client, so that who overstates its compute
is soon known.
"""

import math
from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True, eq=False)
class Reported:
    """What agents report of R pairs, read once."""

    view: RoundView
    client: IntArray  # int64[R]
    values: FloatArray  # float64[F, R]; NaN where an agent did not report
    whole: bool  # nothing is missing

    @classmethod
    def of(cls, view: RoundView, rows: Rows = EVERY) -> "Reported":
        """Read some pairs of a view."""
        client = view.pair_client[rows].astype(np.int64)
        values = np.array(view.pair_features[rows].T, dtype=np.float64, order="C")
        return cls(view, client, values, bool(np.isfinite(values).all()))

    def take(self, rows: Rows | BoolArray) -> "Reported":
        """Return the same of some of its pairs."""
        return Reported(self.view, self.client[rows], self.values[:, rows], self.whole)

    def optional(self, name: str) -> FloatArray | None:
        """Return a feature, float64[R], or None if it is not reported.

        A value that is missing becomes the median of the view's others, which moves nothing.
        """
        if name not in self.view.feature_names:
            return None
        index = self.view.feature_names.index(name)
        column: FloatArray = self.values[index]
        if self.whole or not (bad := ~np.isfinite(column)).any():
            return column
        # Of the same pairs whichever are read, so that a round is learnt as it was chosen.
        every = self.view.pair_features[:, index]
        for others in (every[:: 1 + len(every) // _AMONG], every):
            finite = others[np.isfinite(others)]
            if len(finite):
                return np.where(bad, float(np.median(finite)), column)
        return None


class UploadDemand(ArrayState):
    """Learnt times of a round's stages; whatever is not known yet is taken as nothing."""

    stage_bits = number(least=0)
    stage_wait_s = number(least=0)
    stage_usual_work = number(least=0)  # a round's work, of all clients
    stage_work = floats("clients", least=0)
    stage_count = floats("clients", least=0)
    _works: FloatArray | None = None  # what is expected of each client; until something is learnt

    def required(self, reported: Reported) -> tuple[FloatArray, FloatArray]:
        """Return seconds left for the upload and the log of the demand it makes, float64[R].

        The demand is the required rate; with the feature ``bandwidth_hz`` it is the noise
        that this rate has to overcome, ``(2^(rate/b) - 1) b``, by Shannon.
        """
        view = reported.view
        if not math.isfinite(view.deadline_s):
            size = len(reported.client)
            return np.full(size, view.deadline_s), np.zeros(size)
        bits = self.stage_bits or 8.0 * view.model_bytes or 1.0
        rate = reported.optional("download_bps")
        download = 0.0 if rate is None else bits / np.maximum(rate, _MIN_RATE)
        left = view.deadline_s - self.stage_wait_s - download - self._compute(reported)
        demand = np.maximum(left, _FLOOR * view.deadline_s)
        np.divide(bits, demand, out=demand)
        band = reported.optional("bandwidth_hz")
        if band is not None:
            band = np.where(band > 0, band, 1.0)
            demand /= band
            np.minimum(demand, 400.0, out=demand)
            demand *= math.log(2.0)
            np.expm1(demand, out=demand)
            demand *= band
        return left, np.log(demand, out=demand)

    def hopeless(self, left: FloatArray, deadline_s: float) -> BoolArray:
        """Return bool[R]: pairs with no time left for their upload; none without a deadline."""
        return (left <= _FLOOR * deadline_s) & math.isfinite(deadline_s)

    def learn(self, feedback: Feedback, reported: Reported) -> None:
        """Take in the durations of what arrived, given what is reported of its pairs."""
        self._works = None
        self.grow(clients=len(feedback.view.client_price))
        self.stage_work *= _FADE
        self.stage_count *= _FADE
        known = np.isfinite(feedback.dt_s) & np.isfinite(feedback.lc_s)
        if not known.any():
            return
        reported = reported.take(known)
        rate = reported.optional("download_bps")
        if rate is not None:
            seen = _median(feedback.dt_s[known] * np.maximum(rate, _MIN_RATE))
            self.stage_bits = 0.9 * self.stage_bits + 0.1 * seen if self.stage_bits else seen
        speed = reported.optional("compute")
        pace = 1.0 if speed is None else np.maximum(speed, _MIN_PACE)
        work = self._computing(feedback, known) * pace
        clients, finite = reported.client, np.isfinite(work)
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

    def _compute(self, reported: Reported) -> FloatArray:
        size = len(reported.view.client_price)
        if self._works is None or len(self._works) < size:
            work, count = grown(self.stage_work, size), grown(self.stage_count, size)
            self._works = (work + _SHRINK * self.stage_usual_work) / (count + _SHRINK)
        mine: FloatArray = self._works[reported.client]
        speed = reported.optional("compute")
        return mine if speed is None else mine / np.maximum(speed, _MIN_PACE)


def _median(values: FloatArray) -> float:
    """Return the median of some finite values: `np.median`, of few faster."""
    ranked, half = np.sort(values), len(values) // 2
    return float(ranked[half] if len(values) % 2 else (ranked[half - 1] + ranked[half]) / 2.0)
