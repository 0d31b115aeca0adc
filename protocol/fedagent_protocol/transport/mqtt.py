"""One MQTT connection, bridged into the event loop; the only module that touches paho.

A link owns one thread. It connects, reads, writes and keeps the connection alive
through paho's interface for external event loops, which lets us poll instead of
select, hand messages over in batches, and wait with jitter between attempts.
Nothing that a callback raises can end the thread.

Delivery is not promised: what was published when the connection broke is gone,
and is never sent again from here, because the application asks again.
"""

import asyncio
import logging
import os
import select
import socket
import ssl
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Any, Protocol

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode
from paho.mqtt.reasoncodes import ReasonCode

from .address import BrokerAddress, TlsFiles
from .backoff import Backoff
from .errors import LinkError, SubscribeRefusedError, safe_text
from .inbox import Arrival, Inbox

__all__ = ["Arrival", "BrokerAddress", "Link", "TlsFiles"]

_log = logging.getLogger(__name__)

READ_AHEAD_BYTES = 64 * 1024
"""paho reads a packet's head byte by byte; reading ahead saves three calls in four."""
OUTBOX_LIMIT = 8192
"""Most unacknowledged messages; their ids are 16 bit."""
CONNECT_TIMEOUT_S = 5.0
STABLE_S = 5.0
"""A connection that held this long starts the backoff anew when it breaks."""
FLUSH_S = 1.0
"""How long a stop waits for the broker to take what was published."""
_OK = MQTTErrorCode.MQTT_ERR_SUCCESS
_READABLE = select.POLLIN | select.POLLHUP | select.POLLERR


class _Socket(Protocol):
    """What we use of the sockets that paho makes."""

    def fileno(self) -> int: ...
    def setsockopt(self, level: int, name: int, value: int, /) -> None: ...


class _Client(paho.Client):
    """A paho client that reads ahead, limits packets and keeps the cause of a loss."""

    def __init__(self, client_id: str, max_packet_bytes: int) -> None:
        super().__init__(CallbackAPIVersion.VERSION2, client_id, clean_session=True)
        self.suppress_exceptions = True
        self.limit = max_packet_bytes
        self.failure: OSError | None = None
        self.ahead = b""
        self._at = 0

    @property
    def has_ahead(self) -> bool:
        """Whether bytes wait that no poll will announce."""
        return self._at < len(self.ahead)

    def fresh_socket(self) -> None:
        """Forget what was read from the previous socket."""
        self.ahead = b""
        self._at = 0

    def _sock_recv(self, bufsize: int) -> bytes:
        start = self._at
        if start < len(self.ahead):
            self._at = start + bufsize
            return self.ahead[start : start + bufsize]
        if bufsize > self.limit:
            raise self._failed(OSError(f"a packet of {bufsize} bytes, the limit is {self.limit}"))
        try:
            if bufsize >= READ_AHEAD_BYTES:
                return super()._sock_recv(bufsize)
            self.ahead = super()._sock_recv(READ_AHEAD_BYTES)
        except BlockingIOError:
            raise
        except OSError as exc:
            raise self._failed(exc) from None
        self._at = bufsize
        return self.ahead[:bufsize]

    def _sock_send(self, buf: bytes | bytearray) -> int:
        try:
            return super()._sock_send(buf)
        except BlockingIOError:
            raise
        except OSError as exc:
            raise self._failed(exc) from None

    def _failed(self, exc: OSError) -> OSError:
        # The first error names the cause; those after it are its consequences.
        self.failure = self.failure or exc
        return exc


class Link:
    """A connection to one broker that comes back by itself.

    Args:
        address: The broker.
        client_id: Unique at the broker; the start of log lines.
        tls: Certificate files; needed exactly when the address says ``mqtts``.
        keepalive_s: MQTT keep-alive. A half-open connection is noticed after
            about twice as long: have an application heartbeat as well.
        inbox_limit: Most received messages that wait for the event loop.
        inbox_bytes: The same in payload bytes.
        outbox_bytes: Most bytes that were published and not yet acknowledged.
        max_packet_bytes: Larger messages are refused here, because the broker
            would close the connection.
        on_arrivals: Takes the messages, in order and in batches, in the loop.
        on_state: Told of every change of `connected`, in order with the messages.

    Attributes:
        counters: ``received``, ``sent``, ``dropped_inbox``, ``refused_oversize``,
            ``refused_offline``, ``refused_full``, ``lost_unacknowledged``,
            ``connects``, ``losses``, ``failed_connects``, ``callback_errors``,
            ``subscribe_refused``.
        bytes_in, bytes_out: Payload bytes.
        last_error: Why there is no connection; empty when there is one.
    """

    def __init__(
        self,
        address: BrokerAddress,
        *,
        client_id: str,
        on_arrivals: Callable[[list[Arrival]], None],
        on_state: Callable[[bool], None],
        tls: TlsFiles | None = None,
        keepalive_s: int = 15,
        inbox_limit: int = 4096,
        inbox_bytes: int = 64 << 20,
        outbox_bytes: int = 64 << 20,
        max_packet_bytes: int = 1 << 20,
    ) -> None:
        self.address = address
        self.client_id = client_id
        self.counters: Counter[str] = Counter()
        self.bytes_in = 0
        self.bytes_out = 0
        self.last_error = ""
        self._tls = tls
        self._keepalive_s = keepalive_s
        self._inbox_limits = (inbox_limit, inbox_bytes)
        self._outbox_bytes = outbox_bytes
        self._max_packet_bytes = max_packet_bytes
        self._on_arrivals = on_arrivals
        self._on_state = on_state
        self._client = self._new_client()
        self._up = False
        self._stopping = False
        # Guards paho's socket: whoever holds it may read and write.
        self._io = threading.Lock()
        self._wake_fd = -1
        self._sleeper = threading.Event()
        self._outbox: deque[tuple[paho.MQTTMessageInfo, int]] = deque()
        self._unacknowledged = 0
        self._sub_lock = threading.Lock()
        self._filters: dict[str, None] = {}
        self._asked: dict[int, tuple[tuple[str, ...], list[asyncio.Future[None]]]] = {}
        self._unasked: list[asyncio.Future[None]] = []

    @property
    def connected(self) -> bool:
        """Whether the broker accepted us and the connection was not seen to break."""
        return self._up

    @property
    def pending_bytes(self) -> int:
        """Payload bytes published on this connection and not yet acknowledged."""
        self._prune()
        return self._unacknowledged

    async def start(self) -> None:
        """Begin to connect in the background, and return at once.

        Raises:
            LinkError: The certificate files cannot be used, or do not match the address.
        """
        if (self._tls is not None) != (self.address.scheme == "mqtts"):
            need = "needs" if self._tls is None else "takes no"
            raise LinkError(f"{self.address}: a {self.address.scheme} address {need} certificates")
        if self._tls is not None:
            self._client.tls_set_context(self._tls.client_context())
        self._loop = asyncio.get_running_loop()
        limit, limit_bytes = self._inbox_limits
        self._inbox = Inbox(
            self._loop,
            limit=limit,
            limit_bytes=limit_bytes,
            on_arrivals=self._on_arrivals,
            counters=self.counters,
        )
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._ended = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name=f"mqtt-{self.client_id}", daemon=True)
        self._thread.start()

    async def stop(self) -> None:
        """Flush for at most a second, disconnect, and end the thread. Idempotent."""
        if self._wake_fd < 0:
            return
        self._stopping = True
        self._sleeper.set()
        self._wake()
        try:
            await asyncio.wait_for(self._ended.wait(), FLUSH_S + 1.0)
        except TimeoutError:
            # The thread hangs in a connect; it ends with it and touches nothing of ours.
            _log.debug("%s: the connection attempt outlives the link", self.client_id)
            return
        self._thread.join()
        os.close(self._wake_fd)
        self._wake_fd = -1
        with self._sub_lock:
            waiting = [f for _, futures in self._asked.values() for f in futures] + self._unasked
        for future in waiting:
            future.cancel()

    def publish(self, topic: str, payload: bytes, *, qos: int = 1) -> bool:
        """Publish from the loop's thread; False when refused, with a counter.

        True means handed to the connection, not delivered.
        """
        size = len(payload)
        if size + len(topic) + 16 > self._max_packet_bytes:
            self.counters["refused_oversize"] += 1
            _log.error("%s: %d bytes for %s are over the packet limit", self.client_id, size, topic)
            return False
        if not self._up or self._stopping:
            self.counters["refused_offline"] += 1
            return False
        full = self._unacknowledged + size > self._outbox_bytes or len(self._outbox) >= OUTBOX_LIMIT
        if full or len(self._outbox) > 256:
            self._prune()
            full = (
                self._unacknowledged + size > self._outbox_bytes
                or len(self._outbox) >= OUTBOX_LIMIT
            )
        if full:
            self.counters["refused_full"] += 1
            return False
        info = self._client.publish(topic, payload, qos)
        if info.rc != _OK:
            self.counters["refused_offline"] += 1
            return False
        self._outbox.append((info, size))
        self._unacknowledged += size
        self.counters["sent"] += 1
        self.bytes_out += size
        self._flush()
        return True

    def subscribe(self, *filters: str, qos: int = 1) -> "asyncio.Future[None]":
        """Subscribe now and after every reconnect; the future ends at SUBACK.

        The future raises `SubscribeRefusedError` where the broker refuses.
        """
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        with self._sub_lock:
            self._filters.update(dict.fromkeys(filters))
            if self._up:
                self._ask(filters, [future], qos)
            else:
                self._unasked.append(future)
        self._flush()
        return future

    def unsubscribe(self, *filters: str) -> None:
        """Forget filters, and tell the broker."""
        with self._sub_lock:
            for topic_filter in filters:
                self._filters.pop(topic_filter, None)
            if self._up:
                self._client.unsubscribe(list(filters))
        self._flush()

    # ------------------------------------------------------------- loop thread

    def _flush(self) -> None:
        """Write from here if the network thread is idle, else wake it.

        Writing here saves a thread switch per message.
        """
        if not self._io.acquire(blocking=False):
            self._wake()
            return
        try:
            self._client.loop_write()
            left = self._client.want_write() or self._client.socket() is None
        finally:
            self._io.release()
        if left:
            self._wake()

    def _prune(self) -> None:
        outbox = self._outbox
        while outbox and outbox[0][0].is_published():
            self._unacknowledged -= outbox.popleft()[1]

    def _wake(self) -> None:
        if self._wake_fd >= 0:
            os.eventfd_write(self._wake_fd, 1)

    def _forget_outbox(self) -> None:
        self._prune()
        self.counters["lost_unacknowledged"] += len(self._outbox)
        self._outbox.clear()
        self._unacknowledged = 0

    # ---------------------------------------------------------- network thread

    def _new_client(self) -> _Client:
        client = _Client(self.client_id, self._max_packet_bytes)
        client.connect_timeout = CONNECT_TIMEOUT_S
        # Credit at the application is the limit, not a window of paho's.
        client.max_inflight_messages_set(0)
        client.max_queued_messages_set(OUTBOX_LIMIT * 2)
        client.on_connect = self._connected
        client.on_disconnect = self._disconnected
        client.on_subscribe = self._subscribed
        client.on_message = self._arrived
        client.on_socket_open = self._opened
        # With this callback set, paho never writes to the socket by itself.
        client.on_socket_register_write = lambda *_: None
        client.connect_async(self.address.host, self.address.port, self._keepalive_s)
        return client

    def _run(self) -> None:
        backoff = Backoff()
        while not self._stopping:
            began = time.monotonic()
            try:
                self._connect_and_pump()
            except Exception:
                # A defect must not leave a process that looks alive and hears nothing.
                self.counters["callback_errors"] += 1
                _log.exception("%s: the connection failed in an unforeseen way", self.client_id)
            self._down("connection lost")
            if time.monotonic() - began > STABLE_S:
                backoff.reset()
            self._sleeper.wait(backoff.next())
        self._client.fresh_socket()
        self._call(self._ended.set)

    def _connect_and_pump(self) -> None:
        # What was in flight is gone: sent again it would only meet newer messages.
        self._client.drop_out_messages()
        self._client.failure = None
        try:
            self._client.reconnect()
        except (OSError, ValueError) as exc:
            self.counters["failed_connects"] += 1
            self._note_error(_reason(exc))
            return
        self._pump()

    def _pump(self) -> None:
        """Serve the connection until it is gone."""
        client = self._client
        sock = client.socket()
        poller = select.poll()
        fd = sock.fileno() if sock is not None else -1
        poller.register(self._wake_fd, select.POLLIN)
        interest, misc_due, flush_until = 0, 0.0, None
        while client.socket() is not None:
            with self._io:
                if client.want_write():
                    client.loop_write()
                now = time.monotonic()
                if self._stopping:
                    flush_until = flush_until or now + FLUSH_S
                    self._prune()
                    if not self._outbox or now >= flush_until:
                        client.disconnect()
                        client.loop_write()
                        flush_until = now + FLUSH_S
                elif now >= misc_due:
                    client.loop_misc()
                    misc_due = now + 1.0
                wanted = _READABLE | (select.POLLOUT if client.want_write() else 0)
            if client.socket() is None:
                break
            if wanted != interest:
                interest = wanted
                poller.register(fd, interest)
            for ready, events in poller.poll(20 if self._stopping else 1000):
                if ready == self._wake_fd:
                    os.eventfd_read(self._wake_fd)
                elif events & _READABLE:
                    self._read()

    def _read(self) -> None:
        """Take every packet that is here."""
        client = self._client
        with self._io:
            while client.loop_read() == _OK:
                sock = client.socket()
                pending = getattr(sock, "pending", None)
                if not client.has_ahead and not (pending is not None and pending()):
                    return

    def _opened(self, client: paho.Client, _data: object, sock: _Socket) -> None:
        self._client.fresh_socket()
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def _connected(
        self, _client: object, _data: object, _flags: object, reason: ReasonCode, _props: object
    ) -> None:
        if reason.is_failure:
            self.counters["failed_connects"] += 1
            self._note_error(f"the broker refused us: {safe_text(reason)}")
            return
        self.counters["connects"] += 1
        self.last_error = ""
        with self._sub_lock:
            self._up = True
            if self._filters:
                waiting, self._unasked = self._unasked, []
                self._ask(tuple(self._filters), waiting, 1)
        _log.info("%s: connected to %s", self.client_id, self.address)
        self._call(lambda: self._on_state(True))

    def _disconnected(
        self, _client: object, _data: object, _flags: object, reason: ReasonCode, _props: object
    ) -> None:
        # paho may call this twice for one loss, or after a refusal.
        failure = self._client.failure
        self._down(_reason(failure) if failure is not None else safe_text(reason))

    def _down(self, reason: str) -> None:
        """Note the loss of the connection, once."""
        with self._sub_lock:
            was_up, self._up = self._up, False
            for _, futures in self._asked.values():
                self._unasked += [f for f in futures if not f.done()]
            self._asked.clear()
        if not self._stopping:
            self._note_error(reason, default_only=not was_up)
        if was_up:
            self.counters["losses"] += 1
            self._call(self._forget_outbox)
            self._call(lambda: self._on_state(False))

    def _note_error(self, reason: str, *, default_only: bool = False) -> None:
        if reason == self.last_error or (default_only and self.last_error):
            return
        self.last_error = reason
        _log.warning("%s: no connection to %s: %s", self.client_id, self.address, reason)

    def _arrived(self, _client: object, _data: object, message: paho.MQTTMessage) -> None:
        at = time.monotonic()
        try:
            payload = bytes(message.payload)
            self.counters["received"] += 1
            self.bytes_in += len(payload)
            self._inbox.put(Arrival(message.topic, payload, at))
        except Exception:
            self.counters["callback_errors"] += 1
            if self.counters["callback_errors"] == 1:
                _log.exception("%s: a message was lost", self.client_id)

    def _ask(self, filters: tuple[str, ...], waiting: "list[asyncio.Future[None]]", qos: int) -> None:
        """Send one SUBSCRIBE; with `_sub_lock` held."""
        code, mid = self._client.subscribe([(topic_filter, qos) for topic_filter in filters])
        if code == _OK and mid is not None:
            self._asked[mid] = (filters, waiting)
        else:
            self._unasked += waiting

    def _subscribed(
        self, _client: object, _data: object, mid: int, codes: list[ReasonCode], _props: object
    ) -> None:
        with self._sub_lock:
            filters, waiting = self._asked.pop(mid, ((), []))
        refused = tuple(f for f, code in zip(filters, codes, strict=False) if code.is_failure)
        if refused:
            self.counters["subscribe_refused"] += len(refused)
            _log.error("%s: %s", self.client_id, SubscribeRefusedError(refused))
        self._call(lambda: _settle(waiting, refused))

    def _call(self, event: Callable[[], None]) -> None:
        self._inbox.call(event)


def _settle(waiting: "list[asyncio.Future[None]]", refused: tuple[str, ...]) -> None:
    for future in waiting:
        if future.done():
            continue
        if refused:
            future.set_exception(SubscribeRefusedError(refused))
        else:
            future.set_result(None)


def _reason(exc: BaseException) -> str:
    """Return why a connection failed, on one line."""
    if isinstance(exc, ssl.SSLCertVerificationError):
        return f"the broker's certificate was refused: {safe_text(exc.verify_message)}"
    if isinstance(exc, ssl.SSLError):
        return f"TLS: {safe_text(exc.reason or exc)}"
    if isinstance(exc, TimeoutError):
        return "no answer (timed out)"
    if isinstance(exc, OSError) and exc.strerror:
        return safe_text(exc.strerror)
    return safe_text(exc) or type(exc).__name__
