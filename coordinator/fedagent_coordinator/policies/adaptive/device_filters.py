"""What each device made of its forecasts: filters over a few types of devices.

A type shifts the odds that the circumstances promise: from "never delivers" over "as promised"
to "always". With a small chance per round a device turns into another one, drawn from the
population, so that old evidence fades by itself (change detection). How frequent the types are
is learnt from all devices, and is what is expected of one never seen (a pooled prior).

Several filters, which differ in how fast devices change and in the forecasts that they correct,
share their keys. Their axis comes first in what follows, F of them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from fedagent_coordinator.policies.base import BoolArray, FloatArray, IntArray
from fedagent_coordinator.policies.state import ArrayState, floats, ints

_LOG_ODDS_SHIFTS = np.array([-2.5, -1.2, 0.0, 1.2, 2.5])
"""What the types between "never" and "always" add to the log odds: one in ten of what was even."""
_NEVER, _ALWAYS = 0.004, 0.998
"""Chances of the outer types; not 0 and 1, so that one surprise excludes no type."""
TYPES = len(_LOG_ODDS_SHIFTS) + 2
_POPULATION = np.array([0.04, 0.06, 0.14, 0.52, 0.14, 0.06, 0.04])
"""First guess of the types' shares: half of the devices do as their circumstances promise."""
_STRENGTH = 10.0
"""Devices that the first guess of the population counts for."""
_KNOWN = 5.0
"""Plays after which a device counts fully in the population."""


def chance_by_type(forecast: FloatArray) -> FloatArray:
    """Return float64[R, TYPES], the chance of success of each type under these forecasts."""
    odds = forecast / (1.0 - forecast)
    shifted = odds[:, None] * np.exp(_LOG_ODDS_SHIFTS)
    chances = np.empty((len(forecast), TYPES))
    chances[:, 0], chances[:, -1] = _NEVER, _ALWAYS
    chances[:, 1:-1] = shifted / (1.0 + shifted)
    return chances


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """R keys in a round: which are kept and where, and what is believed of those that are."""

    keys: IntArray
    known: BoolArray  # bool[R]
    rows: IntArray  # int64[K], of those that are known
    believed: FloatArray  # float64[K, F, TYPES]
    round: int


class DeviceFilters(ArrayState):
    """Beliefs about keys (devices), of which only those that have played are kept."""

    keys = ints("known", ascending=True)
    belief = floats("known", "filters", TYPES, least=0)
    seen = ints("known")  # the round of the last play
    plays = floats("known", least=0)
    population = floats("filters", TYPES, start=_POPULATION * _STRENGTH, least=0)

    def __init__(self, changes: Sequence[float]) -> None:
        self.fix(filters=len(changes))
        self._stay = 1.0 - np.asarray(changes, dtype=np.float64)

    def row(self, keys: IntArray) -> tuple[IntArray, BoolArray]:
        """Return where these keys are kept, int64[R], and which of them are, bool[R]."""
        if not len(self.keys):
            return np.zeros(len(keys), dtype=np.int64), np.zeros(len(keys), dtype=np.bool_)
        at = np.minimum(self.keys.searchsorted(keys), len(self.keys) - 1)
        return at, self.keys[at] == keys

    def usual(self) -> FloatArray:
        """Return float64[F, TYPES], shares of the types among all devices."""
        shares = self.population / self.population.sum(axis=1, keepdims=True)
        return np.asarray(shares, dtype=np.float64)

    def now(self, rows: IntArray, round_: int, types: slice = slice(None)) -> FloatArray:
        """Return float64[R, F, TYPES], what is believed of kept rows in a round."""
        gap = np.maximum(round_ - self.seen[rows], 0)
        stay: FloatArray = (self._stay ** gap[:, None])[:, :, None]
        usual = self.usual()[:, types]
        belief = self.belief[rows][:, :, types] - usual
        belief *= stay
        belief += usual
        return belief

    def find(self, keys: IntArray, round_: int) -> Found:
        """Return what is kept of these keys, int64[R], in a round from 1."""
        rows, known = self.row(keys)
        rows = rows[known]
        return Found(keys, known, rows, self.now(rows, round_), round_)

    def chance(self, found: Found, types: Sequence[FloatArray]) -> FloatArray:
        """Return float64[F, R], the chance of each key.

        `types` is the `chance_by_type` of each filter, float64[R, TYPES], or [1, TYPES] if it
        is the same for all keys.
        """
        known, all_known = found.known, len(found.rows) == len(found.keys)
        of_known = np.empty((len(types), len(found.rows)))
        for f, its_type in enumerate(types):
            if len(its_type) == 1:
                of_known[f] = found.believed[:, f] @ its_type[0]
            else:
                its = its_type if all_known else its_type[known]
                of_known[f] = np.einsum("kt,kt->k", its, found.believed[:, f])
        if all_known:
            return of_known
        chances = np.empty((len(types), len(known)))
        for f, (its_type, share) in enumerate(zip(types, self.usual(), strict=True)):
            chances[f] = its_type @ share
        chances[:, known] = of_known
        return chances

    def never(self, keys: IntArray, round_: int) -> FloatArray:
        """Return float64[F, R], the chance that each key never delivers."""
        rows, known = self.row(keys)
        chances = np.repeat(self.usual()[:, :1], len(keys), axis=1)
        chances[:, known] = self.now(rows[known], round_, slice(1))[:, :, 0].T
        return chances

    def learn(
        self,
        found: Found,
        types: Sequence[FloatArray],
        success: BoolArray,
        quality: FloatArray,
    ) -> FloatArray:
        """Take in outcomes of distinct keys.

        Args:
            found: The keys, as they were before.
            types: As in `chance`.
            success: bool[R].
            quality: float64[R], what a common cause left of every chance of success.

        Returns:
            float64[R, F, TYPES], what is believed of them now.
        """
        if len(found.rows) < len(found.keys):
            self._know(found.keys[~found.known], found.round)
            found = self.find(found.keys, found.round)
        rows, chances = found.rows, np.empty(found.believed.shape)
        for f, its_type in enumerate(types):
            chances[:, f] = its_type
        failed = 1.0 - quality[:, None, None] * chances
        after = found.believed * np.where(success[:, None, None], chances, failed)
        after /= after.sum(axis=2, keepdims=True)
        self._leave(rows)
        self.belief[rows], self.seen[rows] = after, found.round
        self.plays[rows] += np.maximum(quality, success)
        self._enter(rows)
        return after

    def forget(self, keys: IntArray, round_: int) -> None:
        """Believe of these keys what is believed of a new device."""
        rows, known = self.row(keys)
        rows = rows[known]
        self._leave(rows)
        self.belief[rows], self.plays[rows], self.seen[rows] = self.usual(), 0.0, round_

    def problems(self) -> Iterator[str]:
        """Refuse beliefs that are no distributions."""
        if len(self.belief) and (abs(self.belief.sum(axis=2) - 1.0) > 1e-6).any():
            yield "has beliefs that do not sum to 1"
        if not (self.population.sum(axis=1) > 0).all():
            yield "has an empty population"

    def _leave(self, rows: IntArray) -> None:
        left = self.population - self._counted(rows)
        self.population = np.maximum(left, 1e-9)

    def _enter(self, rows: IntArray) -> None:
        self.population = self.population + self._counted(rows)

    def _counted(self, rows: IntArray) -> FloatArray:
        """Return float64[F, TYPES], what these rows weigh in the population."""
        share, its = np.minimum(self.plays[rows], _KNOWN) / _KNOWN, self.belief[rows]
        counted = np.dot(share[None, :], its.reshape(len(rows), self.population.size))
        return np.asarray(counted.reshape(self.population.shape), dtype=np.float64)

    def _know(self, new: IntArray, round_: int) -> None:
        new = np.sort(new)
        at = np.searchsorted(self.keys, new)
        self.keys = np.insert(self.keys, at, new)
        self.belief = np.insert(self.belief, at, self.usual(), axis=0)
        self.seen = np.insert(self.seen, at, round_)
        self.plays = np.insert(self.plays, at, 0.0)
