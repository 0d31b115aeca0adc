"""`oort`: guided participant selection (Lai et al., OSDI 2021, Algorithm 1 and section 4).

A client's statistical utility |B| sqrt(mean of its samples' squared losses) is scaled to 0..1 and
clipped; to it comes the bonus of staleness sqrt(0.1 ln R / L), and who took longer than the
preferred duration T is worth (T / t)^alpha of the sum. A share epsilon of the round explores new
clients by speed, the rest is drawn by utility of those above the cut-off. T grows when the
utility of the last W rounds falls below that of the W before.

As decided, where the paper is silent or its code differs (docs/policies/oort.md has all): the
scale and T as a percentile of durations are the code's, 30 and 5 FedScale's; the cut-off is the
K-th of Algorithm 1, the code's is the one behind it; clipping counts clients that are away; the
pacer looks every W rounds as the code does, and asks for a fall as Algorithm 1 does; an update
that never came counts with the mean utility of its round.
"""

import math

import numpy as np

from fedagent_protocol.registry import require

from .base import (
    LOSSES,
    MAX_COUNT,
    Aspects,
    Ending,
    Feedback,
    FloatArray,
    IntArray,
    RoundView,
    Selection,
)
from .rbcs_f import capacity
from .selection import explained
from .sets.arms import candidates, take
from .state import ArrayState, floats, grown, ints

_BACKFILL = 3
"""Others that are tried for each client of a round whose first choices do not fit the budgets."""
_SPEEDS = ("compute", "upload_bps", "download_bps")
_RATES = ("upload_bps", "download_bps")
_LOWEST = 0.999
_FLAT = 1e-4
"""Least range of utilities, so that equal ones have a scale (the code's)."""
_MOST = 1e15
"""Utilities stop here: what a device claims must not become infinite."""


class OortPolicy(ArrayState):
    """Oort."""

    name = "oort"
    needs: frozenset[str] = frozenset({LOSSES})
    _utility = floats("clients", least=0)
    _duration_s = floats("clients", least=0)
    _involved = ints("clients")  # the last round of each client, 0 for the unexplored
    _achieved = floats("window", least=0)  # utility of the last 2 W rounds, the newest last
    _rounds = ints(2)  # learnt, and how often the pacer has relaxed

    def __init__(
        self,
        *,
        clients_per_round: int | None = None,
        epsilon: float = 0.9,
        decay: float = 0.98,
        least_epsilon: float = 0.2,
        alpha: float = 2.0,
        cut_off: float = 0.95,
        clip: float = 0.95,
        window: int = 20,
        delta_s: float | None = None,
        percentile: float = 30.0,
        percentile_step: float = 5.0,
    ) -> None:
        known = clients_per_round is None or 1 <= clients_per_round <= MAX_COUNT
        require(self.name, "clients_per_round", clients_per_round, known, f"in 1..{MAX_COUNT}")
        shares = {"epsilon": epsilon, "decay": decay, "least_epsilon": least_epsilon}
        shares |= {"cut_off": cut_off, "clip": clip}
        for parameter, share in shares.items():
            require(self.name, parameter, share, 0 <= share <= 1, "in [0, 1]")
        require(self.name, "alpha", alpha, 0 <= alpha <= 100, "in [0, 100]")
        require(self.name, "window", window, 1 <= window <= 10_000, "in 1..10000")
        known = delta_s is None or 0 < delta_s < math.inf
        require(self.name, "delta_s", delta_s, known, "> 0")
        require(self.name, "percentile", percentile, 0 < percentile <= 100, "in (0, 100]")
        known = 0 <= percentile_step <= 100
        require(self.name, "percentile_step", percentile_step, known, "in [0, 100]")
        self._clients_per_round, self._epsilon, self._decay = clients_per_round, epsilon, decay
        self._least_epsilon, self._alpha, self._cut_off = least_epsilon, alpha, cut_off
        self._clip, self._window, self._delta_s = clip, window, delta_s
        self._percentile, self._step = percentile, percentile_step
        self.fix(window=2 * window)

    def select(self, view: RoundView, rng: np.random.Generator) -> Selection:
        """Decide one round; the score of a pair is its client's utility, NaN while unexplored."""
        clients = len(view.client_price)
        k = self._clients_per_round or capacity(view)
        there = candidates(view)
        explored = grown(self._involved, clients) > 0
        known = np.flatnonzero(there & explored).astype(np.int64)
        new = np.flatnonzero(there & ~explored).astype(np.int64)
        utility = self._utilities(view.round, clients)
        exploring = min(k - self._exploits(view.round, k), len(new))
        drawn, cut = self._exploited(utility, known, k - exploring, rng)
        found = _by_weight(_speeds(view)[new], rng)[:exploring]
        first = np.concatenate((drawn, new[found]))
        others = np.setdiff1d(np.concatenate((known, new)), first, assume_unique=True)
        more = rng.permutation(others)[: _BACKFILL * k]
        pairs = take(view, np.concatenate((first, more)), k, _liking(view))
        notes = {
            "explore": float(exploring),
            "cut_off": cut,
            "preferred_s": min(self.preferred_s, _MOST),
            "relaxed": float(self._rounds[1]),
        }
        return explained(view, pairs, utility[view.pair_client], notes)

    def aspects(self, view: RoundView) -> Aspects:
        """Return the utility and its last parts, and the duration that makes a client slow."""
        clients = len(view.client_price)
        explored = grown(self._involved, clients) > 0
        values = {
            "loss of its samples": np.where(explored, grown(self._utility, clients), np.nan),
            "seconds": np.where(explored, grown(self._duration_s, clients), np.nan),
            "preferred seconds": np.full(clients, self.preferred_s),
        }
        return {name: column[view.pair_client] for name, column in values.items()}

    def learn(self, feedback: Feedback) -> None:
        """Take in utilities and durations, then let the pacer look back."""
        self.grow(clients=len(feedback.view.client_price))
        told = feedback.endings != Ending.EDGE
        clients = feedback.view.pair_client[feedback.pairs][told].astype(np.int64)
        if not len(clients):
            return
        utility, valid = statistical_utility(feedback)[told], ~feedback.unpaid[told]
        known = valid & np.isfinite(utility)
        mean = float(utility[known].mean()) if known.any() else math.nan
        usual = self._utility[clients] if math.isnan(mean) else np.full(len(clients), mean)
        waited = feedback.tau_s[told]
        late = np.maximum(waited, feedback.view.deadline_s)
        missed = late if math.isfinite(feedback.view.deadline_s) else waited
        self._utility[clients] = np.where(known, utility, usual)
        self._duration_s[clients] = np.where(valid, waited, missed)
        self._involved[clients] = feedback.view.round
        self._look_back(float(utility[known].sum()))

    @property
    def preferred_s(self) -> float:
        """T, the preferred duration of a round; infinite where no client is too slow."""
        relaxed = int(self._rounds[1])
        if self._delta_s is not None:
            return self._delta_s * (1 + relaxed)
        percent = self._percentile + relaxed * self._step
        durations = self._duration_s[self._involved > 0]
        if percent >= 100 or not len(durations):
            return math.inf
        at = min(int(len(durations) * percent / 100), len(durations) - 1)
        return float(np.partition(durations, at)[at])

    def _look_back(self, achieved: float) -> None:
        """Relax T if the last W rounds achieved less than the W before (Algorithm 1, pacer)."""
        self._achieved = np.append(self._achieved[1:], min(achieved, _MOST))
        self._rounds[0] += 1
        learnt, w = int(self._rounds[0]), self._window
        if learnt >= 2 * w and learnt % w == 0:
            self._rounds[1] += self._achieved[:w].sum() > self._achieved[w:].sum()

    def _exploits(self, round_: int, k: int) -> int:
        """Return how many of K are not for exploring."""
        epsilon = max(self._epsilon * self._decay ** (round_ - 1), self._least_epsilon)
        return math.floor((1.0 - epsilon) * k + 1e-9)

    def _utilities(self, round_: int, clients: int) -> FloatArray:
        """Return Util of Algorithm 1, float64[N]; NaN for the unexplored."""
        utility = np.full(clients, np.nan)
        explored = np.flatnonzero(self._involved > 0)
        if not len(explored):
            return utility
        u = self._utility[explored]
        at = min(int(len(u) * self._clip), len(u) - 1)
        u = np.minimum(u, np.partition(u, at)[at])
        low = _LOWEST * float(u.min())
        stale = np.sqrt(0.1 * math.log(round_) / self._involved[explored])
        scaled = (u - low) / max(float(u.max()) - low, _FLAT) + stale
        duration, preferred = self._duration_s[explored], self.preferred_s
        slow = duration > preferred
        scaled[slow] *= (preferred / duration[slow]) ** self._alpha
        utility[explored] = scaled
        return utility

    def _exploited(
        self, utility: FloatArray, known: IntArray, k: int, rng: np.random.Generator
    ) -> tuple[IntArray, float]:
        """Return K of those above the cut-off, drawn by utility, best first; and the cut-off."""
        k = min(k, len(known))
        if not k:
            return known[:0], math.nan
        its = utility[known]
        cut = self._cut_off * float(np.partition(its, len(its) - k)[len(its) - k])
        admitted = known[its >= cut]
        return admitted[_by_weight(utility[admitted], rng)[:k]], cut


def statistical_utility(feedback: Feedback) -> FloatArray:
    """Return |B| sqrt(mean of squared losses) of every order, float64[S]; NaN where unknown.

    Where the squares are not told the mean loss stands for their root, which is no less.
    """
    unknown = np.full(len(feedback.pairs), np.nan)
    rms = unknown if feedback.loss_rms is None else feedback.loss_rms
    mean = unknown if feedback.loss is None else feedback.loss
    loss = np.where(np.isfinite(rms), rms, np.where(mean > 0, mean, np.nan))
    samples = np.where(feedback.num_samples > 0, feedback.num_samples, np.nan)
    with np.errstate(over="ignore"):
        return np.asarray(np.minimum(samples * loss, _MOST))


def _by_weight(weight: FloatArray, rng: np.random.Generator) -> IntArray:
    """Return all indices as if drawn one after the other by weight, int64[n]; zeros come last."""
    ticks = rng.exponential(size=len(weight))
    with np.errstate(divide="ignore"):
        return np.argsort(ticks / weight, kind="stable").astype(np.int64)


def _speeds(view: RoundView) -> FloatArray:
    """Return each client's speed, float64[N]: medians over the mean of its reported times.

    Computation and both transfers count alike; what is not reported is as usual, and of several
    edges the fastest counts.
    """
    times = np.zeros(len(view.pair_client))
    for name in _SPEEDS:
        times += _relative_time(view.optional(name))
    speed = np.zeros(len(view.client_price))
    np.maximum.at(speed, view.pair_client, len(_SPEEDS) / times)
    return speed


def _liking(view: RoundView) -> FloatArray:
    """Return minus the time of both transfers of every pair, float64[P]."""
    return -sum((_relative_time(view.optional(name)) for name in _RATES), np.zeros(1))


def _relative_time(rate: FloatArray) -> FloatArray:
    known = rate > 0
    if not known.any():
        return np.ones(len(rate))
    usual = float(np.median(rate[known]))
    return np.where(known, usual / np.where(known, rate, usual), 1.0)
