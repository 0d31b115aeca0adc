"""The embedded broker: amqtt behind a listener of our own, in a process of `broker_wrapper`.

amqtt's own listener accepts clients without a certificate, has no limit on
packets and waits forever for a CONNECT. With its ``external`` listener type
we own the socket, the TLS context and the adapters where the limits are.
"""

import asyncio
import gc
import logging
import socket
import ssl
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

import msgspec

from fedagent_node.broker.embedded_config import EmbeddedConfig
from fedagent_node.broker.embedded_limits import (
    PATIENCE_S,
    STREAM_BYTES,
    Admission,
    Entry,
    LimitedReader,
    Writer,
    name_of,
)
from fedagent_node.broker.embedded_sessions import LISTENER, SessionBroker

ACCEPT_BACKLOG = 512
TELL_S = 1.0

_log = logging.getLogger(__name__)

Tell = Callable[..., bool]


class Order(msgspec.Struct, frozen=True):
    """What the parent wants: new files, other ids left out, or the end of identities' sessions."""

    reload: bool = False
    cut: tuple[str, ...] = ()
    revoked: frozenset[str] | None = None


async def serve(config: EmbeddedConfig, orders: "asyncio.Queue[bytes]", tell: Tell) -> None:
    """Run the broker until cancelled; `OSError` if the address cannot be bound."""
    for noisy in ("amqtt", "transitions"):
        logging.getLogger(noisy).setLevel(logging.ERROR)
    counters: Counter[str] = Counter()
    listener = _listen(config.host, config.port)
    broker = SessionBroker(config, counters, tell)
    await broker.start()
    front = _Front(broker, config, counters)
    listener.listen(ACCEPT_BACKLOG)
    with listener:
        async with asyncio.TaskGroup() as group:
            group.create_task(_report(counters, tell))
            group.create_task(_obey(front, orders))
            await front.welcome(listener, group)


async def _report(counters: Counter[str], tell: Tell) -> None:
    """Tell of what was counted, at most once a second."""
    while True:
        await asyncio.sleep(TELL_S)
        if gc.get_count()[1] > 0:
            gc.collect()  # an ended session is a ring, and holds its packets
        if counters and tell(counts=dict(counters)):
            counters.clear()


async def _obey(front: "_Front", orders: "asyncio.Queue[bytes]") -> None:
    while True:
        line = await orders.get()
        with suppress(msgspec.DecodeError):
            order = msgspec.json.decode(line, type=Order)
            if order.reload:
                front.reload()
            if order.revoked is not None:
                front.broker.leave_out(order.revoked)
            for name in order.cut:
                await front.broker.end_session(name)


class _Front:
    """The way in: few may be on their way at a time, and none for long."""

    def __init__(
        self, broker: SessionBroker, config: EmbeddedConfig, counters: Counter[str]
    ) -> None:
        self.broker = broker
        self._config = config
        self._context = config.tls.server_context() if config.tls else None
        self._counters = counters
        self._admission = Admission(counters)

    def reload(self) -> None:
        """Take in certificates and revocations, for the connections from now on."""
        try:
            tls = self._config.tls
            self._context = tls.server_context() if tls else None
        except (OSError, ssl.SSLError) as exc:
            _log.error("the certificates could not be reloaded: %s", exc)

    async def welcome(self, listener: socket.socket, group: asyncio.TaskGroup) -> None:
        """Take whoever comes, if there is room."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                sock, address = await loop.sock_accept(listener)
            except OSError:  # out of descriptors, or it was gone already
                self._counters["refused_connects"] += 1
                await asyncio.sleep(0.1)
                continue
            peer = str(address[0])
            if self._admission.enter(peer):
                group.create_task(self._serve(sock, peer))
            else:
                sock.close()

    async def _serve(self, sock: socket.socket, peer: str) -> None:
        entry = Entry(self._admission, peer)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            reader, writer = await self._streams(sock)
            entry.watch(writer.transport)
            name = name_of(writer) if self._config.certified else ""
            source = LimitedReader(reader, writer, self._config.max_packet_bytes, self._counters)
            await self.broker.external_connected(source, Writer(writer, entry, name), LISTENER)
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

    async def _streams(
        self, sock: socket.socket
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=STREAM_BYTES)
        protocol = asyncio.StreamReaderProtocol(reader)
        patience = PATIENCE_S if self._context is not None else None
        transport, _ = await loop.connect_accepted_socket(
            lambda: protocol, sock, ssl=self._context, ssl_handshake_timeout=patience
        )
        return reader, asyncio.StreamWriter(transport, protocol, reader, loop)


def _listen(host: str, port: int) -> socket.socket:
    """Return a bound socket, so that a taken port is an error here."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
    except OSError:
        sock.close()
        raise
    sock.setblocking(False)
    return sock
