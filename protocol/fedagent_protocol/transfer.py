"""Chunked, resumable, idempotent transfer under credit that the receiver grants.

The receiver authorises exact chunks with `Need`, about two seconds of its link ahead of what it
has; the sender sends those and no others. So what waits at a broker for one receiver delays its
other messages by no more, and delays nobody else.
"""

from collections import deque
from dataclasses import dataclass, field

from .errors import ProtocolError, too_large
from .messages import MAX_CHUNK_BYTES, MAX_CHUNKS

PIECE_BYTES = 512 * 1024
"""Most that one message carries, of chunks that follow each other."""
WINDOW_BYTES = 4 * PIECE_BYTES
"""Most that is authorised and has not come; a sender honours no more at a time."""
PIECE_S = 1.0
AHEAD_S = 2.0
"""How long a message takes on a slow link, and all that is authorised."""
FIRST_RATE = 32 * 1024
LEAST_RATE, MOST_RATE = 8 * 1024, WINDOW_BYTES / AHEAD_S
"""Bytes per second: what any link is believed to carry at first, at least and at most."""
PATIENCE = 4.0
LEAST_PATIENCE_S = 2.0
LONGEST_PATIENCE_S = 60.0
"""After so many times what a message takes it is asked for again."""
LONGEST_RETRY_S = 15.0
"""How far repeated requests lie apart where a message takes no longer."""

RangeList = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Layout:
    """How an object of `size` bytes is cut; raises `ProtocolError`."""

    size: int
    chunk_bytes: int

    def __post_init__(self) -> None:
        if not 0 < self.chunk_bytes <= MAX_CHUNK_BYTES or self.size <= 0:
            raise ProtocolError(f"{self.size} bytes in chunks of {self.chunk_bytes}", "bad_chunk")
        if self.count > MAX_CHUNKS:
            raise too_large("chunk count", self.count, MAX_CHUNKS)

    @property
    def count(self) -> int:
        """Number of chunks."""
        return -(-self.size // self.chunk_bytes)

    def chunks_in(self, nbytes: float) -> int:
        """Return how many chunks fit into so many bytes, at least one."""
        return max(1, int(nbytes // self.chunk_bytes))

    def first_bytes(self, most: float = PIECE_BYTES) -> int:
        """Return the length of a first message that is no longer than this, or one chunk."""
        return min(self.size, self.chunks_in(min(most, PIECE_BYTES)) * self.chunk_bytes)

    def span(self, start: int, stop: int | None = None) -> tuple[int, int]:
        """Return the byte range of a chunk, or of several; or raise `ProtocolError`."""
        stop = start + 1 if stop is None else stop
        if not 0 <= start < stop <= self.count:
            raise ProtocolError(f"chunks {start} to {stop} of {self.count}", "bad_chunk")
        return start * self.chunk_bytes, min(stop * self.chunk_bytes, self.size)

    def check(self, index: int, length: int) -> range:
        """Return the chunks that a message holds from `index` on, or raise `ProtocolError`."""
        stop = index - (-length // self.chunk_bytes)
        begin, end = self.span(index, stop)
        if length != end - begin:
            raise ProtocolError(
                f"{length} bytes from chunk {index} on, not {end - begin}", "bad_chunk"
            )
        return range(index, stop)


def to_ranges(indices: list[int], most: int = MAX_CHUNKS) -> RangeList:
    """Return sorted indices as half-open ranges of at most so many."""
    ranges: list[tuple[int, int]] = []
    for index in indices:
        if ranges and ranges[-1][1] == index and index - ranges[-1][0] < most:
            ranges[-1] = (ranges[-1][0], index + 1)
        else:
            ranges.append((index, index + 1))
    return tuple(ranges)


@dataclass(slots=True)
class Pace:
    """What a link has shown to carry in one direction, in bytes per second, over all transfers.

    What it seems to carry beyond that is believed step by step: the first bytes of a burst fit into
    buffers, however slow the link is.
    """

    rate: float = FIRST_RATE

    @property
    def piece_bytes(self) -> float:
        """Most that one message should carry."""
        return min(PIECE_BYTES, PIECE_S * self.rate)

    @property
    def window_bytes(self) -> float:
        """Most that should be under way."""
        return min(WINDOW_BYTES, AHEAD_S * self.rate)

    def note(self, nbytes: int, seconds: float) -> None:
        """Add what went over it: a little that came soon does not show that it carries no more."""
        seen = min(nbytes / max(seconds, 1e-4), 2 * self.rate, MOST_RATE)
        if seen > self.rate or 3 * nbytes >= self.window_bytes or seconds > PIECE_S / 4:
            self.rate = max(LEAST_RATE, seen)


@dataclass(slots=True)
class Receiver:
    """The receiving end of one object, of which it may `have` chunks already, over a link."""

    layout: Layout
    pace: Pace = field(default_factory=Pace)
    have: set[int] = field(default_factory=set)
    _outstanding: dict[int, None] = field(default_factory=dict)
    _cursor: int = 0
    _moved_at: float = 0.0  # when something came, or was asked for last
    _repeats: int = 0  # how often in a row nothing came
    _asked_at: float = 0.0
    _came: int = 0  # bytes since then

    @property
    def complete(self) -> bool:
        """Whether every chunk is here."""
        return len(self.have) == self.layout.count

    @property
    def outstanding(self) -> int:
        """Chunks that are authorised and have not come."""
        return len(self._outstanding)

    def accept(self, index: int, length: int, now: float) -> bool:
        """Note chunks; False if they were here already; `ProtocolError`: they do not fit."""
        chunks = self.layout.check(index, length)
        fresh = not self.have.issuperset(chunks)
        self.have.update(chunks)
        if any(chunk in self._outstanding for chunk in chunks):
            self._came += length
        for chunk in chunks:
            self._outstanding.pop(chunk, None)
        if fresh:
            self._moved_at, self._repeats = now, 0
        if self.complete:
            self._measure(now)
        return fresh

    def ask(self, now: float, *, allowance: int | None = None) -> RangeList:
        """Return the chunks to authorise now, a range for each message.

        New credit goes out when half the window is free; `allowance` limits it. Outstanding chunks
        are asked for again, ever more patiently.
        """
        if self.due is not None and now >= self.due:
            self._moved_at, self._repeats = now, min(self._repeats + 1, 9)
            # What comes now may be of either request: that is no measurement.
            self._came, self._asked_at = 0, now
            self.pace.rate = max(LEAST_RATE, self.pace.rate / 2)
            # The rest may come of itself; else it is asked for when this is here.
            again = sorted(self._outstanding)[: self._window]
            self._outstanding, self._cursor = dict.fromkeys(again), 0
            return self._pieces(again)
        if 2 * self.outstanding > self._window:
            return ()
        self._measure(now)
        room = max(0, self._window - self.outstanding)
        fresh = self._next(room if allowance is None else min(room, allowance))
        if fresh and not self._outstanding:
            self._moved_at = now
        self._outstanding.update(dict.fromkeys(fresh))
        return self._pieces(fresh)

    def forget_credit(self) -> None:
        """Take all credit back: the sender or the link is gone."""
        self._outstanding.clear()
        self._cursor = self._repeats = self._came = 0

    @property
    def stalled(self) -> bool:
        """Whether nothing came although it was asked for again."""
        return self._repeats > 0

    @property
    def due(self) -> float | None:
        """When `ask` should be called although nothing came; None if never."""
        if not self._outstanding:
            return None
        nbytes = max(self.pace.piece_bytes, min(self.layout.chunk_bytes, self.layout.size))
        patience = max(LEAST_PATIENCE_S, PATIENCE * nbytes / self.pace.rate)
        patience = min(LONGEST_PATIENCE_S, patience)
        later = min(patience * (1 << self._repeats), max(LONGEST_RETRY_S, 4 * patience))
        return self._moved_at + max(patience, later)

    @property
    def _window(self) -> int:
        return max(1, round(self.pace.window_bytes / self.layout.chunk_bytes))

    def _pieces(self, indices: list[int]) -> RangeList:
        return to_ranges(indices, self.layout.chunks_in(self.pace.piece_bytes))

    def _measure(self, now: float) -> None:
        if self._came:
            self.pace.note(self._came, now - self._asked_at)
        self._came, self._asked_at = 0, now

    def _next(self, most: int) -> list[int]:
        fresh: list[int] = []
        index = self._cursor
        while len(fresh) < most and index < self.layout.count:
            if index not in self.have and index not in self._outstanding:
                fresh.append(index)
            index += 1
        self._cursor = index
        return fresh


@dataclass(slots=True)
class Sender:
    """The sending end of one object to one receiver."""

    layout: Layout
    _queue: deque[tuple[int, int]] = field(default_factory=deque)
    _sent: set[int] = field(default_factory=set)

    @property
    def pending(self) -> int:
        """Authorised chunks that were not handed to the link yet."""
        return sum(stop - start for start, stop in self._queue)

    def authorise(
        self, ranges: RangeList, *, link_idle: bool, most_bytes: int = WINDOW_BYTES
    ) -> None:
        """Take credit. Chunks already sent go again only over an idle link.

        Else a chunk that is asked for again is most likely under way. Credit beyond `most_bytes`
        is ignored: who wants the rest asks again.
        """
        known = {index for start, stop in self._queue for index in range(start, stop)}
        room = self.layout.chunks_in(most_bytes) - len(known) if most_bytes > 0 else 0
        if not link_idle:
            known |= self._sent
        asked: set[int] = set()
        for start, stop in ranges:
            near = range(start, min(stop, start + room, self.layout.count))
            fresh = [index for index in near if index not in asked][: room - len(asked)]
            asked.update(fresh)
            self._queue.extend(to_ranges([index for index in fresh if index not in known]))

    def first(self, most_bytes: float) -> int:
        """Return the length of the first message, which goes out unasked."""
        length = self.layout.first_bytes(most_bytes)
        self._sent.update(self.layout.check(0, length))
        return length

    def next(self, most_bytes: float = PIECE_BYTES) -> tuple[int, int] | None:
        """Return index and length of the next message; None without credit."""
        if not self._queue:
            return None
        start, end = self._queue.popleft()
        stop = min(end, start + self.layout.chunks_in(min(most_bytes, PIECE_BYTES)))
        if stop < end:
            self._queue.appendleft((stop, end))
        self._sent.update(range(start, stop))
        begin, end = self.layout.span(start, stop)
        return start, end - begin


@dataclass(slots=True)
class CreditPool:
    """A cap on the bytes that many transfers have authorised together."""

    limit_bytes: int
    used_bytes: int = 0

    def chunks(self, chunk_bytes: int) -> int:
        """Return how many chunks of this size may be authorised now, none for less than a message.

        One chunk is always possible when the pool is idle, however small it is.
        """
        free = self.limit_bytes - self.used_bytes
        if self.used_bytes == 0:
            return max(1, free // chunk_bytes)
        return free // chunk_bytes if free >= min(PIECE_BYTES, self.limit_bytes // 2) else 0

    def take(self, nbytes: int) -> None:
        """Note credit given; less than 0 is used up, or taken back."""
        self.used_bytes += nbytes
