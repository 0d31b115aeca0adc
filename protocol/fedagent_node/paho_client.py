"""What a link needs beyond paho: its client, what is unacknowledged, what is subscribed to."""

import asyncio
import math
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import cast

from paho.mqtt.client import Client as PahoClient
from paho.mqtt.client import MQTTMessageInfo
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode

from .errors import SubscribeRefusedError
from .network import CONNECT_TIMEOUT_S

READ_AHEAD_BYTES = 64 * 1024
"""paho reads a packet's head byte by byte; reading ahead saves three calls in four."""
OUTBOX_LIMIT = 8192
"""Most unacknowledged messages; their ids are 16 bit."""


class Client(PahoClient):
    """A paho client that reads ahead, limits packets and keeps the cause of a loss."""

    def __init__(self, client_id: str, max_packet_bytes: int) -> None:
        super().__init__(CallbackAPIVersion.VERSION2, client_id, clean_session=True)
        self.suppress_exceptions = True
        self.connect_timeout = CONNECT_TIMEOUT_S
        # Credit at the application is the limit, not a window of paho's.
        self.max_inflight_messages_set(0)
        self.max_queued_messages_set(OUTBOX_LIMIT * 2)
        # With this callback set, paho never writes to the socket by itself.
        self.on_socket_register_write = lambda *_: None
        self.limit = max_packet_bytes
        self.failure: OSError | None = None
        self.ready_socket: socket.socket | None = None
        self.received_at = -math.inf  # by the monotonic clock
        self._buffer = bytearray(READ_AHEAD_BYTES)
        self._ahead = b""
        self._at = 0

    @property
    def local_address(self) -> str:
        """Address of this end of the connection; empty without one."""
        sock = self.socket()
        try:
            return str(sock.getsockname()[0]) if isinstance(sock, socket.socket) else ""
        except OSError:
            return ""

    @property
    def has_more(self) -> bool:
        """Whether bytes wait that no poll will announce."""
        if self._at < len(self._ahead):
            return True
        pending = getattr(self.socket(), "pending", None)
        return pending is not None and pending() > 0

    def fresh_socket(self) -> None:
        """Forget what was read from the previous socket."""
        self._ahead = b""
        self._at = 0

    def give_up(self, reason: str) -> None:
        """Break the connection, for a reason of ours; the next read meets its end."""
        sock = self.socket()
        if self.failure is None and isinstance(sock, socket.socket):
            self.failure = OSError(reason)
            with suppress(OSError):  # it is gone already
                sock.shutdown(socket.SHUT_RDWR)

    def _sock_recv(self, bufsize: int) -> bytes:
        start = self._at
        if start < len(self._ahead):
            self._at = start + bufsize
            return self._ahead[start : start + bufsize]
        if bufsize > self.limit:
            raise self._failed(OSError(f"a packet of {bufsize} bytes, the limit is {self.limit}"))
        try:
            if bufsize >= READ_AHEAD_BYTES and not isinstance(self.socket(), ssl.SSLSocket):
                found = super()._sock_recv(bufsize)
                self.received_at = time.monotonic()
                return found
            self._ahead = self._read_ahead()
            self.received_at = time.monotonic()
        except BlockingIOError:
            raise
        except OSError as exc:
            raise self._failed(exc) from None
        self._at = bufsize
        return self._ahead[:bufsize]

    def _read_ahead(self) -> bytes:
        """Read into the same buffer each time: a new one for each read drives the heap apart."""
        sock = self.socket()
        if not isinstance(sock, socket.socket):
            raise ConnectionError("there is no connection")
        try:
            count = sock.recv_into(self._buffer)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as error:
            raise BlockingIOError from error
        return bytes(memoryview(self._buffer)[:count])

    def _packet_queue(
        self,
        command: int,
        packet: bytes | bytearray,
        mid: int,
        qos: int,
        info: MQTTMessageInfo | None = None,
    ) -> MQTTErrorCode:
        # paho slices what is left after each write, and TLS writes 16 KiB at a time: a chunk
        # would be copied eight times.
        view = cast("bytes", memoryview(packet))
        return super()._packet_queue(command, view, mid, qos, info)

    def _sock_send(self, buf: bytes | bytearray) -> int:
        try:
            return super()._sock_send(buf)
        except BlockingIOError:
            raise
        except OSError as exc:
            raise self._failed(exc) from None

    def _create_socket(self) -> socket.socket:
        sock, self.ready_socket = self.ready_socket, None
        assert sock is not None
        return sock

    def _failed(self, exc: OSError) -> OSError:
        # The first error names the cause; those after it are its consequences.
        self.failure = self.failure or exc
        return exc


class PublishQueue:
    """What was published on a connection and is not yet acknowledged.

    Acknowledgements come in order, so that looking at the oldest suffices.
    """

    def __init__(self, *, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._waiting: deque[tuple[MQTTMessageInfo, int]] = deque()
        self._bytes = 0

    @property
    def pending_bytes(self) -> int:
        """Payload bytes that are not acknowledged."""
        self._prune()
        return self._bytes

    @property
    def empty(self) -> bool:
        """Whether nothing waits."""
        self._prune()
        return not self._waiting

    def has_room(self, size: int) -> bool:
        """Return whether `size` more bytes are within the limits."""
        if len(self._waiting) > OUTBOX_LIMIT // 32 or self._bytes + size > self._limit_bytes:
            self._prune()
        return len(self._waiting) < OUTBOX_LIMIT and self._bytes + size <= self._limit_bytes

    def add(self, token: MQTTMessageInfo, size: int) -> None:
        """Note a message that was handed to the connection."""
        self._waiting.append((token, size))
        self._bytes += size

    def forget(self) -> int:
        """Drop everything with its connection; return how much was unacknowledged."""
        lost = sum(not _done(token) for token, _ in self._waiting)
        self._waiting.clear()
        self._bytes = 0
        return lost

    def _prune(self) -> None:
        while self._waiting and _done(self._waiting[0][0]):
            self._bytes -= self._waiting.popleft()[1]


def _done(token: MQTTMessageInfo) -> bool:
    # A message that met the end of its connection has an error code, and
    # `is_published` would raise it.
    return token.rc == 0 and token.is_published()


Waiting = list["asyncio.Future[None]"]


class Subscriptions:
    """Which topic filters are wanted, and who waits for the broker to grant them.

    `send` sends one SUBSCRIBE; it returns its packet id, or None without a connection.
    """

    def __init__(self, send: Callable[[list[str]], int | None]) -> None:
        self._send = send
        self._filters: dict[str, None] = {}
        self._asked: dict[int, tuple[tuple[str, ...], Waiting]] = {}
        self._unasked: Waiting = []

    def add(self, filters: tuple[str, ...], future: "asyncio.Future[None]", *, now: bool) -> None:
        """Remember filters, and ask for them if there is a connection."""
        self._filters.update(dict.fromkeys(filters))
        if now:
            self._ask(filters, [future])
        else:
            self._unasked.append(future)

    def remove(self, filters: tuple[str, ...]) -> None:
        """Forget filters."""
        for topic_filter in filters:
            self._filters.pop(topic_filter, None)

    def ask_all(self) -> None:
        """Ask a new connection for everything."""
        waiting, self._unasked = self._unasked, []
        if self._filters:
            self._ask(tuple(self._filters), waiting)

    def granted(self, packet_id: int, failures: list[bool]) -> tuple[str, ...]:
        """Take a SUBACK with one flag per filter; return the filters that were refused."""
        filters, waiting = self._asked.pop(packet_id, ((), []))
        refused = tuple(f for f, failed in zip(filters, failures, strict=False) if failed)
        for future in waiting:
            if future.done():
                continue
            if refused:
                future.set_exception(SubscribeRefusedError(refused))
            else:
                future.set_result(None)
        return refused

    def connection_lost(self) -> None:
        """Keep those who wait for the next connection."""
        for _, waiting in self._asked.values():
            self._unasked += [future for future in waiting if not future.done()]
        self._asked.clear()

    def cancel(self) -> None:
        """Cancel every future."""
        self.connection_lost()
        for future in self._unasked:
            future.cancel()

    def _ask(self, wanted: tuple[str, ...], waiting: Waiting) -> None:
        packet_id = self._send(list(wanted))
        if packet_id is None:
            self._unasked += waiting
        else:
            self._asked[packet_id] = (wanted, waiting)
