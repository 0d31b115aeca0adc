"""Means over paired seeds with their 95 % intervals."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

# Two-sided 95 % quantiles of Student's t for 1 to 30 degrees of freedom: scipy is not needed.
_T: tuple[float, ...] = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)


@dataclass(frozen=True, slots=True)
class Figure:
    """A mean over seeds with its 95 % interval, half width; None of fewer than two seeds."""

    mean: float | None
    ci95: float | None
    per_seed: tuple[float | None, ...]

    @property
    def reached(self) -> int:
        """How many seeds have a value."""
        return sum(value is not None for value in self.per_seed)

    def record(self) -> dict[str, object]:
        """Return it as JSON data."""
        return {"mean": self.mean, "ci95": self.ci95, "per_seed": list(self.per_seed)}

    def text(self, digits: int) -> str:
        """Return mean ± interval; a dash where nothing is known."""
        if self.mean is None:
            return "-"
        interval = "" if self.ci95 is None else f" ± {self.ci95:.{digits}f}"
        return f"{self.mean:.{digits}f}{interval}"


def figure(values: Sequence[float | None]) -> Figure:
    """Return mean and 95 % interval of what is known; a seed without a value is left out."""
    per_seed = tuple(None if v is None or not math.isfinite(v) else float(v) for v in values)
    known = [v for v in per_seed if v is not None]
    if not known:
        return Figure(None, None, per_seed)
    mean = float(np.mean(known))
    if len(known) < 2:
        return Figure(mean, None, per_seed)
    half = quantile(len(known) - 1) * float(np.std(known, ddof=1)) / math.sqrt(len(known))
    return Figure(mean, half, per_seed)


def quantile(freedom: int) -> float:
    """Return the two-sided 95 % quantile of Student's t, right in four digits; freedom >= 1."""
    if freedom <= len(_T):
        return _T[freedom - 1]
    # Cornish-Fisher: the normal quantile and two corrections.
    z = 1.959964
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
