"""Chunked, resumable, idempotent transfer under credit that the receiver grants.

The receiver authorises exact chunks with `Need`; the sender sends those and no others. So a
broker's queue never holds more than the credit that is out: unwindowed QoS 1 loses messages
at the broker's queue limit.
"""

from collections import deque
from dataclasses import dataclass, field

from .errors import ChunkError, OversizeError
from .messages import MAX_CHUNK_BYTES, MAX_CHUNKS

FIRST_RETRY_S = 1.5
LONGEST_RETRY_S = 15.0
LONGEST_CHUNK_S = 60.0
"""No chunk is given longer than this on the word of the one before it."""
CREDIT_WINDOW = 8
"""Most chunks that a sender honours at a time of one receiver: no receiver has a larger window."""

RangeList = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Layout:
    """How an object of `size` bytes is cut; raises `ChunkError` or `OversizeError`."""

    size: int
    chunk_bytes: int

    def __post_init__(self) -> None:
        if not 0 < self.chunk_bytes <= MAX_CHUNK_BYTES or self.size <= 0:
            raise ChunkError(f"{self.size} bytes in chunks of {self.chunk_bytes}")
        if self.count > MAX_CHUNKS:
            raise OversizeError("chunk count", self.count, MAX_CHUNKS)

    @property
    def count(self) -> int:
        """Number of chunks."""
        return -(-self.size // self.chunk_bytes)

    def span(self, index: int) -> tuple[int, int]:
        """Return the byte range of a chunk; raises `ChunkError` if there is none."""
        if not 0 <= index < self.count:
            raise ChunkError(f"chunk {index} of {self.count}")
        start = index * self.chunk_bytes
        return start, min(start + self.chunk_bytes, self.size)

    def check(self, index: int, length: int) -> int:
        """Return the offset of a chunk that came, or raise `ChunkError`."""
        start, stop = self.span(index)
        if length != stop - start:
            raise ChunkError(f"chunk {index} has {length} bytes, not {stop - start}")
        return start


def to_ranges(indices: list[int]) -> RangeList:
    """Return sorted indices as half-open ranges."""
    ranges: list[tuple[int, int]] = []
    for index in indices:
        if ranges and ranges[-1][1] == index:
            ranges[-1] = (ranges[-1][0], index + 1)
        else:
            ranges.append((index, index + 1))
    return tuple(ranges)


def _first(ranges: RangeList, count: int, most: int) -> dict[int, None]:
    """Return the first few of the chunks in ranges, in their order and each once."""
    found: dict[int, None] = {}
    for start, stop in ranges:
        for index in range(start, min(stop, count)):
            if len(found) == most:
                return found
            found[index] = None
    return found


@dataclass(slots=True)
class Receiver:
    """The receiving end of one object, of which it may `have` chunks already."""

    layout: Layout
    window: int = 4  # most chunks that are authorised and have not come
    have: set[int] = field(default_factory=set)
    _outstanding: dict[int, None] = field(default_factory=dict)
    _cursor: int = 0
    _waiting_since: float = 0.0
    _patience_s: float = FIRST_RETRY_S

    @property
    def complete(self) -> bool:
        """Whether every chunk is here."""
        return len(self.have) == self.layout.count

    @property
    def outstanding(self) -> int:
        """Chunks that are authorised and have not come."""
        return len(self._outstanding)

    def accept(self, index: int, length: int, now: float) -> bool:
        """Note a chunk; False if it was here already. Raises `ChunkError` if it does not fit."""
        self.layout.check(index, length)
        self._outstanding.pop(index, None)
        if index in self.have:
            return False
        self.have.add(index)
        # A link that needs long for one chunk must not be asked twice for the next.
        took = now - self._waiting_since
        self._patience_s = min(LONGEST_CHUNK_S, max(FIRST_RETRY_S, 4.0 * took))
        self._waiting_since = now
        return True

    def ask(self, now: float, *, allowance: int | None = None) -> RangeList:
        """Return the chunks to authorise now; `allowance` limits the new ones.

        New credit goes out when half the window is free, so that a transfer costs one `Need`
        per half window. Outstanding chunks are asked for again, ever more patiently.
        """
        if self._outstanding and now - self._waiting_since >= self._patience_s:
            self._waiting_since = now
            self._patience_s = min(self._patience_s * 2, max(LONGEST_RETRY_S, self._patience_s))
            return to_ranges(sorted(self._outstanding))
        room = self.window - len(self._outstanding)
        if room * 2 < self.window:
            return ()
        fresh = self._next(room if allowance is None else min(room, allowance))
        if fresh and not self._outstanding:
            self._waiting_since = now
        self._outstanding.update(dict.fromkeys(fresh))
        return to_ranges(fresh)

    def forget_credit(self) -> None:
        """Take all credit back: the sender or the link is gone."""
        self._outstanding.clear()
        self._cursor = 0
        self._patience_s = FIRST_RETRY_S

    @property
    def due(self) -> float | None:
        """When `ask` should be called although nothing came; None if never."""
        return self._waiting_since + self._patience_s if self._outstanding else None

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
    _queue: dict[int, None] = field(default_factory=dict)
    _sent: set[int] = field(default_factory=set)

    def authorise(self, ranges: RangeList, *, link_idle: bool) -> None:
        """Take credit. Chunks already sent go again only over an idle link.

        Else a chunk that is asked for again is most likely under way. Credit beyond
        `CREDIT_WINDOW` is ignored: who wants the rest asks again.
        """
        for index in _first(ranges, self.layout.count, CREDIT_WINDOW):
            if len(self._queue) < CREDIT_WINDOW and (link_idle or index not in self._sent):
                self._queue[index] = None

    def next(self) -> int | None:
        """Return the next chunk to send, or None when no credit is left."""
        if not self._queue:
            return None
        index = next(iter(self._queue))
        del self._queue[index]
        self._sent.add(index)
        return index

    @property
    def pending(self) -> int:
        """Authorised chunks that were not handed to the link yet."""
        return len(self._queue)


@dataclass(slots=True)
class CreditPool:
    """A cap on the bytes that many transfers have authorised together."""

    limit_bytes: int
    used_bytes: int = 0

    def chunks(self, chunk_bytes: int) -> int:
        """Return how many chunks of this size may be authorised now.

        One chunk is always possible when the pool is idle, however small it is.
        """
        if self.used_bytes == 0:
            return max(1, self.limit_bytes // chunk_bytes)
        return max(0, (self.limit_bytes - self.used_bytes) // chunk_bytes)

    def take(self, nbytes: int) -> None:
        """Note credit given; less than 0 is used up, or taken back."""
        self.used_bytes += nbytes


@dataclass(slots=True)
class Broadcast:
    """Publishing one object once to several receivers at the pace of their credit.

    The pointer moves to a chunk when every receiver has authorised it or needs only later ones.
    One that asks for nothing ahead of it for `stall_s` no longer holds the others up; what is asked
    for behind the pointer goes to the receiver alone. Of each receiver `CREDIT_WINDOW` chunks are
    honoured: one that authorises everything moves the pointer no further than an honest one.
    """

    layout: Layout
    stall_s: float = 0.5
    position: int = 0
    _credit: dict[str, dict[int, None]] = field(default_factory=dict)
    _heard: dict[str, float] = field(default_factory=dict)
    _sent: dict[str, deque[float]] = field(default_factory=dict)

    def authorise(
        self, receiver: str, ranges: RangeList, now: float, *, asked_at: float | None = None
    ) -> list[int]:
        """Take credit; return the chunks behind the pointer, to be sent to it alone.

        `asked_at` is when the credit was read: it says nothing of chunks that went out since, so
        these take room in the receiver's window, and many requests at once give no more than one.
        """
        read_at = now if asked_at is None else asked_at
        room = CREDIT_WINDOW - sum(at >= read_at for at in self._sent.get(receiver, ()))
        asked = _first(ranges, self.layout.count, room)
        behind = [index for index in asked if index < self.position]
        # Who began again asks for other chunks: what is wanted now goes before what was.
        ahead = {index: None for index in asked if index >= self.position}
        ahead |= self._credit.get(receiver, {})
        self._credit[receiver] = dict.fromkeys(list(ahead)[: room - len(behind)])
        # Who only asks for what went out, or for what is not there, holds nobody up for ever.
        if receiver not in self._heard or self._credit[receiver]:
            self._heard[receiver] = now
        return behind

    def sent(self, receiver: str, now: float) -> None:
        """Note that a chunk went out on this receiver's credit."""
        self._sent.setdefault(receiver, deque(maxlen=CREDIT_WINDOW)).append(now)

    @property
    def held_up(self) -> bool:
        """Whether chunks are authorised that were not published."""
        return any(self._credit.values())

    def leave(self, receiver: str) -> None:
        """Forget a receiver that is done or gone."""
        self._credit.pop(receiver, None)
        self._heard.pop(receiver, None)
        self._sent.pop(receiver, None)

    def next(self, now: float) -> int | None:
        """Return the next chunk to publish to all, or None to wait."""
        if self.position >= self.layout.count or not self._credit:
            return None
        wanted = False
        for receiver, ahead in self._credit.items():
            if self.position in ahead:
                wanted = True
            elif now - self._heard[receiver] < self.stall_s and not (
                ahead and min(ahead) > self.position
            ):
                return None
        if not wanted:
            waiting = [min(ahead) for ahead in self._credit.values() if ahead]
            if not waiting:
                return None
            self.position = min(waiting)
        index = self.position
        for receiver, ahead in self._credit.items():
            if index in ahead:
                del ahead[index]
                self.sent(receiver, now)
        self.position += 1
        return index
