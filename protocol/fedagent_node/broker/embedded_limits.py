"""What one client of the embedded broker, and one address, may take up."""

import asyncio
import resource
import ssl
from collections import Counter
from collections.abc import Callable

from amqtt.adapters import StreamReaderAdapter, StreamWriterAdapter

MAX_CONNECTIONS = 1200
OTHER_DESCRIPTORS = 64
"""What the broker's process has open beside its connections, with room to spare."""
MAX_ENTERING = 512
STREAM_BYTES = 64 << 10
"""What is read ahead; a packet may be longer."""
MAX_UNREAD = 2
"""Messages of one client that may wait to be passed on, before the next is read."""
MAX_ENTERING_OF_ONE = 384
"""Connections of one address that are no session yet: behind a router may be a whole field."""
PATIENCE_S = 10.0
"""A connection that is not a session by then is closed."""
BYTES_PER_S = 32 << 20
BURST_BYTES = 64 << 20
PACKETS_PER_S = 300.0
"""What one client may send; who sends more is read more slowly."""


class Admission:
    """Counts connections, those that have yet to say who they are apart."""

    def __init__(self, counters: Counter[str]) -> None:
        self._counters = counters
        self._connections = 0
        self._entering: Counter[str] = Counter()
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        bounded = soft != resource.RLIM_INFINITY
        # Where descriptors are very few, half of them are for connections.
        room = max(soft - OTHER_DESCRIPTORS, soft // 2)
        self.most = min(MAX_CONNECTIONS, room) if bounded else MAX_CONNECTIONS

    def enter(self, peer: str) -> bool:
        """Return whether there is room for one more from this address."""
        entering = self._entering
        if (
            self._connections >= self.most
            or entering.total() >= MAX_ENTERING
            or entering[peer] >= MAX_ENTERING_OF_ONE
        ):
            self._counters["refused_connects"] += 1
            return False
        self._connections += 1
        entering[peer] += 1
        return True

    def settle(self, peer: str) -> None:
        """Note that one is a session now, or gone before that."""
        self._entering[peer] -= 1
        if self._entering[peer] <= 0:
            del self._entering[peer]

    def leave(self) -> None:
        """Note that one is gone."""
        self._connections -= 1

    def count_silent(self) -> None:
        """Count one that said nothing for too long."""
        self._counters["silent_connects"] += 1


class Entry:
    """One connection's way in."""

    def __init__(self, admission: Admission, peer: str) -> None:
        self._admission = admission
        self._peer = peer
        self._transport: asyncio.WriteTransport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.settled = False

    def watch(self, transport: asyncio.WriteTransport) -> None:
        """Close the connection if it is no session in time."""
        self._transport = transport
        self._timer = asyncio.get_running_loop().call_later(PATIENCE_S, self._late)

    def settle(self) -> None:
        """Note that it was answered: it is a session."""
        if not self.settled:
            self.settled = True
            self._admission.settle(self._peer)
            if self._timer is not None:
                self._timer.cancel()

    def leave(self) -> None:
        """Note its end."""
        self.settle()
        self._admission.leave()
        if self._transport is not None:
            self._transport.abort()

    def _late(self) -> None:
        self._admission.count_silent()
        assert self._transport is not None
        self._transport.abort()


class LimitedReader(StreamReaderAdapter):  # type: ignore[misc]  # amqtt is skipped by mypy
    """Read no packet over the limit, and none faster than a client may send."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        limit: int,
        counters: Counter[str],
    ) -> None:
        super().__init__(reader)
        self._writer = writer
        self._limit = limit
        self._counters = counters
        self._loop = asyncio.get_running_loop()
        self._paid_until = self._loop.time()
        self.waiting: Callable[[], int] = lambda: 0
        self.trusted = False
        """Whether it is the broker's owner, whom no rate holds back."""

    async def read(self, n: int = -1) -> bytes:
        """Return `n` bytes, as late as the rates want it."""
        if n > self._limit:
            self._counters["oversize"] += 1
            self._writer.transport.abort()
            raise ConnectionResetError(f"a packet of {n} bytes, the limit is {self._limit}")
        turns = 0
        while self.waiting() >= MAX_UNREAD:
            turns += 1
            await asyncio.sleep(0 if turns < 20 else 0.002)
        data: bytes = await super().read(n)
        if self.trusted:
            return data
        # A packet is three reads: its type, its length, its body.
        cost = n / BYTES_PER_S + 1 / (3 * PACKETS_PER_S)
        now = self._loop.time()
        self._paid_until = max(self._paid_until, now - BURST_BYTES / BYTES_PER_S) + cost
        if self._paid_until > now:
            self._counters["slowed"] += 1
            await asyncio.sleep(self._paid_until - now)
        return data


class Writer(StreamWriterAdapter):  # type: ignore[misc]  # as above
    """Know whom it serves: the name in the certificate, empty where those name nobody."""

    def __init__(self, writer: asyncio.StreamWriter, entry: Entry, name: str) -> None:
        super().__init__(writer)
        self._stream = writer
        self._entry = entry
        self.name = name

    @property
    def backlog_bytes(self) -> int:
        """What the subscriber has not taken yet."""
        return self._stream.transport.get_write_buffer_size()

    def write(self, data: bytes) -> None:
        """Write without waiting."""
        self._entry.settle()
        super().write(data)

    def abort(self) -> None:
        """Close at once, whatever waits to be written."""
        self._stream.transport.abort()


def name_of(writer: asyncio.StreamWriter) -> str:
    """Return the common name of a client's certificate, which the handshake has checked."""
    tls: ssl.SSLObject | None = writer.get_extra_info("ssl_object")
    subject = (tls.getpeercert() or {}).get("subject", ()) if tls is not None else ()
    names = (pair for part in subject for pair in part)
    return next((str(pair[1]) for pair in names if pair[0] == "commonName"), "")
