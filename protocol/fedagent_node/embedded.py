"""The embedded broker: amqtt behind a listener of our own, in a process of `broker_wrapper`.

amqtt's own listener accepts clients without a certificate, has no limit on
packets and waits forever for a CONNECT. With its ``external`` listener type
we own the socket, the TLS context and the adapters where the limits are.
"""

import asyncio
import logging
import socket
import ssl
from pathlib import Path

import msgspec
from amqtt.adapters import ReaderAdapter, StreamReaderAdapter, StreamWriterAdapter
from amqtt.broker import Broker as AmqttBroker
from amqtt.mqtt.publish import PublishPacket
from amqtt.session import Session

from .address import TlsFiles

LISTENER = "default"
CONNECT_DEADLINE_S = 10.0
"""A connection that is not a session by then is closed."""
MAX_BACKLOG_BYTES = 48 << 20
"""Most bytes that wait for one subscriber; credit keeps honest roles far below."""
ACCEPT_BACKLOG = 256

_log = logging.getLogger(__name__)

_CONFIG = {
    # The address is a placeholder: nothing listens on an external listener.
    "listeners": {LISTENER: {"type": "external", "bind": "127.0.0.1:1883"}},
    "plugins": {"amqtt.plugins.authentication.AnonymousAuthPlugin": {"allow_anonymous": True}},
}


class EmbeddedConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The command line of the broker process, as JSON."""

    host: str
    port: int
    max_packet_bytes: int
    ca: str = ""
    cert: str = ""
    key: str = ""
    crl: str = ""
    least: int = ssl.TLSVersion.TLSv1_2

    @property
    def tls(self) -> TlsFiles | None:
        """The certificate files, or None for plain TCP."""
        if not self.cert:
            return None
        crl = Path(self.crl) if self.crl else None
        least = ssl.TLSVersion(self.least)
        return TlsFiles(Path(self.ca), Path(self.cert), Path(self.key), crl, least)


class _Broker(AmqttBroker):  # type: ignore[misc]  # amqtt is skipped by mypy (pyproject)
    """amqtt's broker with a direct fan-out.

    amqtt sends each message in a task per subscriber, and forgets it when no PUBACK came within
    5 s; what waits for a slow subscriber has no bound. Here a message is written at once, at
    QoS 0 (which is granted), and a subscriber that is too far behind loses messages, counted.
    """

    dropped_slow = 0

    async def add_subscription(self, subscription: tuple[str, int], session: Session) -> int:
        """Subscribe at QoS 0, whatever was asked for."""
        granted: int = await super().add_subscription((subscription[0], 0), session)
        return granted

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
        if not isinstance(writer, _Writer) or target.transitions.state != "connected":
            return
        if writer.backlog_bytes > MAX_BACKLOG_BYTES:
            self.dropped_slow += 1
            if self.dropped_slow == 1:
                _log.error("a slow subscriber loses messages; more of these are counted only")
            return
        writer.write(packet)


class _LimitedReader(StreamReaderAdapter):  # type: ignore[misc]  # as above
    """Refuse to buffer more than one packet's limit."""

    def __init__(
        self, reader: asyncio.StreamReader, transport: asyncio.WriteTransport, limit: int
    ) -> None:
        super().__init__(reader)
        self._transport = transport
        self._limit = limit

    async def read(self, n: int = -1) -> bytes:
        if n > self._limit:
            self._transport.abort()
            raise ConnectionResetError(f"a packet of {n} bytes, the limit is {self._limit}")
        data: bytes = await super().read(n)
        return data


class _Writer(StreamWriterAdapter):  # type: ignore[misc]  # as above
    """Know whether the broker ever answered (its CONNACK)."""

    answered = False

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        super().__init__(writer)
        self._transport = writer.transport

    @property
    def backlog_bytes(self) -> int:
        """What the subscriber has not taken yet."""
        return self._transport.get_write_buffer_size()

    def write(self, data: bytes) -> None:
        self.answered = True
        super().write(data)


async def serve(config: EmbeddedConfig) -> None:
    """Run the broker until cancelled; `OSError` if the address cannot be bound."""
    for noisy in ("amqtt", "transitions"):
        logging.getLogger(noisy).setLevel(logging.ERROR)
    tls = config.tls.server_context() if config.tls is not None else None
    listener = _listen(config.host, config.port)
    broker = _Broker(_CONFIG)
    await broker.start()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await _serve_client(broker, config, reader, writer)

    server = await asyncio.start_server(
        accept, sock=listener, ssl=tls, limit=config.max_packet_bytes, backlog=ACCEPT_BACKLOG
    )
    async with server:
        await server.serve_forever()


async def _serve_client(
    broker: AmqttBroker,
    config: EmbeddedConfig,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
) -> None:
    transport = writer.transport
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    out = _Writer(writer)
    deadline = asyncio.get_running_loop().call_later(
        CONNECT_DEADLINE_S, lambda: None if out.answered else transport.abort()
    )
    source: ReaderAdapter = _LimitedReader(reader, transport, config.max_packet_bytes)
    try:
        await broker.external_connected(source, out, LISTENER)
    except (OSError, ssl.SSLError) as exc:
        _log.debug("a client went away: %s", exc)
    finally:
        deadline.cancel()
        if not transport.is_closing():
            transport.abort()


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
