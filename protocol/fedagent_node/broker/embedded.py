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
from contextlib import ExitStack, suppress

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


def most_connections() -> int:
    """Return how many connections this process may have; of few descriptors half are for them."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if soft == resource.RLIM_INFINITY:
        return MAX_CONNECTIONS
    return min(MAX_CONNECTIONS, max(soft - OTHER_DESCRIPTORS, soft // 2))


class _Front:
    """The way in: few may be on their way at a time, and none for long."""

    def __init__(self, spec: BrokerSpec, tell: Teller) -> None:
        self._spec = spec
        self._tell = tell
        self._counters: Counter[str] = Counter()
        self._broker = SessionBroker(spec, self._counters, tell)
        self._context = spec.tls.server_context() if spec.tls else None
        self._connections, self._most = 0, most_connections()
        self._entering: Counter[str] = Counter()  # those of an address that are no session yet

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
            peer = str(address[0])
            if (
                self._connections >= self._most
                or self._entering.total() >= MAX_ENTERING
                or self._entering[peer] >= MAX_ENTERING_OF_ONE
            ):
                self._counters["refused_connects"] += 1
                sock.close()
                continue
            self._connections += 1
            self._entering[peer] += 1
            group.create_task(self._serve(sock, peer))

    async def _serve(self, sock: socket.socket, peer: str) -> None:
        # The broker's owner is trusted; without certificates, who is on its machine.
        spec, here = self._spec, is_loopback(peer) or peer == self._spec.listen
        loop, entering = asyncio.get_running_loop(), ExitStack()  # it ends once, with an answer
        entering.callback(self._settle, peer)
        transport: asyncio.WriteTransport | None = None
        writer: Writer | None = None
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            reader = asyncio.StreamReader(limit=STREAM_BYTES)
            protocol = asyncio.StreamReaderProtocol(reader)
            patience = PATIENCE_S if self._context is not None else None
            transport, _ = await loop.connect_accepted_socket(
                lambda: protocol, sock, ssl=self._context, ssl_handshake_timeout=patience
            )
            entering.callback(loop.call_later(PATIENCE_S, self._too_late, transport).cancel)
            stream = asyncio.StreamWriter(transport, protocol, reader, loop)
            writer = Writer(stream, entering.close)
            source = LimitedReader(
                *(reader, writer, spec.max_packet_bytes, self._counters),
                trusted=writer.name == spec.owner if spec.certified else here,
            )
            await self._broker.external_connected(source, writer, LISTENER)
        except OSError as exc:  # of TLS as well
            self._counters["refused_connects"] += writer is None or not writer.answered
            _log.debug("a client disconnected: %s", exc)
        except Exception:  # noqa: BLE001 - one client's trouble is not the others'
            self._counters["client_errors"] += 1
            if self._counters["client_errors"] == 1:
                _log.exception(
                    "a client could not be served; further errors of this kind are only counted"
                )
        finally:
            entering.close()
            self._connections -= 1
            if transport is not None:
                transport.abort()
            sock.close()

    def _settle(self, peer: str) -> None:
        self._entering[peer] -= 1
        if not self._entering[peer]:
            del self._entering[peer]

    def _too_late(self, transport: asyncio.WriteTransport) -> None:
        self._counters["silent_connects"] += 1
        transport.abort()


def main(text: str) -> None:
    """Run the broker of a `BrokerSpec`."""
    for noisy in ("amqtt", "transitions"):
        logging.getLogger(noisy).setLevel(logging.ERROR)
    spec = msgspec.json.decode(text, type=BrokerSpec, dec_hook=lambda kind, value: kind(value))
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
