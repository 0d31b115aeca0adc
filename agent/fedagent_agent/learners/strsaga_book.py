"""Which samples strSAGA moves, keeps and steps on: no sample is looked at here."""

from collections.abc import MutableSequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .strsaga_loops import Counts, SagaLoops, plan

_GROWTH = 1.5
_ITERATIONS, _WAITING, _SIZE, _SEEN, _REFUSED = range(5)


@dataclass(frozen=True, slots=True)
class Moves:
    """What each of some iterations does; -1 is nothing."""

    stored: int  # size of the set before them
    source: Counts | list[int]  # place in the buffer of the sample that moves to the set
    slot: Counts | list[int]  # where in the set it goes; an occupied slot loses what it had
    draw: Counts | list[int]  # slot of the sample that the iteration steps on

    @property
    def steps(self) -> int:
        """Iterations that step on a sample; only the first ones of a round may not."""
        return len(self.draw) - (
            self.draw.count(-1)
            if isinstance(self.draw, list)
            else int(np.count_nonzero(self.draw < 0))
        )


class Book:
    """Buffer and set as numbers (ALGORITHMS section 7).

    The set is a uniform choice of everything that was moved since `clear`: beyond
    its cap a new sample takes the place of a random one, or is refused.
    """

    def __init__(self, cap: int, loops: SagaLoops | None) -> None:
        self._cap = cap
        self._loops = loops
        self._waiting: MutableSequence[int] | Counts = []
        self._book = np.zeros(6, np.int64)
        self._book[5] = cap
        self._room = 0

    @property
    def waiting(self) -> int:
        """Samples in the buffer."""
        return int(self._book[_WAITING])

    @property
    def size(self) -> int:
        """Samples in the set."""
        return int(self._book[_SIZE])

    @property
    def moved(self) -> int:
        """Samples that came to the set since `clear`, and were not refused."""
        return int(self._book[_SEEN] - self._book[_REFUSED])

    @property
    def room(self) -> int:
        """Slots to have ready until the next `offer`, at most the cap; it never shrinks."""
        most = min(self._cap, self.size + self.waiting)
        if most > self._room:
            self._room = min(self._cap, max(most, int(_GROWTH * self._room)))
        return self._room

    def clear(self) -> int:
        """Empty the set, leave the buffer; return how many were refused."""
        refused = int(self._book[_REFUSED])
        self._book[_ITERATIONS] = self._book[_SIZE] = 0
        self._book[_SEEN] = self._book[_REFUSED] = 0
        return refused

    @property
    def refused(self) -> int:
        """Samples that a full set did not take since `clear`."""
        return int(self._book[_REFUSED])

    def offer(self, count: int) -> int:
        """Let so many new samples wait, in place of those that do; return how many did."""
        lost = self.waiting
        self._book[_WAITING] = count
        self._waiting = np.arange(count) if self._loops else list(range(count))
        return lost

    def moves(self, uniform: npt.NDArray[np.float64]) -> Moves:
        """Decide the next iterations by uniform numbers [iterations, 3]."""
        stored, count = self.size, len(uniform)
        chosen = np.ascontiguousarray(uniform.T)
        if self._loops:
            planned = np.empty((3, count), np.int64)
            self._loops.plan(*chosen, self._book, self._waiting, *planned)
            return Moves(stored, *planned)
        book: list[int] = self._book.tolist()
        assert isinstance(self._waiting, list)
        # Once nothing waits, a number and the size of the set say what is drawn.
        busy = min(count, 2 * self.waiting)
        lists = [-1] * busy, [-1] * busy, [-1] * busy
        moving, keeping, drawing = chosen[:, :busy].tolist()
        plan(moving, keeping, drawing, book, self._waiting, *lists)
        book[_ITERATIONS] += count - busy
        self._book[:] = book
        nothing = [-1] * (count - busy)
        drawn = (chosen[2, busy:] * self.size).astype(np.int64).tolist() if self.size else nothing
        source, slot, draw = lists
        return Moves(stored, source + nothing, slot + nothing, draw + drawn)
