"""One MQTT connection in the event loop.

Nothing that a callback raises can end it. Delivery is not promised: what was published
when the connection broke is gone, and is never sent again from here, because the
application asks again.
"""

import asyncio
import logging
import math
import secrets
import socket
import ssl
import time
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress

from fedagent_node.site.tls import Towards, named

from . import mqtt
from .address import BrokerAddress, with_hint
from .errors import LinkError, connect_reason, tls_refusal
from .mqtt import MAX_PACKET_BYTES, Kind, MqttError, Packet
from .network import Backoff, Cover, connected

_log = logging.getLogger(__name__)

KEEPALIVE_S = 15
"""A half-open connection is noticed after about twice as long: have a heartbeat as well."""
OUTBOX_BYTES = 64 << 20
OUTBOX_MESSAGES = 8192
"""Most that was published and not yet acknowledged; ids of messages are 16 bit."""
READ_BYTES = 64 << 10
"""What is read before others have their turn."""
WRITE_BYTES = 256 << 10
"""What is copied into one write at most, beside a message that is larger."""
STABLE_S = 5.0
"""A connection that held this long starts the backoff anew when it breaks."""
FLUSH_S = 1.0
"""How long a stop waits for the broker to take what was published."""
ANSWER_S = 8.0
"""How long a connection may stay without the answer that every MQTT broker gives at once."""
CHECK_S = 1.0
"""How often keep-alive and answer are looked at."""
URGENT_S = 2.0
"""Longest pause between attempts while something is open that waits for the connection."""
NO_BROKER = "the service at that port does not answer as an MQTT broker; check the port"
CLOSED = "the broker closed the connection"
_LATER = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class _Connection:
    """A socket in the event loop: what a read brings to `take`, bytes from `send`, until `end`.

    `buffer` is for what is read: a new one for each read drives the heap apart.
    """

    def __init__(
        self, sock: socket.socket, take: Callable[[list[Packet]], None], buffer: bytearray
    ) -> None:
        self.sock = sock
        self.over = asyncio.Event()
        self.failure: Exception | None = None
        self.received_at = self.sent_at = time.monotonic()
        self._take = take
        self._buffer = memoryview(buffer)
        self._packets = mqtt.Packets()
        self._queue: deque[bytes] = deque()
        self._rest = memoryview(b"")
        self._writes = False  # whether a write is coming
        self._pinged_at: float | None = None
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(sock, self._read)

    def send(self, packet: bytes) -> None:
        """Write a packet soon, with others that come until then."""
        self._queue.append(packet)
        if not self._writes:
            self._writes = True
            self._loop.call_soon(self.write)

    def end(self, failure: Exception) -> None:
        """Note why the connection is of no more use: the first cause, not its consequences."""
        self.failure = self.failure or failure
        self.over.set()

    def close(self) -> None:
        """Let go of the socket."""
        self._loop.remove_reader(self.sock)
        self._loop.remove_writer(self.sock)
        self.sock.close()
        self.over.set()

    def keep_alive(self, now: float) -> None:
        """Ask for a sign of life where either side was quiet; end where none comes."""
        if self._pinged_at is not None:
            if now - self._pinged_at >= KEEPALIVE_S:
                self.end(TimeoutError())
        elif now - min(self.received_at, self.sent_at) >= KEEPALIVE_S:
            self._pinged_at = now
            self.send(mqtt.bare(Kind.PINGREQ))

    def _read(self) -> None:
        if self.over.is_set():
            return
        found: list[Packet] = []
        try:
            size = self.sock.recv_into(self._buffer)
            if not size:
                raise ConnectionResetError(CLOSED)
            self.received_at, self._pinged_at = time.monotonic(), None
            packets = self._packets.feed(self._buffer[:size])
            found.extend(one for one in packets if isinstance(one, Packet))
        except _LATER:
            return
        except (OSError, MqttError) as exc:
            self.end(exc)
        if isinstance(self.sock, ssl.SSLSocket) and self.sock.pending():
            self._loop.call_soon(self._read)  # no poll announces what TLS has read ahead
        self._take(found)

    def write(self) -> None:
        """Write what waits, and go on when there is room for more."""
        if self.over.is_set():
            return
        try:
            while self._rest or self._queue:
                if not self._rest:
                    self._rest = memoryview(self._next())
                self._rest = self._rest[self.sock.send(self._rest) :]
                self.sent_at = time.monotonic()
            self._writes = False
        except _LATER:
            self._loop.add_writer(self.sock, self._write_on)
        except OSError as exc:
            self.end(exc)

    def _write_on(self) -> None:
        self._loop.remove_writer(self.sock)
        self.write()

    def _next(self) -> bytes:
        first = self._queue.popleft()
        several, size = [first], len(first)
        while self._queue and (size := size + len(self._queue[0])) <= WRITE_BYTES:
            several.append(self._queue.popleft())
        return first if len(several) == 1 else b"".join(several)


class Link:
    """A connection to one broker that comes back by itself; `SettingError` in the clear.

    Args:
        client_id: The start of log lines, and of what the broker knows the session by: nobody
            guesses the rest, so nobody takes its place.
        on_arrivals: Takes the messages of one read, in order, and ``time.monotonic()`` of it.
        on_state: Takes every change of `connected`, in order with the messages.
            At True the subscriptions are on their way: what the listener publishes
            follows them, while other connections may be faster.
        will: Topic and payload of what the broker says when this connection breaks.
        urgent: Whether something is open that waits for the connection: a round, a report.
    """

    def __init__(
        self,
        address: BrokerAddress,
        *,
        client_id: str,
        on_arrivals: Callable[[list[Packet], float], None],
        on_state: Callable[[bool], None],
        tls: Cover | None = None,
        insecure: bool = False,
        will: tuple[str, bytes] | None = None,
        urgent: Callable[[], bool] = lambda: False,
    ) -> None:
        address.check_cover(insecure=insecure)
        self.address = address
        self.client_id = client_id
        self.counters: Counter[str] = Counter()
        self.last_error = ""
        """Why there is no connection; empty when there is one."""
        self.peer = ""
        """The id in the certificate of who was reached last."""
        self._opening = mqtt.Connect(
            f"{client_id}-{secrets.token_hex(8)}",
            KEEPALIVE_S,
            will,
            address.user,
            address.password,
        ).packed()
        self._tls = tls
        self._insecure = insecure
        self._on_arrivals = on_arrivals
        self._on_state = on_state
        self._urgent = urgent
        self.pending_bytes = 0
        """Payload bytes published on this connection and not yet acknowledged."""
        self._unacknowledged: dict[int, int] = {}  # bytes by packet id
        self._wanted: dict[str, asyncio.Future[bool]] = {}
        """Topic filters, and who waits for the broker to grant them."""
        self._asked: dict[int, tuple[str, ...]] = {}
        self._connection: _Connection | None = None
        self._buffer = bytearray(READ_BYTES)
        self._number = 0
        self._up = False
        self._stopping = False
        self._task: asyncio.Task[None] | None = None

    @property
    def connected(self) -> bool:
        """Whether the broker accepted us and the connection was not seen to break."""
        return self._up

    @property
    def ended(self) -> bool:
        """Whether nothing connects any more, although nobody stopped it."""
        return self._task is not None and self._task.done()

    @property
    def certified(self) -> bool:
        """Whether only members of the site can be here: its authority vouches for them."""
        return isinstance(self._tls, Towards)

    @property
    def local_address(self) -> str:
        """Address of this machine on the connection; empty without one."""
        try:
            return str(self._connection.sock.getsockname()[0]) if self._connection else ""
        except OSError:
            return ""

    @property
    def quiet_s(self) -> float:
        """How long nothing has come, not even a part of a message."""
        one = self._connection
        return time.monotonic() - one.received_at if one is not None else math.inf

    async def start(self) -> None:
        """Begin to connect in the background; `LinkError` if certificates do not fit."""
        if (self._tls is not None) != (self.address.scheme == "mqtts"):
            need = "needs" if self._tls is None else "takes no"
            raise LinkError(f"{self.address}: a {self.address.scheme} address {need} certificates")
        if self.address.exposed:
            _log.warning(
                "%s: the connection to %s is unencrypted (--insecure): anyone on this network "
                "can read and forge messages",
                self.client_id,
                self.address,
            )
        if self._tls is not None:
            self._tls.client_context()  # missing files are an error now, not at each attempt
        self._task = asyncio.create_task(self._run(), name=f"mqtt-{self.client_id}")

    async def stop(self) -> bool:
        """Flush for at most a second, and disconnect; return whether all was taken. Idempotent."""
        task, self._task = self._task, None
        if task is None:
            return True
        self._stopping = True
        for future in self._wanted.values():
            future.cancel()
        with suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_S):
                while self._up and self._unacknowledged:  # noqa: ASYNC110 - no event of the last
                    await asyncio.sleep(0.01)
        flushed = self._up and not self._unacknowledged
        if self._connection is not None:
            self._connection.send(mqtt.bare(Kind.DISCONNECT))
            self._connection.write()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return flushed

    def publish(self, topic: str, payload: bytes, *, qos: int = 1) -> bool:
        """Publish; True means handed to the connection, not delivered."""
        size = len(payload)
        refused = "offline"
        if size + len(topic) + 16 > MAX_PACKET_BYTES:
            refused = "oversize"
            _log.error("%s: %d bytes for %s are over the packet limit", self.client_id, size, topic)
        elif self.pending_bytes + size > OUTBOX_BYTES or (
            len(self._unacknowledged) >= OUTBOX_MESSAGES
        ):
            refused = "full"
        elif self._up and self._connection is not None and not self._stopping:
            number = self._next_number() if qos else 0
            if qos:
                self._unacknowledged[number] = size
                self.pending_bytes += size
            self._connection.send(mqtt.publish(topic, payload, number))
            self.counters["sent"] += 1
            self.counters["sent_bytes"] += size
            return True
        self.counters[f"refused_{refused}"] += 1
        return False

    def subscribe(self, *filters: str) -> "asyncio.Future[bool]":
        """Subscribe now and after every reconnect; the future ends at SUBACK.

        It says whether the broker grants all; `stop` cancels it.
        """
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._wanted.update(dict.fromkeys(filters, future))
        if self._up:
            self._ask(filters)
        return future

    def unsubscribe(self, *filters: str) -> None:
        """Forget filters, here and at the broker."""
        for each in filters:
            self._wanted.pop(each, None)
        if self._up and self._connection is not None and filters:
            self._connection.send(mqtt.unsubscribe(self._next_number(), *filters))

    # ------------------------------------------------------- connect and serve

    async def _run(self) -> None:
        backoff = Backoff()
        while not self._stopping:
            began = time.monotonic()
            try:
                await self._connect_and_serve()
            except Exception:  # noqa: BLE001 - logged once, then counted
                # A defect must not leave a process that looks alive and hears nothing.
                self.counters["callback_errors"] += 1
                _log.exception("%s: the connection failed with an unexpected error", self.client_id)
            if time.monotonic() - began > STABLE_S:
                backoff.reset()
            await self._pause(*backoff.draw())

    async def _pause(self, bound: float, part: float) -> None:
        """Wait for a part of the bound, which is lower while, or once, something is open."""
        began = time.monotonic()
        while True:
            longest = min(bound, URGENT_S) if self._urgent() else bound
            left = began + part * longest - time.monotonic()
            if left <= 0:
                return
            await asyncio.sleep(min(left, CHECK_S))

    async def _connect_and_serve(self) -> None:
        try:
            # An address that was this machine's own may have become another's.
            self.address.check_cover(insecure=self._insecure)
            sock = await connected(self.address.host, self.address.port, self._tls)
        except (OSError, ValueError, LinkError) as exc:
            self.counters["failed_connects"] += 1
            self._count_refusal(exc)
            before = self.counters["connects"] > 0
            self._note_error(with_hint(connect_reason(exc), self.address, before=before))
            return
        self.peer = named(sock)[1]
        self._connection = one = _Connection(sock, self._take, self._buffer)
        one.send(self._opening)
        give_up = time.monotonic() + ANSWER_S
        try:
            while not one.over.is_set():
                now = time.monotonic()
                if not self._up and now >= give_up:
                    one.end(OSError(NO_BROKER))
                one.keep_alive(now)
                with suppress(TimeoutError):
                    async with asyncio.timeout(CHECK_S):
                        await one.over.wait()
        finally:
            one.close()
            self._connection = None
            self._lost(one.failure)

    def _lost(self, failure: Exception | None) -> None:
        if failure is not None and not self._stopping:
            self._count_refusal(failure)
            self._note_error(connect_reason(failure))
        if self._up:
            self._up = False
            self.counters["losses"] += 1
            self.counters["lost_unacknowledged"] += len(self._unacknowledged)
            # Sent again it would only meet newer messages.
            self._unacknowledged.clear()
            self.pending_bytes = 0
            self._guard(lambda: self._on_state(False))

    def _count_refusal(self, exc: Exception) -> None:
        refused = tls_refusal(exc)
        if refused is not None:
            self.counters[f"tls_{refused[0]}"] += 1

    def _note_error(self, reason: str) -> None:
        """Say once why there is no connection."""
        if reason != self.last_error:
            self.last_error = reason
            _log.warning("%s: no connection to %s: %s", self.client_id, self.address, reason)

    # --------------------------------------------------------------- what comes

    def _take(self, packets: list[Packet]) -> None:
        """Take in what one read brought; its messages are handed over together."""
        assert self._connection is not None
        messages, at = [], self._connection.received_at
        for packet in packets:
            match packet.kind:
                case Kind.PUBLISH:
                    self.counters["received_bytes"] += len(packet.payload)
                    if packet.number:
                        self._connection.send(mqtt.answer(Kind.PUBACK, packet.number))
                    messages.append(packet)
                case Kind.PUBACK:
                    self.pending_bytes -= self._unacknowledged.pop(packet.number, 0)
                case Kind.SUBACK:
                    self._subscribed(packet)
                case Kind.CONNACK:
                    self._answered(packet.number & 0xFF)
        if messages:
            self.counters["received"] += len(messages)
            self._guard(lambda: self._on_arrivals(messages, at))

    def _answered(self, code: int) -> None:
        assert self._connection is not None
        if code:
            self.counters["failed_connects"] += 1
            why = mqtt.REFUSALS[code] if code < len(mqtt.REFUSALS) else f"code {code}"
            refusal = with_hint(f"the broker refused the connection: {why}", self.address)
            self._connection.end(OSError(refusal))
            return
        self.counters["connects"] += 1
        self.last_error = ""
        self._up = True
        self._asked.clear()
        if self._wanted:
            self._ask(tuple(self._wanted))
        _log.info("%s: connected to %s", self.client_id, self.address)
        self._guard(lambda: self._on_state(True))

    def _ask(self, filters: tuple[str, ...]) -> None:
        assert self._connection is not None
        number = self._next_number()
        self._asked[number] = filters
        self._connection.send(mqtt.subscribe(number, *filters))

    def _subscribed(self, packet: Packet) -> None:
        filters = self._asked.pop(packet.number, ())
        codes = zip(filters, packet.payload, strict=False)
        refused = [each for each, code in codes if code >= mqtt.REFUSED]
        if refused:
            self.counters["subscribe_refused"] += len(refused)
            names = ", ".join(refused)
            _log.error("%s: the broker refused the subscription to %s", self.client_id, names)
        for each in filters:
            future = self._wanted.get(each)
            if future is not None and not future.done():
                future.set_result(not refused)

    def _next_number(self) -> int:
        while True:
            self._number = self._number % mqtt.MAX_ID + 1
            if self._number not in self._unacknowledged:
                return self._number

    def _guard(self, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception:  # noqa: BLE001 - logged once, then counted
            self.counters["callback_errors"] += 1
            if self.counters["callback_errors"] == 1:
                _log.exception(
                    "a message could not be handled; further errors of this kind are only counted"
                )
