"""The embedded broker: MQTT 3.1.1 in a process of its own, with nothing kept and all bounded.

Each message is handed on at once, at QoS 0 (which is granted); a subscriber that is too far behind
loses messages, counted. Every session is a clean one, and who sends a message to be retained is
cut off.
"""

import asyncio
import gc
import logging
import os
import resource
import socket
import ssl
import sys
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace

import msgspec

from fedagent_node import mqtt
from fedagent_node.address import is_loopback
from fedagent_node.errors import LinkError
from fedagent_node.mqtt import Connect, Kind, MqttError, Packet

from .acl import Action, BrokerSpec, covers
from .wrapper import Teller, announce, when_parent_goes

MAX_CONNECTIONS = 1200
OTHER_DESCRIPTORS = 64
"""What the broker's process has open beside its connections, with room to spare."""
MAX_ENTERING = 384
MAX_ENTERING_OF_ONE = 256
"""Connections of one address that are no session yet: behind a router may be a whole field. In TLS
each has buffers of 256 KB."""
PATIENCE_S = 10.0
"""A connection that is not a session by then is closed."""
BYTES_PER_S = 32 << 20
PACKETS_PER_S = 300.0
BURST_S = 2.0
"""What one client may send; who sends more is read more slowly."""
MAX_BACKLOG_BYTES = 48 << 20
"""Most bytes that wait for one subscriber; credit keeps honest roles far below."""
ALL_BACKLOG_BYTES = 80 << 20
"""Most bytes that wait for all of them."""
MAX_KEEPALIVE_S = 300
MAX_FILTERS = 64
"""Of one client; who wants more is cut off."""
MAX_WILL_BYTES = 256
MAX_ROUTES = 4096
"""Topics of which is known who has subscribed to them."""
ACCEPT_BACKLOG = 512
LOOK_S = 1.0

_log = logging.getLogger(__name__)


class Order(msgspec.Struct, frozen=True):
    """What the parent wants: new files, other ids left out, or the end of identities' sessions."""

    reload: bool = False
    cut: tuple[str, ...] = ()
    revoked: frozenset[str] | None = None


def most_connections() -> int:
    """Return how many connections there may be: of very few descriptors half are for them."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if soft == resource.RLIM_INFINITY:
        return MAX_CONNECTIONS
    return min(MAX_CONNECTIONS, max(soft - OTHER_DESCRIPTORS, soft // 2))


class Hall:
    """All connections of the broker, and who has subscribed to what."""

    def __init__(self, spec: BrokerSpec, tell: Teller) -> None:
        self.spec = spec
        self.tell = tell
        self.counters: Counter[str] = Counter()
        self.access = spec.access
        self.entering: Counter[str] = Counter()
        """Connections that are no session yet, by address."""
        self.here: set[Session] = set()
        self.named: dict[str, Session] = {}
        self._filters: dict[str, dict[Session, None]] = {}
        self._routes: dict[str, tuple[Session, ...]] = {}
        self._most = most_connections()
        self._context = spec.tls.server_context() if spec.tls else None

    async def serve(self, orders: "asyncio.Queue[bytes]") -> None:
        """Run the broker until cancelled; `OSError` if the address cannot be bound."""
        host = self.spec.listen or "0.0.0.0"  # noqa: S104 - checked
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((host, self.spec.port))
            listener.setblocking(False)
            listener.listen(ACCEPT_BACKLOG)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._look())
                group.create_task(self._obey(orders))
                await self._welcome(listener, group)

    async def _look(self) -> None:
        """Close what is silent, and tell what was counted."""
        now = asyncio.get_running_loop().time
        while True:
            await asyncio.sleep(LOOK_S)
            for session in tuple(self.here):
                session.check(now())
            if gc.get_count()[1] > 0:
                gc.collect()  # an ended TLS connection is a ring, and holds its buffers
            if self.counters and self.tell(counts=dict(self.counters)):
                self.counters.clear()

    async def _obey(self, orders: "asyncio.Queue[bytes]") -> None:
        while True:
            line = await orders.get()
            with suppress(msgspec.DecodeError):
                order = msgspec.json.decode(line, type=Order)
                if order.reload and self.spec.tls:
                    try:
                        self._context = self.spec.tls.server_context()
                    except LinkError as exc:
                        _log.error("the certificates could not be reloaded: %s", exc)
                if order.revoked is not None and self.access is not None:
                    self.access = replace(self.access, revoked=order.revoked)
                for name in order.cut:
                    self.end(name)

    async def _welcome(self, listener: socket.socket, group: asyncio.TaskGroup) -> None:
        """Take everybody in, if there is room."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                sock, address = await loop.sock_accept(listener)
            except OSError:  # out of descriptors, or it was gone already
                self.counters["refused_connects"] += 1
                await asyncio.sleep(0.1)
                continue
            peer = str(address[0])
            if (
                len(self.here) >= self._most
                or self.entering.total() >= MAX_ENTERING
                or self.entering[peer] >= MAX_ENTERING_OF_ONE
            ):
                self.counters["refused_connects"] += 1
                sock.close()
                continue
            session = Session(self, peer)
            self.here.add(session)
            self.entering[peer] += 1
            group.create_task(self._greet(sock, session))

    async def _greet(self, sock: socket.socket, session: "Session") -> None:
        patience = PATIENCE_S if self._context is not None else None
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: session, sock, ssl=self._context, ssl_handshake_timeout=patience
            )
        except OSError as exc:  # of TLS as well
            self.counters["refused_connects"] += 1
            _log.debug("a client disconnected: %s", exc)
            sock.close()
            self.leave(session)

    def leave(self, session: "Session") -> None:
        """Forget a connection. Idempotent."""
        self.here.discard(session)
        session.settle()
        if self.named.get(session.client_id) is session:
            del self.named[session.client_id]
        self.unsubscribe(session, tuple(session.filters))

    def end(self, client_id: str) -> bool:
        """End a session without its will; return whether there was one."""
        session = self.named.get(client_id)
        if session is None:
            return False
        self.leave(session)
        session.abort()
        return True

    def may(self, session: "Session", verb: Action, topic: str) -> bool:
        """Return whether a session may write a topic, or read a filter; count what is denied."""
        if self.access is None or self.access.allows(session.name, verb, topic):
            return True
        self.counters["denied_publish" if verb == "write" else "denied_subscribe"] += 1
        return False

    def subscribe(self, session: "Session", each: str) -> None:
        """Send a session what fits a filter from now on."""
        session.filters.add(each)
        self._filters.setdefault(each, {})[session] = None
        self._routes.clear()

    def unsubscribe(self, session: "Session", filters: Iterable[str]) -> None:
        """Send it to the session no more."""
        for each in filters:
            session.filters.discard(each)
            readers = self._filters.get(each, {})
            readers.pop(session, None)
            if not readers:
                self._filters.pop(each, None)
        self._routes.clear()

    def publish(self, topic: str, payload: bytes) -> None:
        """Hand a message to who has subscribed to it."""
        readers = self._routes.get(topic)
        if readers is None:
            fits = (these for each, these in self._filters.items() if covers(each, topic))
            readers = tuple(dict.fromkeys(one for these in fits for one in these))
            if len(self._routes) >= MAX_ROUTES:
                self._routes.clear()
            self._routes[topic] = readers
        packet = mqtt.publish(topic, payload)
        for session in readers:
            waits = session.backlog_bytes
            if waits > MAX_BACKLOG_BYTES or (
                waits and sum(one.backlog_bytes for one in self.here) > ALL_BACKLOG_BYTES
            ):
                self.counters["dropped_slow"] += 1
            else:
                session.write(packet)


class Session(asyncio.Protocol):
    """One connection, and the session that it becomes."""

    def __init__(self, hall: Hall, peer: str) -> None:
        self._hall = hall
        self._peer = peer
        self.name = ""
        """In the certificate; empty where that decides nothing."""
        self.client_id = ""
        self.filters: set[str] = set()
        self._transport: asyncio.Transport | None = None
        self._packets = mqtt.Packets(hall.spec.max_packet_bytes)
        self._entering = True
        self._will: tuple[str, bytes] | None = None
        self._silence_s = PATIENCE_S
        self._trusted = False  # the broker's owner, whom no rate holds back
        self._loop = asyncio.get_running_loop()
        self._heard_at = self._paid_until = self._loop.time()

    @property
    def backlog_bytes(self) -> int:
        """What the subscriber has not taken yet."""
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin: who it is says the certificate; without, the owner is on its own machine."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        spec, peer = self._hall.spec, self._peer
        tls: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
        if spec.certified and tls is not None:
            subject = (tls.getpeercert() or {}).get("subject", ())
            names = (pair for part in subject for pair in part)
            self.name = next((str(pair[1]) for pair in names if pair[0] == "commonName"), "")
            self._trusted = self.name == spec.owner
        else:
            self._trusted = is_loopback(peer) or peer == spec.listen

    def data_received(self, data: bytes) -> None:
        """Take in what came; read on as late as the rates want it."""
        now, count = self._loop.time(), 0
        try:
            for packet in self._packets.feed(data):
                count += 1
                self._heard_at = now
                self._take(packet)
        except MqttError as exc:
            self._hall.counters["malformed"] += 1
            _log.debug("a client is cut off: %s", exc)
            self.abort()
        if self._trusted:
            return
        cost = len(data) / BYTES_PER_S + count / PACKETS_PER_S
        self._paid_until = max(self._paid_until, now - BURST_S) + cost
        if self._paid_until > now and self._transport is not None:
            self._hall.counters["slowed"] += 1
            self._transport.pause_reading()
            self._loop.call_at(self._paid_until, self._read_on)

    def _read_on(self) -> None:
        if self._transport is not None:
            self._transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """End; the others hear of it if it was not meant."""
        del exc
        self._transport = None
        self._hall.leave(self)
        if self._will is not None:
            self._hall.publish(*self._will)

    def check(self, now: float) -> None:
        """Close the connection if nothing was heard for too long."""
        if self._transport is not None and now - self._heard_at > self._silence_s:
            self._hall.counters["silent_connects"] += self._entering
            self._transport.abort()

    def settle(self) -> None:
        """Note that it is on its way in no longer."""
        if self._entering:
            self._entering = False
            self._hall.entering[self._peer] -= 1
            self._hall.entering += Counter()  # without those of which there is none

    def write(self, packet: bytes) -> None:
        """Write without waiting."""
        if self._transport is not None:
            self._transport.write(packet)

    def abort(self) -> None:
        """Close at once, whatever waits to be written, and say nothing of it."""
        self._will = None
        if self._transport is not None:
            self._transport.abort()
            self._transport = None

    def _take(self, packet: Packet | Connect) -> None:
        if self._transport is None:  # it was cut off by what came before
            return
        hall = self._hall
        if isinstance(packet, Connect):
            self._open(packet)
            return
        if self._entering:
            raise MqttError("it has not said who it is")
        match packet.kind:
            case Kind.PUBLISH:
                if packet.retain:
                    hall.counters["refused_retained"] += 1
                    self.abort()
                    return
                if hall.may(self, "write", packet.topic):
                    hall.publish(packet.topic, packet.payload)
                if packet.number:
                    self.write(mqtt.answer(Kind.PUBACK, packet.number))
            case Kind.SUBSCRIBE:
                codes = bytes(0 if self._subscribed(each) else 0x80 for each in packet.filters)
                self.write(mqtt.answer(Kind.SUBACK, packet.number, codes))
            case Kind.UNSUBSCRIBE:
                hall.unsubscribe(self, packet.filters)
                self.write(mqtt.answer(Kind.UNSUBACK, packet.number))
            case Kind.PINGREQ:
                self.write(mqtt.bare(Kind.PINGRESP))
            case Kind.DISCONNECT:
                self._will = None
                self._transport.close()

    def _open(self, said: Connect) -> None:
        """Answer who opens a session; one of the same name ends."""
        if not self._entering:
            raise MqttError("it has said who it is already")
        self.settle()
        hall, will = self._hall, said.will
        self._silence_s = min(said.keep_alive_s or MAX_KEEPALIVE_S, MAX_KEEPALIVE_S) * 1.5
        # A will is small, and what its owner may write itself.
        small = will is not None and len(will[1]) <= MAX_WILL_BYTES
        if will is not None and small and hall.may(self, "write", will[0]):
            self._will = will
        self.client_id = self.name or said.client_id or f"{self._peer}/{id(self)}"
        if hall.end(self.client_id):
            hall.tell(taken_over=self.client_id)
        hall.named[self.client_id] = self
        self.write(mqtt.answer(Kind.CONNACK, 0))

    def _subscribed(self, each: str) -> bool:
        if not self._hall.may(self, "read", each):
            return False
        if len(self.filters) >= MAX_FILTERS and each not in self.filters:
            self._hall.counters["denied_subscribe"] += 1
            self._hall.leave(self)
            self.abort()
            return False
        self._hall.subscribe(self, each)
        return True


def main(text: str) -> None:
    """Run the broker of a `BrokerSpec`."""
    spec = BrokerSpec.from_json(text)
    announce(os.getpid())

    async def serve() -> None:
        orders: asyncio.Queue[bytes] = asyncio.Queue()
        loop = asyncio.get_running_loop()
        when_parent_goes(
            lambda: os._exit(0),
            lambda order: loop.call_soon_threadsafe(orders.put_nowait, order),
        )
        await Hall(spec, Teller()).serve(orders)

    try:
        asyncio.run(serve())
    except* OSError as exc:
        sys.exit(str(exc.exceptions[0]))


if __name__ == "__main__":
    main(sys.argv[1])
