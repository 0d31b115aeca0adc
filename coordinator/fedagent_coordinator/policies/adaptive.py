"""`adaptive`, ours: four experts forecast a pair's success, P2 is solved with their average.

Two regressions on what the deadline asks of the uplink (`experts`), with a long and a short
memory; a logistic one on rate and compute; and the first, corrected by what each client made of
its forecasts lately (`Reliability`). Weights fall by log-loss and never reach zero. There is no
exploration bonus: contexts vary by themselves, and all fades. Page: docs/policies/adaptive.md.
"""

from collections.abc import Iterator
from functools import partial

import numpy as np

from fedagent_coordinator.solvers import Solver, assign
from fedagent_coordinator.solvers import create as create_solver
from fedagent_protocol.registry import require

from .base import BoolArray, Feedback, FloatArray, IndexArray, RoundView, Selection
from .experts import Belief, Prior, Rows, Slack, chance, definite, optional, start, updated
from .selection import explained
from .state import ArrayState, floats, grown, ints

_LOW = 1e-3
"""No forecast is surer than this: one surprise must not silence an expert."""
_BLOCK = 1 << 15
_LOGS = ("distance_km", "upload_bps", "download_bps")
_PHYSICS = Prior(
    mean=np.array([0.0, 1.0, 1.9, -1.0, 0.0]),
    precision=np.array([0.04, 4.0, 1.0, 1.0, 1.0]),
    keep=1.0,
)
_PLAIN = Prior(
    mean=np.array([0.0, -1.0, -1.0, 0.0, 0.0]),
    precision=np.array([0.11, 0.25, 0.25, 0.25, 0.25]),
    keep=0.99,
    logit=True,
)
_PER_PLAY = 0.8
"""What is left of the memory of a client when it is played again: a handful of plays."""
_PER_ROUND = 0.98
"""What is left after a round without a play: no client is written off for good."""
_LEAN = 1.0
"""Weight of "as promised", in forecast successes."""


class Reliability(ArrayState):
    """Does a client keep what its circumstances promise: fading sums of forecasts and successes."""

    wins = floats("played", least=0)
    forecast = floats("played", least=0)

    def factor(self, clients: IndexArray) -> FloatArray:
        """Return float64[R], what to multiply the forecast of each named client by."""
        if not len(self.wins):
            return np.ones(len(clients))
        known = clients < len(self.wins)
        at = np.where(known, clients, 0)
        factors = (self.wins + _LEAN) / (self.forecast + _LEAN)
        return np.where(known, factors[at], 1.0)

    def learn(
        self, clients: IndexArray, forecast: FloatArray, success: BoolArray, total: int
    ) -> None:
        """Count one round of `total` known clients: int32[S] each once, float64[S], bool[S]."""
        self.grow(played=total)
        self.wins *= _PER_ROUND
        self.forecast *= _PER_ROUND
        self.wins[clients] = _PER_PLAY * self.wins[clients] + success
        self.forecast[clients] = _PER_PLAY * self.forecast[clients] + forecast


class AdaptivePolicy(ArrayState):
    """Choose by averaged forecasts of success."""

    name = "adaptive"
    parts = ("_slack", "_reliability")
    _weights = floats(4, start=0.25)
    _centre = floats(1 + len(_LOGS), start=np.nan, nan=True)
    _played = ints("clients")
    _theta = floats(3, 5)
    _precision = floats(3, 5, 5)

    def __init__(
        self,
        *,
        memory: float = 33.0,
        patience: float = 0.02,
        idle_rounds: int = 10,
        share: float = 0.01,
        solver: str | Solver = "density",
    ) -> None:
        check = partial(require, self.name)
        check("memory", memory, memory > 1, "> 1")
        check("patience", patience, 0 <= patience <= 1, "in [0, 1]")
        check("idle_rounds", idle_rounds, idle_rounds >= 1, ">= 1")
        check("share", share, 0 < share < 1, "in (0, 1)")
        short = Prior(mean=_PHYSICS.mean, precision=_PHYSICS.precision, keep=1.0 - 1.0 / memory)
        self._priors = (_PHYSICS, short, _PLAIN)
        self._theta = np.array([start(prior).theta for prior in self._priors])
        self._precision = np.array([start(prior).precision for prior in self._priors])
        self._slack, self._reliability = Slack(), Reliability()
        self._patience, self._idle_rounds, self._share = patience, idle_rounds, share
        self._solver = create_solver(solver) if isinstance(solver, str) else solver

    @property
    def needs(self) -> frozenset[str]:
        """Nothing: every feature is optional."""
        return frozenset()

    def select(self, view: RoundView, rng: np.random.Generator) -> Selection:
        """Solve P2 with the averaged forecasts; ties by waiting time, then by chance."""
        scores = self._scores(view)
        pairs = assign(view, scores * self._waiting(view), self._solver, rng)
        names = ("w_long", "w_short", "w_plain", "w_deeds")
        notes = dict(zip(names, self._weights.tolist(), strict=True))
        return explained(view, pairs, scores, notes)

    def learn(self, feedback: Feedback) -> None:
        """Weigh the experts by what they had forecast, then teach them."""
        view, pairs = feedback.view, feedback.pairs
        clients = view.pair_client[pairs]
        self._settle_centre(view)
        if len(pairs):
            forecasts = self._forecasts(view, pairs)
            self._weigh(forecasts, feedback.X)
            self._reliability.learn(clients, forecasts[0], feedback.X, len(view.client_price))
            physics, plain, left = self._design(view, pairs)
            possible = ~self._slack.hopeless(left, view.deadline_s)
            for i, prior in enumerate(self._priors):
                x, success = physics[possible], feedback.X[possible]
                if prior.logit:
                    x, success = plain, feedback.X
                belief = updated(prior, Belief(self._theta[i], self._precision[i]), x, success)
                self._theta[i], self._precision[i] = belief.theta, belief.precision
        self._slack.learn(feedback)
        self.grow(clients=len(view.client_price))
        self._played[clients] = view.round

    def problems(self) -> Iterator[str]:
        """Refuse weights that are no shares, and beliefs that no Gaussian has."""
        if not (self._weights > 0).all() or abs(float(self._weights.sum()) - 1) >= 1e-6:
            yield "has weights that are no shares"
        for i, precision in enumerate(self._precision):
            if not definite(precision):
                yield f"precision {i} is none"
        if len(self._reliability.wins) > len(self._played):
            yield "has outcomes of clients that it does not know"

    def _scores(self, view: RoundView) -> FloatArray:
        """Block by block, so that the temporaries of a million pairs stay in the cache."""
        scores = np.empty(len(view.pair_client))
        for begin in range(0, len(scores), _BLOCK):
            rows = slice(begin, begin + _BLOCK)
            scores[rows] = self._weights @ self._forecasts(view, rows)
        return scores

    def _forecasts(self, view: RoundView, rows: Rows) -> FloatArray:
        physics, plain, left = self._design(view, rows)
        hopeless = self._slack.hopeless(left, view.deadline_s)
        forecasts = np.empty((len(self._weights), len(left)))
        for i, prior in enumerate(self._priors):
            forecasts[i] = chance(prior, self._theta[i], plain if prior.logit else physics)
            if not prior.logit:
                forecasts[i][hopeless] = _LOW
        forecasts[-1] = forecasts[0] * self._reliability.factor(view.pair_client[rows])
        return np.clip(forecasts, _LOW, 1 - _LOW, out=forecasts)

    def _design(self, view: RoundView, rows: Rows) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return float64[R, 5] for the physics and the plain experts, and the seconds left.

        A feature that is not reported stays at its centre, where it moves nothing.
        """
        left, demand = self._slack.required(view, rows)
        centre = np.where(np.isfinite(self._centre), self._centre, 0.0)
        physics = np.zeros((len(left), 5))
        physics[:, 0] = 1.0
        physics[:, 1] = np.clip(demand - centre[0], -8.0, 12.0)
        for k, name in enumerate(_LOGS, start=1):
            column = optional(view, name, rows)
            if column is not None:
                logs = np.log(np.maximum(column, 1e-9)) - centre[k]
                physics[:, 1 + k] = np.clip(logs, -8.0, 8.0)
        rate = physics[:, 4] / 3.0
        speed = optional(view, "compute", rows)
        pace = np.zeros(len(left)) if speed is None else np.clip((speed - 2.0) / 2.0, -2.0, 4.0)
        plain = np.stack((np.ones(len(left)), rate, pace, rate * rate, rate * pace), axis=1)
        return physics, plain, left

    def _settle_centre(self, view: RoundView) -> None:
        if len(view.pair_client) == 0:
            return
        if not np.isfinite(self._centre[0]) and np.isfinite(view.deadline_s):
            self._centre[0] = float(np.median(self._slack.required(view)[1]))
        for k, name in enumerate(_LOGS, start=1):
            column = None if np.isfinite(self._centre[k]) else optional(view, name)
            if column is not None:
                self._centre[k] = float(np.median(np.log(np.maximum(column, 1e-9))))

    def _weigh(self, forecasts: FloatArray, success: BoolArray) -> None:
        gain = np.where(success, np.log(forecasts), np.log1p(-forecasts)).sum(axis=1)
        weights = self._weights * np.exp(gain - gain.max())
        weights /= weights.sum()
        self._weights = (1 - self._share) * weights + self._share / len(weights)

    def _waiting(self, view: RoundView) -> FloatArray:
        last = grown(self._played, len(view.client_price)).astype(np.float64)
        idle = np.minimum(view.round - last, self._idle_rounds) / self._idle_rounds
        return np.asarray((1.0 + self._patience * idle)[view.pair_client], dtype=np.float64)
