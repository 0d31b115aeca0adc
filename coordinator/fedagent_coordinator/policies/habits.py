"""How often each client was in time lately: a rate per client, leaning on the common one."""

import numpy as np

from .base import BoolArray, FloatArray, IndexArray, State

_FADE = 0.98
_LEAN = 2.0
"""Weight of the common rate, in observations."""


class Habits:
    """Fading counts of plays and successes per client."""

    def __init__(self) -> None:
        self._plays = np.zeros(0)
        self._wins = np.zeros(0)

    def chance(self, clients: IndexArray) -> FloatArray:
        """Return the rate of each named client, float64[R]."""
        common = (float(self._wins.sum()) + 1.0) / (float(self._plays.sum()) + 2.0)
        known = clients < len(self._plays)
        at = np.where(known, clients, 0)
        if not len(self._plays):
            return np.full(len(clients), common)
        wins = np.where(known, self._wins[at], 0.0)
        plays = np.where(known, self._plays[at], 0.0)
        rates: FloatArray = (wins + _LEAN * common) / (plays + _LEAN)
        return rates

    def learn(self, clients: IndexArray, success: BoolArray, total: int) -> None:
        """Count one round; `total` clients are known by now."""
        more = total - len(self._plays)
        if more > 0:
            self._plays = np.concatenate((self._plays, np.zeros(more)))
            self._wins = np.concatenate((self._wins, np.zeros(more)))
        self._plays *= _FADE
        self._wins *= _FADE
        np.add.at(self._plays, clients, 1.0)
        np.add.at(self._wins, clients, success.astype(np.float64))

    def state(self) -> State:
        """Return the counts."""
        return {"habit_plays": self._plays.copy(), "habit_wins": self._wins.copy()}

    def restore(self, arrays: State) -> None:
        """Continue from what `state` returned."""
        self._plays = np.array(arrays["habit_plays"], dtype=np.float64)
        self._wins = np.array(arrays["habit_wins"], dtype=np.float64)
