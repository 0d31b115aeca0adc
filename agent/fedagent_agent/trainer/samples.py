"""Samples between the stream and the learner, and those for evaluations only.

Prequential: every sample is scored before it may be learnt from. Once an evaluation was
asked for, an arrival waits for the next one before a training takes it; if none is asked
for, it waits through one training at most. Without evaluations nothing waits.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from fedagent_agent.streams.base import Stream
from fedagent_task.models import Inputs, Labels
from fedagent_task.models.base import Csr

ENOUGH = 30
"""Samples that `Proportions` looks at."""
LARGE = 10.0
"""Root mean square of a feature beyond which a step of the learner is far too long for it."""
SMALL = 1e-3
"""Share of the median deviation below which a feature is hardly seen by a model."""
MAX_NAMED = 4

Part = tuple[Inputs, Labels]


class Place(NamedTuple):
    """Where a stream is, and what identifies that in which `offset` counts."""

    offset: int = 0
    mark: str = ""


@dataclass(slots=True)
class _Chunk:
    x: Inputs
    y: Labels
    start: Place
    """Where the stream was before these samples."""
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
        self._evaluated = False

    def __len__(self) -> int:
        return self._count

    def put(self, x: Inputs, y: Labels, *, start: Place) -> None:
        """Add arrivals; `start` is where the stream was before them."""
        if len(y):
            self._chunks.append(_Chunk(x, y, start))
            self._count += len(y)

    @property
    def ready(self) -> int:
        """How many of the oldest may be learnt from."""
        return self._released if self._evaluated else self._count

    def newest(self, count: int) -> Iterator[Part]:
        """Yield the newest samples in parts, without removing them."""
        for chunk in reversed(self._chunks):
            first = max(chunk.given, len(chunk.y) - count)
            if first >= len(chunk.y):
                return
            yield chunk.x[first:], chunk.y[first:]
            count -= len(chunk.y) - first

    def scored(self) -> None:
        """Note an evaluation: all that is here may be learnt from."""
        self._evaluated = True
        self._released = self._count

    def release(self) -> None:
        """Let all that is here be learnt from, scored or not."""
        self._released = self._count

    def give(self, count: int) -> Iterator[Part]:
        """Remove and yield the oldest, in parts."""
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

    def place(self, stream: Place) -> Place:
        """Return where a new process has to go on so that nothing is lost.

        Without a mark, a stream whose offset is smaller than ours began anew: what is held here
        cannot be read again.
        """
        start = self._chunks[0].start if self._chunks else stream
        return start if start.mark else min(start, stream)


@dataclass(slots=True)
class ValidationStream:
    """The newest samples of a stream that is never learnt from."""

    stream: Stream
    _count: int
    _parts: deque[Part] = field(default_factory=deque)
    _held: int = 0

    def put(self, x: Inputs, y: Labels) -> None:
        """Add arrivals in the place of the oldest."""
        if not len(y):
            return
        self._parts.append((x, y))
        self._held += len(y)
        while self._held - len(self._parts[0][1]) >= self._count:
            self._held -= len(self._parts.popleft()[1])

    def newest(self) -> Iterator[Part]:
        """Yield the samples kept, in parts, oldest first."""
        surplus = max(0, self._held - self._count)
        for x, y in self._parts:
            yield x[surplus:], y[surplus:]
            surplus = 0


class Proportions:
    """Looks once whether features are of a size that a model can learn: about 1.

    `note` names those that are not, for the run's operator and the device's own log: names alone,
    so that nothing of a sample leaves the device.
    """

    def __init__(self, *, over: bool = False) -> None:
        self.names: Sequence[str] = ()
        self.note = ""
        self._parts: list[np.ndarray[tuple[int, ...], np.dtype[np.float64]]] = []
        self._over = over

    def look(self, x: Inputs) -> bool:
        """Add scaled samples [n, features]; True, once, if a feature is out of proportion."""
        if self._over or isinstance(x, Csr) or not len(x):
            return False
        self._parts.append(x.astype(np.float64))
        if sum(map(len, self._parts)) < ENOUGH:
            return False
        self._over = True
        seen = np.concatenate(self._parts)
        self._parts.clear()
        with np.errstate(over="ignore", invalid="ignore"):
            size, deviation = np.sqrt(np.square(seen).mean(axis=0)), seen.std(axis=0)
        varied = deviation[deviation > 0]
        usual = float(np.median(varied)) if len(varied) else 0.0
        odd = np.flatnonzero((size > LARGE) | ((deviation > 0) & (deviation < SMALL * usual)))
        if len(odd):
            more = f" and {len(odd) - MAX_NAMED} more" if len(odd) > MAX_NAMED else ""
            shown = ", ".join(self.names[i] for i in odd[:MAX_NAMED])
            self.note = f"out of proportion: {shown}{more}"
        return bool(len(odd))
