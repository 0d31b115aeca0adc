"""How a round's updates become one: the edge's rule of which are used, and their weighted mean.

ALGORITHMS section 1. Times are seconds since the order, or since any other instant that limits
and updates share. A live edge asks update by update (`counts`, `is_over`), a study at once
(`settle`); both come to the same.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Arrays = Mapping[str, npt.NDArray[np.generic]]
_BLOCK = 1 << 12
"""Elements at a time: a block stays in the cache, and its float64 copy on the heap."""


@dataclass(frozen=True, slots=True)
class Settlement:
    """How a round ended at one edge; arrays follow the updates."""

    in_time: npt.NDArray[np.bool_]  # bool[n], X: it came before the deadline
    used: npt.NDArray[np.bool_]  # bool[n], it is in the aggregate; none is if there were not enough
    known: npt.NDArray[np.bool_]  # bool[n], it came while the edge waited, and is paid
    wait_s: float  # when the edge stopped waiting for those that had not come


@dataclass(frozen=True, slots=True)
class RoundRule:
    """The limits of a round at one edge (eq. 6); `min_updates` is Z."""

    deadline_s: float
    max_wait_s: float
    min_updates: int = 1

    @property
    def give_up_s(self) -> float:
        """When waiting ends without enough updates."""
        return max(self.deadline_s, self.max_wait_s)

    def enough(self, ordered: int) -> int:
        """Return Z_eff: how many updates an aggregate of so many ordered clients needs."""
        return max(1, min(self.min_updates, ordered))

    def counts(self, tau_s: float, *, used: int, ordered: int) -> bool:
        """Return whether an update that came at `tau_s` joins a sum of `used` others."""
        missing = used < self.enough(ordered)
        return tau_s <= self.deadline_s or (missing and tau_s <= self.give_up_s)

    def is_over(self, now_s: float, *, used: int, ordered: int, slack_s: float = 0.0) -> bool:
        """Return whether nobody is waited for any more, with `used` updates in the sum.

        `slack_s` is how long what came before a limit may take to be seen.
        """
        if now_s <= self.deadline_s + slack_s:
            return False
        return used >= self.enough(ordered) or now_s > self.give_up_s + slack_s

    def settle(self, tau_s: npt.NDArray[np.float64]) -> Settlement:
        """Return how a round ends whose updates come at float64[n]; infinite for never."""
        in_time = tau_s <= self.deadline_s
        used, wait_s, wanted = in_time, self.deadline_s, self.enough(len(tau_s))
        if int(in_time.sum()) < wanted <= len(tau_s):
            first = np.argsort(tau_s, kind="stable")[:wanted]
            last_s = float(tau_s[first[-1]])
            used = np.zeros(len(tau_s), dtype=np.bool_)
            used[first] = last_s <= self.give_up_s
            wait_s = min(last_s, self.give_up_s)
        return Settlement(in_time, used, tau_s <= wait_s, wait_s)


def edge_weight(learnt: float, *, uniform: bool, holds: bool = True) -> float:
    """Return how much an edge's model counts where edge models are merged.

    `learnt` is the weight of the updates in it since the last merge. If `uniform`, all edges that
    hold a model of the run count alike, also those that learnt nothing (ALGORITHMS section 1).
    """
    if uniform:
        return 1.0 if holds or learnt > 0 else 0.0
    return learnt


@dataclass(slots=True)
class RunningMean:
    """Sum of weight·delta over updates, tensor by tensor; in float64, memory O(model)."""

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
