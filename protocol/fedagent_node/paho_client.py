"""The MQTT client of a link: what it needs beyond paho."""

import itertools
import socket
import ssl
import time
from contextlib import suppress
from typing import cast

from paho.mqtt.client import Client as PahoClient
from paho.mqtt.client import MQTTMessageInfo
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode

from .network import CONNECT_TIMEOUT_S

AT_ONCE = 64
RECORD_BYTES = 16 * 1024
"""What TLS encrypts at a time."""
READ_AHEAD_BYTES = 64 * 1024
"""paho reads a packet's head byte by byte; reading ahead saves three calls in four."""


class Client(PahoClient):
    """A paho client that reads ahead, limits packets and keeps the cause of a loss."""

    def __init__(self, client_id: str, max_packet_bytes: int) -> None:
        super().__init__(CallbackAPIVersion.VERSION2, client_id, clean_session=True)
        self.suppress_exceptions = True
        self.connect_timeout = CONNECT_TIMEOUT_S
        # Credit at the application is the limit, not a window of paho's.
        self.max_inflight_messages_set(0)
        # With this callback set, paho never writes to the socket by itself.
        self.on_socket_register_write = lambda *_: None
        self.limit = max_packet_bytes
        self.failure: OSError | None = None
        self.ready_socket: socket.socket | None = None
        self._buffer = bytearray(READ_AHEAD_BYTES)
        self._ahead = b""
        self._at = 0
        self._written = 0

    @property
    def has_more(self) -> bool:
        """Whether bytes wait that no poll will announce."""
        if self._at < len(self._ahead):
            return True
        pending = getattr(self.socket(), "pending", None)
        return pending is not None and pending() > 0

    @property
    def rest_s(self) -> float:
        """How long keep-alive needs no look."""
        last = min(self._last_msg_out, self._last_bytes_received)
        return max(1.0, last + self.keepalive - time.monotonic())

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
                return super()._sock_recv(bufsize)
            self._ahead = self._read_ahead()
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
        """Write this and the packets that follow with one call, which wakes the broker once."""
        if not self._written:
            more = (packet["packet"] for packet in itertools.islice(self._out_packet, AT_ONCE))
            try:
                self._written = self._write_all([buf, *more])
            except BlockingIOError:
                raise
            except OSError as exc:
                raise self._failed(exc) from None
        taken = min(len(buf), self._written)
        self._written -= taken
        return taken

    def _write_all(self, packets: list[bytes | bytearray]) -> int:
        sock = self.socket()
        if type(sock) is socket.socket:
            return sock.sendmsg(packets)
        record = bytearray()
        for packet in packets:
            if (room := RECORD_BYTES - len(record)) <= 0:
                break
            record += memoryview(packet)[:room]
        return super()._sock_send(record)

    def _create_socket(self) -> socket.socket:
        sock, self.ready_socket = self.ready_socket, None
        assert sock is not None
        self._ahead, self._at, self._written = b"", 0, 0  # all of that was of the one before
        return sock

    def _failed(self, exc: OSError) -> OSError:
        # The first error names the cause; those after it are its consequences.
        self.failure = self.failure or exc
        return exc
