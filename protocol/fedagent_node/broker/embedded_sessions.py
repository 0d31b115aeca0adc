"""amqtt's broker with identities, an access list, limits, a direct fan-out and nothing kept."""

import asyncio
import ssl
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Literal

from amqtt.adapters import StreamReaderAdapter, StreamWriterAdapter
from amqtt.broker import Broker as AmqttBroker
from amqtt.contexts import Action
from amqtt.mqtt.protocol.broker_handler import BrokerProtocolHandler
from amqtt.mqtt.publish import PublishPacket
from amqtt.session import Session

from .acl import BrokerSpec

LISTENER = "default"
MAX_BACKLOG_BYTES = 48 << 20
"""Most bytes that wait for one subscriber; credit keeps honest roles far below."""
ALL_BACKLOG_BYTES = 80 << 20
"""Most bytes that wait for all of them."""
MAX_KEEPALIVE_S = 300
MAX_FILTERS = 64
"""Of one client; who wants more is cut off."""
MAX_WILL_BYTES = 256
MAX_UNREAD = 2
"""Messages of one client that may wait to be passed on, before the next is read."""
BYTES_PER_S = 32 << 20
BURST_BYTES = 64 << 20
PACKETS_PER_S = 300.0
"""What one client may send; who sends more is read more slowly."""
_CONFIG = {
    # The address is a placeholder: nothing listens on an external listener.
    "listeners": {LISTENER: {"type": "external", "bind": "127.0.0.1:1883"}},
    "plugins": {"amqtt.plugins.authentication.AnonymousAuthPlugin": {"allow_anonymous": True}},
}


class LimitedReader(StreamReaderAdapter):  # type: ignore[misc]  # amqtt is skipped by mypy (pyproject)
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
            self._writer.transport.abort()
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

    def __init__(self, writer: asyncio.StreamWriter, settle: Callable[[], None]) -> None:
        super().__init__(writer)
        self.transport = writer.transport
        self.answered = False
        self._settle = settle
        tls: ssl.SSLObject | None = writer.get_extra_info("ssl_object")
        subject = (tls.getpeercert() or {}).get("subject", ()) if tls is not None else ()
        names = (pair for part in subject for pair in part)
        self.name = next((str(pair[1]) for pair in names if pair[0] == "commonName"), "")

    def write(self, data: bytes) -> None:
        """Write without waiting: who is answered is a session."""
        if not self.answered:
            self.answered = True
            self._settle()
        super().write(data)


class SessionBroker(AmqttBroker):  # type: ignore[misc]  # as above
    """amqtt's broker, bounded.

    amqtt sends each message in a task per subscriber, and forgets it when no PUBACK came within
    5 s; what waits for a slow subscriber has no bound. Here a message is written at once, at
    QoS 0 (which is granted), and a subscriber that is too far behind loses messages, counted.
    Every session is a clean one, a will is small; who sends a message to be retained is cut off.
    """

    def __init__(self, spec: BrokerSpec, counters: Counter[str], tell: Callable[..., bool]) -> None:
        super().__init__(_CONFIG)
        self._counters = counters
        self._tell = tell
        self._access = spec.access

    def leave_out(self, revoked: frozenset[str]) -> None:
        """Allow these ids nothing from now on, and all others what they may."""
        if self._access is not None:
            self._access = replace(self._access, revoked=revoked)

    async def end_session(self, client_id: str) -> bool:
        """Close a session and forget it; return whether there was one."""
        session, handler = self._sessions.pop(client_id, (None, None))
        if session is None:
            return False
        await self._del_all_subscriptions(session)
        session.clear_queues()
        if isinstance(handler.writer, Writer):
            handler.writer.transport.abort()
        await handler.handle_connection_closed()
        return True

    # ------------------------------------------------------------------ who it is

    async def _initialize_client_session(
        self, reader: LimitedReader, writer: Writer, remote_address: str, remote_port: int
    ) -> tuple[BrokerProtocolHandler, Session]:
        """Read a CONNECT; whose session it was before is not known any more."""
        started = BrokerProtocolHandler.init_from_connect(reader, writer, self.plugins_manager)
        handler, session = await started
        handler.handle_read_timeout = writer.transport.abort  # which amqtt leaves to others
        session.keep_alive = min(session.keep_alive or MAX_KEEPALIVE_S, MAX_KEEPALIVE_S) * 3 // 2
        session.clean_session, session.parent = True, 0
        name = writer.name if self._access is not None else ""
        session.attributes["name"] = name
        # A will is small, and what its owner may write itself.
        small = len(session.will_message or b"") <= MAX_WILL_BYTES and not session.will_retain
        session.will_flag = (
            session.will_flag and small and self._may(session, "write", session.will_topic or "")
        )
        reader.waiting = session.delivered_message_queue.qsize
        session.client_id = name or session.client_id or f"{remote_address}:{remote_port}"
        if await self.end_session(session.client_id):
            self._tell(taken_over=session.client_id)
        return handler, session

    # ------------------------------------------------------- what it may and does

    def _may(self, session: Session, verb: Literal["read", "write"], topic: str) -> bool:
        access = self._access
        if access is None or access.allows(session.attributes["name"], verb, topic):
            return True
        self._counters["denied_publish" if verb == "write" else "denied_subscribe"] += 1
        return False

    async def _topic_filtering(self, session: Session, topic: str, action: Action) -> bool:
        return self._may(session, "write" if action == Action.PUBLISH else "read", topic)

    async def _handle_message_delivery(
        self,
        client_session: Session,
        handler: BrokerProtocolHandler,
        wait_deliver: "asyncio.Future[object]",
    ) -> bool:
        if getattr(wait_deliver.result(), "retain", False):
            self._counters["refused_retained"] += 1
            await self.end_session(client_session.client_id)
            return False
        ok: bool = await super()._handle_message_delivery(client_session, handler, wait_deliver)
        return ok

    async def add_subscription(self, subscription: tuple[str, int], session: Session) -> int:
        """Subscribe at QoS 0, whatever was asked for; 128 is a refusal."""
        filters = session.attributes.setdefault("filters", set())
        if len(filters) >= MAX_FILTERS and subscription[0] not in filters:
            self._counters["denied_subscribe"] += 1
            await self.end_session(session.client_id)
            return 0x80
        granted: int = await super().add_subscription((subscription[0], 0), session)
        if granted == 0:
            filters.add(subscription[0])
        return granted

    def _del_subscription(self, a_filter: str, session: Session) -> int:
        session.attributes.get("filters", set()).discard(a_filter)
        deleted: int = super()._del_subscription(a_filter, session)
        return deleted

    async def _handle_unsubscription(
        self,
        client_session: Session,
        handler: BrokerProtocolHandler,
        unsubscribe_waiter: "asyncio.Future[object]",
    ) -> None:
        topics = list(unsubscribe_waiter.result().topics)  # type: ignore[attr-defined]
        await super()._handle_unsubscription(client_session, handler, unsubscribe_waiter)
        for each in topics:
            if not self._subscriptions.get(each, True):
                del self._subscriptions[each]

    async def _publish_retained_messages_for_subscription(
        self, subscription: tuple[str, int], session: Session
    ) -> None:
        """Do nothing, since nothing is retained; amqtt would walk over tables that change."""

    async def _broadcast_message(
        self,
        session: Session | None,  # noqa: ARG002 - the signature is amqtt's
        topic: str | None,
        data: bytes | bytearray | None,
        force_qos: int | None = None,  # noqa: ARG002
    ) -> None:
        if topic is None:
            return
        packet = PublishPacket.build(
            topic, bytes(data or b""), None, dup_flag=False, qos=0, retain=False
        ).to_bytes()
        for topic_filter, subscribers in self.subscriptions.items():
            if self._matches(topic, topic_filter):
                for target, _qos in subscribers:
                    self._write(target, packet)

    def _write(self, target: Session, packet: bytes) -> None:
        handler = self._get_handler(target)
        writer = handler.writer if handler is not None else None
        if not isinstance(writer, Writer) or target.transitions.state != "connected":
            return
        waits = writer.transport.get_write_buffer_size()
        if waits > MAX_BACKLOG_BYTES or (waits and self._backlog() > ALL_BACKLOG_BYTES):
            self._counters["dropped_slow"] += 1
            return
        writer.write(packet)

    def _backlog(self) -> int:
        writers = (handler.writer for _, handler in self._sessions.values())
        sockets = (one.transport for one in writers if isinstance(one, Writer))
        return sum(one.get_write_buffer_size() for one in sockets)
