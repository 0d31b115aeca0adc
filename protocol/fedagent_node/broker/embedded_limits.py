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
MAX_ENTERING_OF_ONE = 384
"""Connections of one address that are no session yet: behind a router may be a whole field."""
MAX_UNREAD = 2
"""Messages of one client that may wait to be passed on, before the next is read."""
PATIENCE_S = 10.0
"""A connection that is not a session by then is closed."""
BYTES_PER_S = 32 << 20
BURST_BYTES = 64 << 20
PACKETS_PER_S = 300.0
"""What one client may send; who sends more is read more slowly."""


class Admission:
    """Counts connections, those that have yet to say who they are apart."""

    def __init__(self, counters: Counter[str]) -> None:
        self.counters = counters
        self.connections = 0
        self.entering: Counter[str] = Counter()
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        bounded = soft != resource.RLIM_INFINITY
        # Where descriptors are very few, half of them are for connections.
        room = max(soft - OTHER_DESCRIPTORS, soft // 2)
        self.most = min(MAX_CONNECTIONS, room) if bounded else MAX_CONNECTIONS

    def enter(self, peer: str) -> "Entry | None":
        """Return the way in of one more from this address; None without room."""
        if (
            self.connections >= self.most
            or self.entering.total() >= MAX_ENTERING
            or self.entering[peer] >= MAX_ENTERING_OF_ONE
        ):
            self.counters["refused_connects"] += 1
            return None
        self.connections += 1
        self.entering[peer] += 1
        return Entry(self, peer)


class Entry:
    """One connection's way in."""

    def __init__(self, admission: Admission, peer: str) -> None:
        self._admission = admission
        self.peer = peer
        self._transport: asyncio.WriteTransport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.settled = False

    def watch(self, transport: asyncio.WriteTransport) -> None:
        """Close the connection if it is no session in time."""

        def late() -> None:
            self._admission.counters["silent_connects"] += 1
            transport.abort()

        self._transport = transport
        self._timer = asyncio.get_running_loop().call_later(PATIENCE_S, late)

    def settle(self) -> None:
        """Note that it was answered: it is a session."""
        if self.settled:
            return
        self.settled = True
        entering = self._admission.entering
        entering[self.peer] -= 1
        if entering[self.peer] <= 0:
            del entering[self.peer]
        if self._timer is not None:
            self._timer.cancel()

    def leave(self) -> None:
        """Note its end."""
        self.settle()
        self._admission.connections -= 1
        if self._transport is not None:
            self._transport.abort()


class LimitedReader(StreamReaderAdapter):  # type: ignore[misc]  # amqtt is skipped by mypy
    """Read no packet over the limit, and none faster than a client may send."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: "Writer",
        limit: int,
        counters: Counter[str],
        *,
        trusted: bool,
    ) -> None:
        super().__init__(reader)
        self._writer = writer
        self._limit = limit
        self._counters = counters
        self._trusted = trusted  # the broker's owner, whom no rate holds back
        self._loop = asyncio.get_running_loop()
        self._paid_until = self._loop.time()
        self.waiting: Callable[[], int] = lambda: 0

    async def read(self, n: int = -1) -> bytes:
        """Return `n` bytes, as late as the rates want it."""
        if n > self._limit:
            self._counters["oversize"] += 1
            self._writer.abort()
            raise ConnectionResetError(f"a packet of {n} bytes, the limit is {self._limit}")
        turns = 0
        while self.waiting() >= MAX_UNREAD:
            turns += 1
            await asyncio.sleep(0 if turns < 20 else 0.002)
        data: bytes = await super().read(n)
        if self._trusted:
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
    """Know who it serves: the name in the certificate, empty where there is none."""

    def __init__(self, writer: asyncio.StreamWriter, entry: Entry) -> None:
        super().__init__(writer)
        self._transport = writer.transport
        self._entry = entry
        tls: ssl.SSLObject | None = writer.get_extra_info("ssl_object")
        subject = (tls.getpeercert() or {}).get("subject", ()) if tls is not None else ()
        names = (pair for part in subject for pair in part)
        self.name = next((str(pair[1]) for pair in names if pair[0] == "commonName"), "")

    @property
    def backlog_bytes(self) -> int:
        """What the subscriber has not taken yet."""
        return self._transport.get_write_buffer_size()

    def write(self, data: bytes) -> None:
        """Write without waiting."""
        self._entry.settle()
        super().write(data)

    def abort(self) -> None:
        """Close at once, whatever waits to be written."""
        self._transport.abort()
