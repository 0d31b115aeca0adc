"""What has arrived and is not learnt from yet: the stream that opinions rest on.

Prequential: every sample is scored before it may be learnt from. Once somebody has asked
for an opinion, an arrival waits for the next one before a training takes it; if none is
asked for, it waits through one training at most. Without calls nothing waits.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from fedagent_task.models import Inputs, Labels

from .streams.base import Stream

Part = tuple[Inputs, Labels]


@dataclass(slots=True)
class _Chunk:
    """What one look at the stream brought; `start` is the stream's position before it."""

    x: Inputs
    y: Labels
    start: int
    given: int = 0

    @property
    def left(self) -> int:
        return len(self.y) - self.given


class HeldOutSamples:
    """Samples in order of arrival: scaled features [n, features], labels [n]."""

    def __init__(self) -> None:
        self._chunks: deque[_Chunk] = deque()
        self._count = 0
        self._released = 0
        self._asked = False

    def __len__(self) -> int:
        return self._count

    def put(self, x: Inputs, y: Labels, *, start: int) -> None:
        """Take arrivals; `start` is the stream's position before them."""
        if len(y):
            self._chunks.append(_Chunk(x, y, start))
            self._count += len(y)

    @property
    def ready(self) -> int:
        """How many of the oldest may be learnt from."""
        return self._released if self._asked else self._count

    def newest(self, count: int) -> Iterator[Part]:
        """Yield the newest samples in parts; each was never given away."""
        for chunk in reversed(self._chunks):
            first = max(chunk.given, len(chunk.y) - count)
            if first >= len(chunk.y):
                return
            yield chunk.x[first:], chunk.y[first:]
            count -= len(chunk.y) - first

    def scored(self) -> None:
        """Note that an opinion was given: all that is here may be learnt from."""
        self._asked = True
        self._released = self._count

    def release(self) -> None:
        """Let all that is here be learnt from, scored or not."""
        self._released = self._count

    def give(self, count: int) -> Iterator[Part]:
        """Yield the oldest in parts; they are not here any more."""
        while count > 0 and self._chunks:
            chunk = self._chunks[0]
            first, last = chunk.given, chunk.given + min(count, chunk.left)
            chunk.given = last
            given = last - first
            count -= given
            self._count -= given
            self._released = max(0, self._released - given)
            if not chunk.left:
                self._chunks.popleft()
            yield chunk.x[first:last], chunk.y[first:last]

    def offset(self, stream: int) -> int:
        """Return where a new process has to go on so that nothing is lost.

        Args:
            stream: The stream's own position; smaller than ours where it began anew, and
                then what is held here cannot be read again.
        """
        return min(self._chunks[0].start, stream) if self._chunks else stream


class ValidationStream:
    """The newest samples of a stream that nobody ever learns from.

    Args:
        stream: Not open yet.
        count: How many to keep.
    """

    def __init__(self, stream: Stream, count: int) -> None:
        self.stream = stream
        self._count = count
        self._parts: deque[Part] = deque()
        self._held = 0

    def put(self, x: Inputs, y: Labels) -> None:
        """Take arrivals; the oldest go where there are too many."""
        if not len(y):
            return
        self._parts.append((x, y))
        self._held += len(y)
        while self._held - len(self._parts[0][1]) >= self._count:
            self._held -= len(self._parts.popleft()[1])

    def newest(self) -> Iterator[Part]:
        """Yield what is kept, in parts, oldest first."""
        surplus = max(0, self._held - self._count)
        for x, y in self._parts:
            yield x[surplus:], y[surplus:]
            surplus = 0
