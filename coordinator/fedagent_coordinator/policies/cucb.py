"""`cucb`: UCB over super-arms, blind to contexts (COCS, baseline 2).

The paper makes an arm of every feasible decision of the whole network, more than can be tried.
Here a static pool stands for all: an arm is a preference over pairs, fixed by its number and
filled into the budgets. Its reward is the share of the most successes that any round has had.
Page: docs/policies/baselines.md.
"""

import math

import numpy as np

from fedagent_protocol.registry import require

from .base import Feedback, FloatArray, RoundView, Selection
from .selection import explained, fill
from .state import ArrayState, floats, ints, number

_MAX_POOL = 1_000_000
_MIX = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))


class CucbPolicy(ArrayState):
    """UCB1 over a pool of super-arms."""

    name = "cucb"
    needs: frozenset[str] = frozenset()
    _plays = ints("pool")
    _wins = floats("pool", least=0)
    _best = number(least=0)

    def __init__(self, *, pool: int = 100, mu: float = math.sqrt(2.0)) -> None:
        require(self.name, "pool", pool, 1 <= pool <= _MAX_POOL, f"in 1..{_MAX_POOL}")
        require(self.name, "mu", mu, mu >= 0, ">= 0")
        self._mu = mu
        self.fix(pool=pool)

    def select(self, view: RoundView, rng: np.random.Generator) -> Selection:  # noqa: ARG002 - the interface's arguments
        """Play the arm with the largest index, untried ones first."""
        arm = self._arm(view.round)
        score = _preference(view, arm)
        order = np.argsort(-score, kind="stable").astype(np.int64)
        notes = {"arm": float(arm), "untried": float((self._plays == 0).sum())}
        return explained(view, fill(view, order), score, notes)

    def learn(self, feedback: Feedback) -> None:
        """Credit the arm that was played with its successes."""
        arm = self._arm(feedback.view.round)
        wins = float(feedback.X.sum())
        self._best = max(self._best, wins)
        self._plays[arm] += 1
        self._wins[arm] += wins

    def _arm(self, t: int) -> int:
        """Return the arm of the round; a function of the state alone, so that `learn` knows it."""
        plays = np.maximum(self._plays, 1)
        mean = self._wins / plays / max(self._best, 1.0)
        index = mean + self._mu * np.sqrt(math.log(max(t, 2)) / plays)
        return int(np.argmax(np.where(self._plays == 0, np.inf, index)))


def _preference(view: RoundView, arm: int) -> FloatArray:
    """Return the arm's fixed liking of every pair, float64[P] in [0, 1): splitmix64 of its name."""
    key = view.pair_client.astype(np.uint64) << np.uint64(32)
    key ^= view.pair_edge.astype(np.uint64) ^ (np.uint64(arm) << np.uint64(20))
    with np.errstate(over="ignore"):
        key = (key + np.uint64(1)) * _MIX[0]
        key = (key ^ (key >> np.uint64(30))) * _MIX[1]
        key = (key ^ (key >> np.uint64(27))) * _MIX[2]
        key ^= key >> np.uint64(31)
    return np.asarray((key >> np.uint64(11)).astype(np.float64) / 2.0**53)
