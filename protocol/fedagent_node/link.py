"""One MQTT connection in the event loop, by paho's interface for external loops.

Nothing that a callback raises can end it. Delivery is not promised: what was published
when the connection broke is gone, and is never sent again from here, because the
application asks again.
"""

import asyncio
import logging
import secrets
import socket
import ssl
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import paho.mqtt.client as paho
from paho.mqtt.enums import MQTTErrorCode
from paho.mqtt.reasoncodes import ReasonCode

from fedagent_node.site.membership import Towards, named
from fedagent_protocol.errors import safe_text

from .address import BrokerAddress, with_hint
from .errors import LinkError, connect_reason, tls_refusal
from .network import Backoff, Cover, connected
from .paho_client import Client

_log = logging.getLogger(__name__)

KEEPALIVE_S = 60
"""By this a broker notices who is gone, after half as long again. The kernel notices sooner that a
connection is half open (`network.HALF_OPEN`), and wakes nobody for that."""
OUTBOX_BYTES = 64 << 20
OUTBOX_MESSAGES = 8192
"""Most that was published and not yet acknowledged; ids of messages are 16 bit."""
MAX_PACKET_BYTES = 1 << 20
"""Larger messages are refused here, because the broker would close the connection."""
STABLE_S = 5.0
"""A connection that held this long starts the backoff anew when it breaks."""
FLUSH_S = 1.0
"""How long a stop waits for the broker to take what was published."""
ANSWER_S = 8.0
"""How long a connection may stay without the answer that every MQTT broker gives at once."""
CHECK_S = 1.0
"""How often it is looked whether the broker answers, and between attempts whether it is urgent."""
URGENT_S = 2.0
"""Longest pause between attempts while something is open that waits for the connection."""
WRITE_BYTES = 64 * 1024
"""What is published in one turn of the loop is written together, but for more than this."""
CUTS = 2
"""A broker that closes so often in a row on a long packet takes none so long."""
BATCH = 256
"""Most packets that are read before others have their turn."""
NO_BROKER = "the service at that port does not answer as an MQTT broker; check the port"
_CLOSED = (ConnectionError, ssl.SSLError)
_OK = MQTTErrorCode.MQTT_ERR_SUCCESS


@dataclass(frozen=True, slots=True)
class Arrival:
    """One message as it came in; `at` is ``time.monotonic()`` when it was read."""

    topic: str
    payload: bytes
    at: float
    retained: bool = False


class Link:
    """A connection to one broker that comes back by itself; `SettingError` in the clear.

    Args:
        client_id: The start of log lines, and of what the broker knows the session by: nobody
            guesses the rest, so nobody takes its place.
        on_arrivals: Takes the messages, in order and in batches.
        on_state: Takes every change of `connected`, in order with the messages.
            At True the subscriptions are on their way: what the listener publishes
            follows them, while other connections may be faster.
        will: Topic and payload of what the broker says when this connection breaks.
        urgent: Whether something is open that waits for the connection: a round, a report.
        fail: Takes the error that no new attempt mends.
    """

    def __init__(
        self,
        address: BrokerAddress,
        *,
        client_id: str,
        on_arrivals: Callable[[list[Arrival]], None],
        on_state: Callable[[bool], None],
        tls: Cover | None = None,
        insecure: bool = False,
        will: tuple[str, bytes] | None = None,
        urgent: Callable[[], bool] = lambda: False,
        fail: Callable[[Exception], None] = lambda _: None,
    ) -> None:
        address.check_cover(insecure=insecure)
        self.address = address
        self.client_id = client_id
        self._session = f"{client_id}-{secrets.token_hex(8)}"
        self.counters: Counter[str] = Counter()
        self.last_error = ""
        """Why there is no connection; empty when there is one."""
        self.peer = ""
        """The id in the certificate of who was reached last."""
        self._tls = tls
        self._insecure = insecure
        self._on_arrivals = on_arrivals
        self._on_state = on_state
        self._urgent = urgent
        self._fail = fail
        self._taken_bytes = 0
        """The longest payload that the broker has acknowledged."""
        self._cuts = 0
        """How often in a row it closed the connection with a longer one on its way."""
        self.pending_bytes = 0
        """Payload bytes published on this connection and not yet acknowledged."""
        self._unacknowledged: dict[int, int] = {}  # bytes by packet id
        self._wanted: dict[str, asyncio.Future[None]] = {}
        """Topic filters, and who waits for the broker to grant them."""
        self._asked: dict[int, tuple[str, ...]] = {}
        self._client = self._new_client()
        if will is not None:
            self._client.will_set(*will)
        self._up = False
        self._stopping = False
        self._batch: list[Arrival] = []
        self._events: list[Callable[[], None]] = []
        self._writing = False
        self._turn = False  # whether what waits is written at the end of this turn of the loop
        self._unwritten = 0
        self._fd = -1
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
        sock = self._client.socket()
        try:
            return str(sock.getsockname()[0]) if isinstance(sock, socket.socket) else ""
        except OSError:
            return ""

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
        self._loop = asyncio.get_running_loop()
        self._broken = asyncio.Event()
        self._task = self._loop.create_task(self._run(), name=f"mqtt-{self.client_id}")

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
                while self._up and self._unacknowledged:  # noqa: ASYNC110 - paho has no event
                    await asyncio.sleep(0.01)
        flushed = self._up and not self._unacknowledged
        self._client.disconnect()
        self._client.loop_write()
        self._client.loop_misc()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        self._drain()
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
        elif self._up and not self._stopping:
            info = self._client.publish(topic, payload, qos)
            if info.rc == _OK:
                self._unacknowledged[info.mid] = size
                self.pending_bytes += size
                self.counters["sent"] += 1
                self.counters["sent_bytes"] += size
                self._unwritten += size
                if self._unwritten >= WRITE_BYTES:
                    self._write()
                elif not self._turn:
                    self._turn = True
                    self._loop.call_soon(self._write)
                return True
        self.counters[f"refused_{refused}"] += 1
        return False

    def subscribe(self, *filters: str) -> "asyncio.Future[None]":
        """Subscribe now and after every reconnect; the future ends at SUBACK.

        It raises `LinkError` where the broker refuses; `stop` cancels it.
        """
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # A refusal is logged here: nobody has to look.
        future.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._wanted.update(dict.fromkeys(filters, future))
        if self._up:
            self._ask(filters)
            self._write()
        return future

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
            finally:
                self._closed()
            self._down("connection lost", weak=True)
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
        # What was in flight is gone: sent again it would only meet newer messages.
        self._client.drop_out_messages()
        self._client.failure = None
        try:
            # An address that was this machine's own may have become another's.
            self.address.check_cover(insecure=self._insecure)
            sock = await connected(self.address.host, self.address.port, self._tls)
            self.peer = named(sock)[1]
            self._client.ready_socket = sock
            self._client.reconnect()
        except (OSError, ValueError, LinkError) as exc:
            self.counters["failed_connects"] += 1
            self._cuts = 0  # it is restarting
            self._count_refusal(exc)
            before = self.counters["connects"] > 0
            self._note_error(with_hint(connect_reason(exc), self.address, before=before))
            return
        give_up = time.monotonic() + ANSWER_S
        while self._client.socket() is not None:
            self._client.loop_misc()
            self._write()
            if not self._up and time.monotonic() >= give_up:
                self._client.give_up(NO_BROKER)
            self._broken.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._client.rest_s if self._up else CHECK_S):
                    await self._broken.wait()

    def _count_refusal(self, exc: Exception) -> None:
        refused = tls_refusal(exc)
        if refused is not None:
            self.counters[f"tls_{refused[0]}"] += 1
            if isinstance(self._tls, Towards) and refused[0] in ("expired", "not_yet_valid"):
                self._tls.site.doubt()

    def _ask(self, filters: tuple[str, ...]) -> None:
        code, packet_id = self._client.subscribe([(each, 1) for each in filters])
        if code == _OK and packet_id is not None:
            self._asked[packet_id] = filters

    # ----------------------------------------------------------- read and write

    def _read(self) -> None:
        client, left, self._turn = self._client, BATCH, True
        while client.loop_read() == _OK and client.has_more and left:
            left -= 1
        if not left:
            # No poll announces what was read ahead; others have their turn first.
            self._loop.call_soon(self._read_more, self._fd)
        self._drain()
        self._write()

    def _read_more(self, fd: int) -> None:
        if fd == self._fd and fd >= 0:
            self._read()

    def _write(self) -> None:
        """Write what waits, and be called again when there is room for more."""
        client, self._turn, self._unwritten = self._client, False, 0
        if client.want_write():
            client.loop_write()
        wanted = self._fd >= 0 and client.want_write()
        if wanted != self._writing and self._fd >= 0:
            self._writing = wanted
            if wanted:
                self._loop.add_writer(self._fd, self._write)
            else:
                self._loop.remove_writer(self._fd)

    def _later(self, event: Callable[[], None]) -> None:
        """Hand something over soon, after the messages that came before it."""
        self._end_batch()
        self._events.append(event)
        self._loop.call_soon(self._drain)

    def _end_batch(self) -> None:
        if self._batch:
            batch, self._batch = self._batch, []
            self._events.append(lambda: self._on_arrivals(batch))

    def _drain(self) -> None:
        self._end_batch()
        events, self._events = self._events, []
        for event in events:
            self._guard(event)

    def _guard(self, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception:  # noqa: BLE001 - logged once, then counted
            self.counters["callback_errors"] += 1
            if self.counters["callback_errors"] == 1:
                _log.exception(
                    "a message could not be handled; further errors of this kind are only counted"
                )

    # --------------------------------------------------------- paho's callbacks

    def _new_client(self) -> Client:
        client = Client(self._session, MAX_PACKET_BYTES)
        client.on_connect = self._connected
        client.on_disconnect = self._disconnected
        client.on_subscribe = self._subscribed
        client.on_publish = self._published
        client.on_message = self._arrived
        client.on_socket_open = self._opened
        client.on_socket_close = self._closed
        if self.address.user:
            client.username_pw_set(self.address.user, self.address.password)
        client.connect_async(self.address.host, self.address.port, KEEPALIVE_S)
        return client

    def _opened(self, _client: object, _data: object, sock: Any) -> None:  # paho's own union
        self._fd, self._writing = sock.fileno(), False
        self._loop.add_reader(self._fd, self._read)

    def _closed(self, *_: object) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            self._loop.remove_reader(fd)
            self._loop.remove_writer(fd)
        self._broken.set()

    def _connected(
        self, _client: object, _data: object, _flags: object, reason: ReasonCode, _props: object
    ) -> None:
        if reason.is_failure:
            self.counters["failed_connects"] += 1
            refusal = f"the broker refused the connection: {safe_text(reason)}"
            self._note_error(with_hint(refusal, self.address))
            return
        self.counters["connects"] += 1
        self.last_error = ""
        self._up = True
        self._asked.clear()
        if self._wanted:
            self._ask(tuple(self._wanted))
        _log.info("%s: connected to %s", self.client_id, self.address)
        self._later(lambda: self._on_state(True))

    def _disconnected(
        self, _client: object, _data: object, _flags: object, reason: ReasonCode, _props: object
    ) -> None:
        # paho may call this twice for one loss, and after a refusal.
        failure = self._client.failure
        unnamed = failure is None and reason.getName() == "Unspecified error"
        if self._up and not self._stopping:
            self._suspect_limit(closed=unnamed or isinstance(failure, _CLOSED))
        if failure is not None:
            self._count_refusal(failure)
            self._down(connect_reason(failure))
        elif unnamed:
            self._down("the broker closed the connection", weak=True)
        else:
            self._down(safe_text(reason), weak=True)

    def _suspect_limit(self, *, closed: bool) -> None:
        """Give up on a broker that closes twice on what is longer than all that it took.

        Only MQTT 5 says how long a packet may be.
        """
        longest = max(self._unacknowledged.values(), default=0)
        self._cuts = self._cuts + 1 if closed and longest > self._taken_bytes else 0
        if self._cuts == CUTS:
            problem = (
                f"the broker at {self.address} closes the connection on packets of {longest} "
                f"bytes: raise its limit to {MAX_PACKET_BYTES} (mosquitto: max_packet_size)"
            )
            self._fail(LinkError(problem))

    def _down(self, reason: str, *, weak: bool = False) -> None:
        """Note a loss once; a weak reason replaces no other."""
        was_up, self._up = self._up, False
        if not (self._stopping or (weak and self.last_error)):
            self._note_error(reason)
        if was_up:
            self.counters["losses"] += 1
            self.counters["lost_unacknowledged"] += len(self._unacknowledged)
            self._unacknowledged.clear()
            self.pending_bytes = 0
            self._later(lambda: self._on_state(False))

    def _note_error(self, reason: str) -> None:
        """Say once why there is no connection."""
        if reason != self.last_error:
            self.last_error = reason
            _log.warning("%s: no connection to %s: %s", self.client_id, self.address, reason)

    def _arrived(self, _client: object, _data: object, message: paho.MQTTMessage) -> None:
        self.counters["received"] += 1
        self.counters["received_bytes"] += len(message.payload)
        try:
            payload, now = bytes(message.payload), time.monotonic()
            self._batch.append(Arrival(message.topic, payload, now, message.retain))
        except UnicodeDecodeError:
            self.counters["callback_errors"] += 1

    def _published(self, _client: object, _data: object, mid: int, *_: object) -> None:
        nbytes = self._unacknowledged.pop(mid, 0)
        self.pending_bytes -= nbytes
        self._taken_bytes = max(self._taken_bytes, nbytes)

    def _subscribed(
        self, _client: object, _data: object, mid: int, codes: list[ReasonCode], _props: object
    ) -> None:
        filters = self._asked.pop(mid, ())
        waiting = [self._wanted[each] for each in filters if each in self._wanted]
        refused = tuple(each for each, code in zip(filters, codes, strict=False) if code.is_failure)
        if refused:
            self.counters["subscribe_refused"] += len(refused)
            error = LinkError(f"the broker refused the subscription to {', '.join(refused)}")
            _log.error("%s: %s", self.client_id, error)
        for each in refused:
            if each in self._wanted and not self._wanted[each].done():
                self._wanted[each].set_exception(error)
        for future in waiting:
            if not future.done():
                future.set_result(None)
