"""The weighted mean of updates, as a running sum in float64: memory O(model)."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Arrays = dict[str, npt.NDArray[np.float64]]
_BLOCK = 1 << 16


@dataclass(slots=True)
class RunningMean:
    """Sum of weight·delta over updates, tensor by tensor (ALGORITHMS section 1).

    Attributes:
        weight: Sum of the weights.
        count: Updates in the sum.
    """

    weight: float = 0.0
    count: int = 0
    _sums: Arrays = field(default_factory=dict)

    def add(self, delta: Mapping[str, npt.NDArray[np.generic]], weight: float) -> None:
        """Add one update; arrays of any shape, the same names every time."""
        for name, array in delta.items():
            total = self._sums.get(name)
            if total is None:
                total = self._sums[name] = np.zeros(array.shape, np.float64)
            flat, source = total.reshape(-1), array.reshape(-1)
            # Block by block, so that no float64 copy of a whole tensor is made.
            for start in range(0, flat.size, _BLOCK):
                flat[start : start + _BLOCK] += weight * source[start : start + _BLOCK].astype(
                    np.float64
                )
        self.weight += weight
        self.count += 1

    def apply(
        self, base: Mapping[str, npt.NDArray[np.generic]]
    ) -> dict[str, npt.NDArray[np.generic]]:
        """Return base + mean in the base's dtypes.

        Raises:
            ZeroDivisionError: Nothing was added.
        """
        return {
            name: (array.astype(np.float64) + self._sums[name] / self.weight).astype(array.dtype)
            for name, array in base.items()
        }
