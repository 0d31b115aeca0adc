"""Does a client keep what its circumstances promise: successes over forecasts, lately."""

import numpy as np

from .base import BoolArray, FloatArray, IndexArray, State

_PER_PLAY = 0.8
"""What is left of the memory of a client when it is played again: a handful of plays."""
_PER_ROUND = 0.98
"""What is left after a round without a play: nobody is written off for good."""
_LEAN = 1.0
"""Weight of "as promised", in forecast successes."""


class Reliability:
    """Fading sums of forecasts and successes per client."""

    def __init__(self) -> None:
        self._wins = np.zeros(0)
        self._forecast = np.zeros(0)

    def factor(self, clients: IndexArray) -> FloatArray:
        """Return float64[R], what to multiply the forecast of each named client by."""
        if not len(self._wins):
            return np.ones(len(clients))
        known = clients < len(self._wins)
        at = np.where(known, clients, 0)
        factors = (self._wins + _LEAN) / (self._forecast + _LEAN)
        return np.where(known, factors[at], 1.0)

    def learn(
        self, clients: IndexArray, forecast: FloatArray, success: BoolArray, total: int
    ) -> None:
        """Count one round.

        Args:
            clients: int32[S], each once.
            forecast: float64[S].
            success: bool[S].
            total: How many clients are known by now.
        """
        more = total - len(self._wins)
        if more > 0:
            self._wins = np.concatenate((self._wins, np.zeros(more)))
            self._forecast = np.concatenate((self._forecast, np.zeros(more)))
        self._wins *= _PER_ROUND
        self._forecast *= _PER_ROUND
        self._wins[clients] = _PER_PLAY * self._wins[clients] + success
        self._forecast[clients] = _PER_PLAY * self._forecast[clients] + forecast

    def state(self) -> State:
        """Return the sums."""
        return {"wins": self._wins.copy(), "forecast": self._forecast.copy()}

    def restore(self, arrays: State) -> None:
        """Continue from what `state` returned."""
        self._wins = np.array(arrays["wins"], dtype=np.float64)
        self._forecast = np.array(arrays["forecast"], dtype=np.float64)
