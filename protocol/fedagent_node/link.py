"""One MQTT connection, bridged into the event loop.

A link owns one thread. It connects, reads, writes and keeps the connection alive
through paho's interface for external event loops, which lets us hand messages over
in batches, write from the loop's thread, and wait with jitter between attempts.
Nothing that a callback raises can end the thread.

Delivery is not promised: what was published when the connection broke is gone,
and is never sent again from here, because the application asks again.
"""

import asyncio
import logging
import os
import select
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import paho.mqtt.client as paho
from paho.mqtt.enums import MQTTErrorCode
from paho.mqtt.reasoncodes import ReasonCode

from fedagent_protocol.errors import safe_text

from .address import BrokerAddress, TlsFiles, with_hint
from .errors import LinkError, PlainTextError, SubscribeRefusedError, connect_reason
from .inbox import Arrival, Inbox
from .network import Backoff
from .outbox import Outbox
from .paho_client import OUTBOX_LIMIT, Client
from .subscriptions import Subscriptions

__all__ = ["Arrival", "BrokerAddress", "Link", "TlsFiles"]

_log = logging.getLogger(__name__)

STABLE_S = 5.0
"""A connection that held this long starts the backoff anew when it breaks."""
FLUSH_S = 1.0
"""How long a stop waits for the broker to take what was published."""
ANSWER_S = 8.0
"""How long a connection may stay without the answer that every MQTT broker gives at once."""
NO_BROKER = "what listens there does not answer as an MQTT broker; check the port"
_OK = MQTTErrorCode.MQTT_ERR_SUCCESS
_READABLE = select.POLLIN | select.POLLHUP | select.POLLERR


class Link:
    """A connection to one broker that comes back by itself.

    Args:
        address: The broker.
        client_id: Unique at the broker; the start of log lines.
        tls: Certificate files; needed exactly when the address says ``mqtts``.
        insecure: Allow an address beyond this machine without certificates.
        keepalive_s: MQTT keep-alive. A half-open connection is noticed after
            about twice as long: have an application heartbeat as well.
        inbox_limit: Most received messages that wait for the event loop.
        inbox_bytes: The same in payload bytes.
        outbox_bytes: Most bytes that were published and not yet acknowledged.
        max_packet_bytes: Larger messages are refused here, because the broker
            would close the connection.
        on_arrivals: Takes the messages, in order and in batches, in the loop.
        on_state: Told of every change of `connected`, in order with the messages.
            At True the subscriptions are on their way: what the listener publishes
            follows them, while other connections may be faster.

    Attributes:
        counters: ``received``, ``sent``, ``dropped_inbox``, ``refused_oversize``,
            ``refused_offline``, ``refused_full``, ``lost_unacknowledged``,
            ``connects``, ``losses``, ``failed_connects``, ``callback_errors``,
            ``subscribe_refused``.
        bytes_in: Payload bytes received.
        bytes_out: Payload bytes handed to the connection.
        last_error: Why there is no connection; empty when there is one.

    Raises:
        PlainTextError: The address is beyond this machine, and nothing covers it.
    """

    def __init__(
        self,
        address: BrokerAddress,
        *,
        client_id: str,
        on_arrivals: Callable[[list[Arrival]], None],
        on_state: Callable[[bool], None],
        tls: TlsFiles | None = None,
        insecure: bool = False,
        keepalive_s: int = 15,
        inbox_limit: int = 4096,
        inbox_bytes: int = 64 << 20,
        outbox_bytes: int = 64 << 20,
        max_packet_bytes: int = 1 << 20,
    ) -> None:
        address.check_cover(insecure=insecure)
        self.address = address
        self.client_id = client_id
        self.counters: Counter[str] = Counter()
        self.bytes_in = 0
        self.bytes_out = 0
        self.last_error = ""
        self._tls = tls
        self._insecure = insecure
        self._inbox_limits = (inbox_limit, inbox_bytes)
        self._max_packet_bytes = max_packet_bytes
        self._on_arrivals = on_arrivals
        self._on_state = on_state
        self._outbox = Outbox(limit=OUTBOX_LIMIT, limit_bytes=outbox_bytes)
        self._subscriptions = Subscriptions(self._send_subscribe)
        self._client = self._new_client(keepalive_s)
        self._up = False
        self._stopping = False
        self._flush_until = 0.0
        # Guards paho's socket: whoever holds it may read and write.
        self._io = threading.Lock()
        self._wake_fd = -1
        self._sleeper = threading.Event()

    @property
    def connected(self) -> bool:
        """Whether the broker accepted us and the connection was not seen to break."""
        return self._up

    @property
    def local_address(self) -> str:
        """Address of this machine on the connection; empty without one."""
        return self._client.local_address

    @property
    def pending_bytes(self) -> int:
        """Payload bytes published on this connection and not yet acknowledged."""
        return self._outbox.pending_bytes

    async def start(self) -> None:
        """Begin to connect in the background, and return at once.

        Raises:
            LinkError: The certificate files cannot be used, or do not match the address.
        """
        if (self._tls is not None) != (self.address.scheme == "mqtts"):
            need = "needs" if self._tls is None else "takes no"
            raise LinkError(f"{self.address}: a {self.address.scheme} address {need} certificates")
        if self.address.exposed:
            _log.warning(
                "%s: speaks with %s unencrypted (--insecure): anyone on this network can read "
                "and forge messages",
                self.client_id,
                self.address,
            )
        if self._tls is not None:
            self._client.use_tls(self._tls.client_context())
        limit, limit_bytes = self._inbox_limits
        self._inbox = Inbox(
            asyncio.get_running_loop(),
            limit=limit,
            limit_bytes=limit_bytes,
            on_arrivals=self._on_arrivals,
            counters=self.counters,
        )
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._ended = asyncio.Event()
        name = f"mqtt-{self.client_id}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    async def stop(self) -> None:
        """Flush for at most a second, disconnect, and end the thread. Idempotent."""
        if self._wake_fd < 0:
            return
        self._stopping = True
        self._sleeper.set()
        self._wake()
        self._subscriptions.cancel()
        try:
            await asyncio.wait_for(self._ended.wait(), FLUSH_S + 1.0)
        except TimeoutError:
            # The thread hangs in a connect; it ends with it and touches nothing of ours.
            _log.debug("%s: the connection attempt outlives the link", self.client_id)
            return
        self._thread.join()
        os.close(self._wake_fd)
        self._wake_fd = -1

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
        if not self._outbox.has_room(size):
            self.counters["refused_full"] += 1
            return False
        info = self._client.publish(topic, payload, qos)
        if info.rc != _OK:
            self.counters["refused_offline"] += 1
            return False
        self._outbox.add(info, size)
        self.counters["sent"] += 1
        self.bytes_out += size
        self._flush()
        return True

    def subscribe(self, *filters: str, qos: int = 1) -> "asyncio.Future[None]":
        """Subscribe now and after every reconnect; the future ends at SUBACK.

        The future raises `SubscribeRefusedError` where the broker refuses, and is
        cancelled by `stop`.
        """
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._subscriptions.add(filters, qos, future, now=self._up)
        self._flush()
        return future

    def unsubscribe(self, *filters: str) -> None:
        """Forget filters, and tell the broker."""
        self._subscriptions.remove(filters)
        if self._up and filters:
            self._client.unsubscribe(list(filters))
            self._flush()

    # ------------------------------------------------------------- loop thread

    def _flush(self) -> None:
        """Write from here if the network thread is idle, else wake it.

        Writing here saves a thread switch per message: a third of the round trip.
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

    def _wake(self) -> None:
        if self._wake_fd >= 0:
            os.eventfd_write(self._wake_fd, 1)

    def _lost(self) -> None:
        self.counters["lost_unacknowledged"] += self._outbox.forget()
        self._on_state(False)

    def _send_subscribe(self, filters: list[tuple[str, int]]) -> int | None:
        code, packet_id = self._client.subscribe(filters)
        return packet_id if code == _OK else None

    # ---------------------------------------------------------- network thread

    def _new_client(self, keepalive_s: int) -> Client:
        client = Client(self.client_id, self._max_packet_bytes)
        client.on_connect = self._connected
        client.on_disconnect = self._disconnected
        client.on_subscribe = self._subscribed
        client.on_message = self._arrived
        client.on_socket_open = self._opened
        if self.address.user:
            client.username_pw_set(self.address.user, self.address.password)
        client.connect_async(self.address.host, self.address.port, keepalive_s)
        return client

    def _run(self) -> None:
        backoff = Backoff()
        while not self._stopping:
            began = time.monotonic()
            try:
                self._connect_and_pump()
            except Exception:  # noqa: BLE001 - logged once, then counted
                # A defect must not leave a process that looks alive and hears nothing.
                self.counters["callback_errors"] += 1
                _log.exception("%s: the connection failed in an unforeseen way", self.client_id)
            self._down("connection lost", weak=True)
            if time.monotonic() - began > STABLE_S:
                backoff.reset()
            self._sleeper.wait(backoff.next())
        self._inbox.call(self._ended.set)

    def _connect_and_pump(self) -> None:
        # What was in flight is gone: sent again it would only meet newer messages.
        self._client.drop_out_messages()
        self._client.failure = None
        try:
            # An address that was this machine's own may have become another's.
            self.address.check_cover(insecure=self._insecure)
            self._client.reconnect()
        except (OSError, ValueError, PlainTextError) as exc:
            self.counters["failed_connects"] += 1
            self._note_error(with_hint(connect_reason(exc), self.address))
            return
        self._pump()

    def _pump(self) -> None:
        """Serve the connection until it is gone."""
        client = self._client
        sock = client.socket()
        if sock is None:
            return
        fd = sock.fileno()
        poller = select.poll()
        poller.register(self._wake_fd, select.POLLIN)
        registered = 0
        next_check = 0.0
        give_up = time.monotonic() + ANSWER_S
        while client.socket() is not None:
            with self._io:
                if client.want_write():
                    client.loop_write()
                now = time.monotonic()
                if now >= next_check:
                    client.loop_misc()
                    next_check = now + 1.0
                    if now >= give_up and not self._up:
                        client.give_up(NO_BROKER)
                wanted = _READABLE | (select.POLLOUT if client.want_write() else 0)
            if self._stopping and self._disconnect_cleanly(now):
                return
            if wanted != registered and client.socket() is not None:
                registered = wanted
                poller.register(fd, registered)
            for ready, events in poller.poll(10 if self._stopping else 1000):
                if ready == self._wake_fd:
                    os.eventfd_read(self._wake_fd)
                elif events & _READABLE:
                    self._read()

    def _disconnect_cleanly(self, now: float) -> bool:
        """Disconnect once everything is acknowledged or time is up."""
        if not self._flush_until:
            self._flush_until = now + FLUSH_S
        if self._up and not self._outbox.settled and now < self._flush_until:
            return False
        with self._io:
            self._client.disconnect()
            self._client.loop_write()
            self._client.loop_misc()
        return True

    def _read(self) -> None:
        """Take every packet that is here."""
        with self._io:
            while self._client.loop_read() == _OK and self._client.has_more:
                pass

    def _opened(self, _client: object, _data: object, sock: Any) -> None:  # paho's own union
        self._client.fresh_socket()
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def _connected(
        self, _client: object, _data: object, _flags: object, reason: ReasonCode, _props: object
    ) -> None:
        if reason.is_failure:
            self.counters["failed_connects"] += 1
            refusal = f"the broker refused us: {safe_text(reason)}"
            self._note_error(with_hint(refusal, self.address))
            return
        self.counters["connects"] += 1
        self.last_error = ""
        self._up = True
        self._subscriptions.ask_all()
        _log.info("%s: connected to %s", self.client_id, self.address)
        self._inbox.call(lambda: self._on_state(True))

    def _disconnected(
        self, _client: object, _data: object, _flags: object, reason: ReasonCode, _props: object
    ) -> None:
        # paho may call this twice for one loss, and after a refusal.
        failure = self._client.failure
        if failure is not None:
            self._down(connect_reason(failure))
        elif reason.getName() == "Unspecified error":
            self._down("the broker closed the connection", weak=True)
        else:
            self._down(safe_text(reason), weak=True)

    def _down(self, reason: str, *, weak: bool = False) -> None:
        """Note the loss of the connection, once; a weak reason replaces no other."""
        was_up, self._up = self._up, False
        self._subscriptions.connection_lost()
        if not (self._stopping or (weak and self.last_error)):
            self._note_error(reason)
        if was_up:
            self.counters["losses"] += 1
            self._inbox.call(self._lost)

    def _note_error(self, reason: str) -> None:
        if reason == self.last_error:
            return
        self.last_error = reason
        _log.warning("%s: no connection to %s: %s", self.client_id, self.address, reason)

    def _arrived(self, _client: object, _data: object, message: paho.MQTTMessage) -> None:
        at = time.monotonic()
        try:
            self.counters["received"] += 1
            self.bytes_in += len(message.payload)
            self._inbox.put(Arrival(message.topic, bytes(message.payload), at))
        except Exception:  # noqa: BLE001 - logged once, then counted
            self.counters["callback_errors"] += 1
            if self.counters["callback_errors"] == 1:
                _log.exception("%s: a message was lost", self.client_id)

    def _subscribed(
        self, _client: object, _data: object, mid: int, codes: list[ReasonCode], _props: object
    ) -> None:
        granted = self._subscriptions.granted(mid, [code.is_failure for code in codes])
        if granted.refused:
            self.counters["subscribe_refused"] += len(granted.refused)
            _log.error("%s: %s", self.client_id, SubscribeRefusedError(granted.refused))
        self._inbox.call(granted.settle)
