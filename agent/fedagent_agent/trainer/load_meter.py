"""The arrival steps of a round and its load limit (ALGORITHMS section 7), without a clock.

A round does rho iterations in each of |M_t| arrival steps. A device may bound the
seconds of computation that a round costs it, pi: iterations are done in blocks whose
expected duration is short and fits into what is left of it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

BLOCK_S = 0.002
"""Seconds that a block of iterations may be expected to take: so often is the limit looked at."""
MARGIN = 0.05
"""Share of the limit that is kept back for what takes longer than expected."""
_GROWTH = 8
"""A block has at most so many times the iterations of the one before; the first has one."""

Clock = Callable[[], float]


def parts(count: int, steps: int) -> list[slice]:
    """Cut `count` samples into so many consecutive parts, none larger by two than another."""
    return [slice(count * i // steps, count * (i + 1) // steps) for i in range(steps)]


@dataclass(slots=True)
class LoadMeter:
    """Counts the computation of one round, and says how many iterations fit into the rest.

    What is between ``with`` counts: wall or processor seconds, whichever is more. Time in which
    others have the processor counts as well, since the device is loaded by then.
    """

    _limit_s: float  # pi, seconds of computation; 0 for no limit
    _wall: Clock  # monotonic seconds
    _processor: Clock  # seconds that all threads of this process have used
    iterations: int = 0
    iterating_s: float = 0.0
    _spent: tuple[float, float] = (0.0, 0.0)
    _began: tuple[float, float] = (0.0, 0.0)
    _block: int = 0
    _each_s: float = 0.0
    _noted_s: float = 0.0

    def __enter__(self) -> Self:
        self._began = self._now()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        wall, processor = self._now()
        self._spent = (
            self._spent[0] + wall - self._began[0],
            self._spent[1] + processor - self._began[1],
        )
        self._noted_s = max(wall - self._began[0], processor - self._began[1])

    @property
    def spent_s(self) -> float:
        """Seconds of computation so far."""
        return max(self._spent)

    @property
    def is_over(self) -> bool:
        """Whether the limit is reached, also within a ``with``."""
        wall, processor = self._now()
        under_way = max(wall - self._began[0], processor - self._began[1])
        return 0 < self._limit_s <= self.spent_s + under_way

    def block(self, wanted: int) -> int:
        """Return how many iterations to do next, at most `wanted`; 0: the limit forbids more.

        The very first is always granted: without it a round would be for nothing.
        """
        if self.iterations == 0:
            return min(1, wanted)
        room = BLOCK_S
        if self._limit_s > 0:
            left = (1.0 - MARGIN) * self._limit_s - self.spent_s
            if left <= self._each_s:
                return 0
            room = min(room, left)
        fitting = int(room / self._each_s) if self._each_s > 0 else wanted
        return max(1, min(wanted, fitting, _GROWTH * self._block))

    def did(self, iterations: int) -> None:
        """Take in how many iterations the time that was counted last went to."""
        if iterations > 0:
            self._block, self._each_s = iterations, self._noted_s / iterations
            self.iterations += iterations
            self.iterating_s += self._noted_s

    def _now(self) -> tuple[float, float]:
        return self._wall(), self._processor()
