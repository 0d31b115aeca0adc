"""What trace readers return: frozen columns in SI units (seconds, bits per second)."""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]

_ROUNDING = 4 * float(np.finfo(np.float64).eps)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RateTrace:
    """A link's rate over time, constant within each interval, repeated for ever.

    Raises:
        ValueError: Columns are empty, contradict each other, or never carry a bit.
    """

    name: str = ""
    times_s: FloatArray  # float64[K+1], ends of the intervals: from 0, strictly increasing
    bps: FloatArray  # float64[K], not all 0
    bits: FloatArray = field(init=False)  # float64[K+1], bits carried from 0 to each of `times_s`

    def __post_init__(self) -> None:
        """Check the columns and integrate the rate."""
        width = np.diff(self.times_s)
        if self.times_s[0] != 0 or not (width > 0).all() or len(width) != len(self.bps):
            raise ValueError(f"{self.name}: times do not rise from 0, one for each rate")
        bits = np.concatenate(([0.0], np.cumsum(width * self.bps)))
        if not ((self.bps >= 0).all() and 0 < bits[-1] < np.inf):
            raise ValueError(f"{self.name}: rates are not positive numbers")
        object.__setattr__(self, "bits", bits)

    @property
    def period_s(self) -> float:
        """Seconds after which the trace starts over."""
        return float(self.times_s[-1])

    @property
    def mean_bps(self) -> float:
        """Bits of one period over its seconds."""
        return float(self.bits[-1] / self.times_s[-1])

    def rate_at(self, t_s: npt.ArrayLike) -> FloatArray:
        """Return the rate at these instants, float64 of their shape."""
        phase = np.mod(np.asarray(t_s, dtype=np.float64), self.period_s)
        return np.asarray(self.bps[self._interval(phase)], dtype=np.float64)

    def seconds_for(self, bits: npt.ArrayLike, start_s: npt.ArrayLike) -> FloatArray:
        """Return how long `bits` take from `start_s` (broadcast): until the last one is across.

        Raises:
            ValueError: `bits` is negative, or something is not finite.
        """
        load = np.asarray(bits, dtype=np.float64)
        start = np.asarray(start_s, dtype=np.float64)
        if not (np.isfinite(load).all() and np.isfinite(start).all() and (load >= 0).all()):
            raise ValueError("bits must be finite and >= 0, starts finite")
        phase = np.mod(start, self.period_s)
        goal = self._from_zero(phase) + load
        slack = _ROUNDING * goal
        # Whole periods before the one in which the last bit crosses. What is within rounding
        # of the bits before a silence has crossed before it, also at a period's end.
        whole = np.maximum(np.ceil((goal - slack) / self.bits[-1]) - 1, 0)
        rest = np.clip(goal - whole * self.bits[-1], 0, self.bits[-1])
        k = np.searchsorted(self.bits, rest - slack, side="left") - 1
        k = np.clip(k, 0, len(self.bps) - 1)
        within = np.zeros(np.shape(rest))
        last = np.minimum(rest, self.bits[k + 1]) - self.bits[k]
        np.divide(last, self.bps[k], out=within, where=self.bps[k] > 0)
        seconds = whole * self.period_s + self.times_s[k] + within - phase
        return np.asarray(np.where(load > 0, np.maximum(seconds, 0), 0), dtype=np.float64)

    def _interval(self, phase: FloatArray) -> npt.NDArray[np.intp]:
        index = np.searchsorted(self.times_s, phase, side="right") - 1
        return np.asarray(np.minimum(index, len(self.bps) - 1), dtype=np.intp)

    def _from_zero(self, phase: FloatArray) -> FloatArray:
        k = self._interval(phase)
        return np.asarray(self.bits[k] + (phase - self.times_s[k]) * self.bps[k], dtype=np.float64)


@dataclass(frozen=True, slots=True, eq=False)
class RttMatrix:
    """Round-trip times between nodes, in slices of time, repeated for ever.

    `seconds` are float32[T, n, n], measured from the first node to the second, which is not
    symmetric; NaN where missing or below resolution, 0 on the diagonal.
    """

    seconds: npt.NDArray[np.float32]

    def between(
        self, slice_: npt.ArrayLike, source: npt.ArrayLike, target: npt.ArrayLike
    ) -> FloatArray:
        """Return the times of these pairs (broadcast), float64; slices wrap around."""
        at = np.mod(np.asarray(slice_, dtype=np.int64), len(self.seconds))
        here, there = np.asarray(source, dtype=np.intp), np.asarray(target, dtype=np.intp)
        return np.asarray(self.seconds[at, here, there], dtype=np.float64)


@dataclass(frozen=True, slots=True, eq=False)
class PriceTrace:
    """The price of one rented machine over time; each price holds until the next."""

    times_s: FloatArray  # float64[K], seconds since the earliest row of the whole file, rising
    price: FloatArray  # float64[K], currency units an hour, > 0

    def price_at(self, t_s: npt.ArrayLike) -> FloatArray:
        """Return the prices at these instants; the first and last hold beyond the ends."""
        index = np.searchsorted(self.times_s, np.asarray(t_s, dtype=np.float64), side="right")
        return np.asarray(self.price[np.maximum(index - 1, 0)], dtype=np.float64)
