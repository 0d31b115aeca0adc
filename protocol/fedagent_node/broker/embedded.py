"""The embedded broker: amqtt behind a listener of our own, in a process of its own.

amqtt's own listener accepts clients without a certificate, has no limit on
packets and waits forever for a CONNECT. With its ``external`` listener type
we own the socket, the TLS context and the adapters where the limits are.
"""

import asyncio
import gc
import logging
import os
import resource
import socket
import sys
from collections import Counter
from contextlib import suppress

import msgspec

from fedagent_node.address import is_loopback
from fedagent_node.errors import LinkError
from fedagent_node.network import bound

from .acl import BrokerSpec
from .embedded_sessions import LISTENER, LimitedReader, SessionBroker, Writer
from .wrapper import Teller, announce, when_parent_goes

ACCEPT_BACKLOG = 512
STREAM_BYTES = 64 << 10
"""What is read ahead; a packet may be longer."""
TELL_S = 1.0
MAX_CONNECTIONS = 1200
OTHER_DESCRIPTORS = 64
"""What the broker's process has open beside its connections, with room to spare."""
MAX_ENTERING = 512
MAX_ENTERING_OF_ONE = 384
"""Connections of one address that are no session yet: behind a router may be a whole field."""
PATIENCE_S = 10.0
"""A connection that is not a session by then is closed."""

_log = logging.getLogger(__name__)


class Order(msgspec.Struct, frozen=True):
    """What the parent wants: new files, other ids left out, or the end of identities' sessions."""

    reload: bool = False
    cut: tuple[str, ...] = ()
    revoked: frozenset[str] | None = None


class Admission:
    """Counts connections, those that have yet to say who they are apart."""

    def __init__(self, counters: Counter[str]) -> None:
        self.counters = counters
        self.connections = 0
        self.entering: Counter[str] = Counter()
        self.most, soft = MAX_CONNECTIONS, resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        if soft != resource.RLIM_INFINITY:
            # Where descriptors are very few, half of them are for connections.
            self.most = min(self.most, max(soft - OTHER_DESCRIPTORS, soft // 2))

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


class _Front:
    """The way in: few may be on their way at a time, and none for long."""

    def __init__(self, spec: BrokerSpec, tell: Teller) -> None:
        self._spec = spec
        self._tell = tell
        self._counters: Counter[str] = Counter()
        self._broker = SessionBroker(spec, self._counters, tell)
        self._context = spec.tls.server_context() if spec.tls else None
        self._admission = Admission(self._counters)

    async def serve(self, orders: "asyncio.Queue[bytes]") -> None:
        """Run the broker until cancelled; `OSError` if the address cannot be bound."""
        listener = bound(self._spec.listen or "0.0.0.0", self._spec.port)  # noqa: S104 - checked
        listener.setblocking(False)
        await self._broker.start()
        listener.listen(ACCEPT_BACKLOG)
        with listener:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._report())
                group.create_task(self._obey(orders))
                await self._welcome(listener, group)

    async def _report(self) -> None:
        """Tell of what was counted, at most once a second."""
        while True:
            await asyncio.sleep(TELL_S)
            if gc.get_count()[1] > 0:
                gc.collect()  # an ended session is a ring, and holds its packets
            if self._counters and self._tell(counts=dict(self._counters)):
                self._counters.clear()

    async def _obey(self, orders: "asyncio.Queue[bytes]") -> None:
        while True:
            line = await orders.get()
            with suppress(msgspec.DecodeError):
                order = msgspec.json.decode(line, type=Order)
                if order.reload and self._spec.tls:
                    try:
                        self._context = self._spec.tls.server_context()
                    except LinkError as exc:
                        _log.error("the certificates could not be reloaded: %s", exc)
                if order.revoked is not None:
                    self._broker.leave_out(order.revoked)
                for name in order.cut:
                    await self._broker.end_session(name)

    async def _welcome(self, listener: socket.socket, group: asyncio.TaskGroup) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                sock, address = await loop.sock_accept(listener)
            except OSError:  # out of descriptors, or it was gone already
                self._counters["refused_connects"] += 1
                await asyncio.sleep(0.1)
                continue
            entry = self._admission.enter(str(address[0]))
            if entry is not None:
                group.create_task(self._serve(sock, entry))
            else:
                sock.close()

    async def _serve(self, sock: socket.socket, entry: Entry) -> None:
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            loop = asyncio.get_running_loop()
            reader = asyncio.StreamReader(limit=STREAM_BYTES)
            protocol = asyncio.StreamReaderProtocol(reader)
            patience = PATIENCE_S if self._context is not None else None
            transport, _ = await loop.connect_accepted_socket(
                lambda: protocol, sock, ssl=self._context, ssl_handshake_timeout=patience
            )
            entry.watch(transport)
            writer = Writer(asyncio.StreamWriter(transport, protocol, reader, loop), entry.settle)
            source = LimitedReader(
                *(reader, writer, self._spec.max_packet_bytes, self._counters),
                trusted=self._is_owner(writer.name, entry.peer),
            )
            await self._broker.external_connected(source, writer, LISTENER)
        except OSError as exc:  # of TLS as well
            self._counters["refused_connects"] += not entry.settled
            _log.debug("a client disconnected: %s", exc)
        except Exception:  # noqa: BLE001 - one client's trouble is not the others'
            self._counters["client_errors"] += 1
            if self._counters["client_errors"] == 1:
                _log.exception(
                    "a client could not be served; further errors of this kind are only counted"
                )
        finally:
            entry.leave()
            sock.close()

    def _is_owner(self, name: str, peer: str) -> bool:
        """Return whether a client is the broker's owner; without certificates, from its machine."""
        spec = self._spec
        return name == spec.owner if spec.certified else is_loopback(peer) or peer == spec.listen


def main(text: str) -> None:
    """Run the broker of a `BrokerSpec`."""
    for noisy in ("amqtt", "transitions"):
        logging.getLogger(noisy).setLevel(logging.ERROR)
    spec = BrokerSpec.from_json(text)
    announce(os.getpid())
    tell = Teller()
    try:
        with asyncio.Runner() as runner:
            orders: asyncio.Queue[bytes] = asyncio.Queue()
            loop = runner.get_loop()
            when_parent_goes(
                lambda: os._exit(0),
                lambda order: loop.call_soon_threadsafe(orders.put_nowait, order),
            )

            async def serve() -> None:
                await _Front(spec, tell).serve(orders)

            runner.run(serve())
    except OSError as exc:
        sys.exit(str(exc))


if __name__ == "__main__":
    main(sys.argv[1])
