"""The weighted mean of updates, as a running sum in float64: memory O(model)."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Arrays = Mapping[str, npt.NDArray[np.generic]]
_BLOCK = 1 << 12
"""Elements at a time: a block stays in the cache, and its float64 copy on the heap."""


@dataclass(slots=True)
class RunningMean:
    """Sum of weight·delta over updates, tensor by tensor (ALGORITHMS section 1)."""

    weight: float = 0.0
    count: int = 0
    _sums: dict[str, npt.NDArray[np.float64]] = field(default_factory=dict)

    def add(self, delta: Arrays, weight: float) -> None:
        """Add one update; arrays of any shape, the same names and shapes every time."""
        if not self._sums:
            self._sums = {name: np.zeros(array.size) for name, array in delta.items()}
        for name, array in delta.items():
            total, source = self._sums[name], array.reshape(-1)
            # Block by block, so that no float64 copy of a whole tensor is made.
            for block in _blocks(source.size):
                part = source[block].astype(np.float64)
                part *= weight
                total[block] += part
        self.weight += weight
        self.count += 1

    def apply(self, base: Arrays) -> dict[str, npt.NDArray[np.generic]]:
        """Return base + mean in the base's dtypes; `ZeroDivisionError` if nothing was added."""
        if not self.weight:
            raise ZeroDivisionError("nothing was added")
        result: dict[str, npt.NDArray[np.generic]] = {}
        for name, array in base.items():
            total, source = self._sums[name], array.reshape(-1)
            fresh = np.empty(source.size, source.dtype)
            # Finite or not is the caller's check; overflow here is not worth a warning.
            with np.errstate(over="ignore", invalid="ignore"):
                for block in _blocks(source.size):
                    fresh[block] = source[block].astype(np.float64) + total[block] / self.weight
            result[name] = fresh.reshape(array.shape)
        return result


def _blocks(size: int) -> Iterable[slice]:
    return (slice(start, start + _BLOCK) for start in range(0, size, _BLOCK))
