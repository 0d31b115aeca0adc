"""The join service: a small TLS listener where devices and edges get their certificates.

One connection, one request. Everything is bounded before it is read: connections, their time,
and the length of a request. docs/protocol.md, Joining.
"""

import asyncio
import logging
import sqlite3
import ssl
import time
from collections import Counter
from collections.abc import Callable

import msgspec

from fedagent_coordinator.site.enrolment import Enrolment
from fedagent_coordinator.site.standing import Site
from fedagent_node.address import at_port, is_wildcard
from fedagent_node.errors import JoinError, LinkError
from fedagent_node.network import Listener, lan_addresses, listen_hint
from fedagent_node.site.credentials import Credentials
from fedagent_node.site.enrolling import read_frame
from fedagent_node.site.joining import (
    JOIN_VERSION,
    MAX_CRL_BYTES,
    MAX_PLACES,
    JoinAnswer,
    JoinRequest,
    code_of,
    framed,
    read,
)
from fedagent_node.site.reading import read_certificate
from fedagent_protocol.bucket import TokenBucket
from fedagent_protocol.errors import safe_text
from fedagent_protocol.signed import identity_of, verify

MAX_CONNECTIONS = 64
DEADLINE_S = 5.0
"""How long one connection may take, handshake and all."""
LINES_PER_S = 0.5
MOST_LINES = 30
_log = logging.getLogger(__name__)


class JoinService:
    """Listens until closed."""

    def __init__(
        self,
        site: Site,
        enrolment: Enrolment,
        *,
        certificate_days: float,
        broker_port: int = 0,
        counters: Counter[str] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._site = site
        self._enrolment = enrolment
        self._days = certificate_days
        self._broker_port = broker_port
        self._clock = clock
        self.listener = Listener(self._serve, most=MAX_CONNECTIONS, deadline_s=DEADLINE_S)
        self.listener.broken_off = lambda: self.counters.update(["join_broken_off"])
        self._lines = TokenBucket(MOST_LINES, LINES_PER_S)
        self.counters = counters if counters is not None else Counter()
        self.places: tuple[str, ...] = ()

    async def start(self, listen: str, port: int) -> int:
        """Listen; return the port.

        Raises:
            LinkError: It cannot.
        """
        try:
            everywhere = is_wildcard(listen) and ":" not in listen
            bound = await self.listener.start(None if everywhere else listen, port)
        except OSError as exc:
            other = "choose another port with --join-port, and create new invitations"
            hint, why = listen_hint(listen, other), exc.strerror or str(exc)
            raise LinkError(f"no join service at port {port}: {why}", hint) from exc
        hosts = lan_addresses() if is_wildcard(listen) else [listen]
        self.places = tuple(at_port(host, bound) for host in hosts)[:MAX_PLACES]
        self._enrolment.serves_at(self.places)
        return bound

    async def _serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, address: str
    ) -> None:
        try:
            # It was counted before the handshake, or who stops in it would not be. Nothing was
            # read yet: this task began in the step in which the connection was made.
            own = self._site.own()
            await writer.start_tls(_context(own))
            writer.write(framed(self._site.authority.der))
            answer = await self._answer(reader, own.certificate.der, address)
            writer.write(framed(msgspec.msgpack.encode(answer)))
            await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            raise
        except Exception:  # noqa: BLE001 - one connection must not end the service
            self.counters["join_internal_errors"] += 1
            _log.exception("a request to join could not be handled")

    async def _answer(self, reader: asyncio.StreamReader, leaf: bytes, address: str) -> JoinAnswer:
        try:
            request = read(JoinRequest, await read_frame(reader))
        except JoinError:
            return self._refuse("malformed", "somebody", address)
        name = safe_text(request.name) or "without a name"
        who = f"{request.role} {name} ({identity_of(request.public)[:12]})"
        try:
            decision = self._decide(request, leaf, address)
            if decision == "grant":
                return self._grant(request, who)
        except sqlite3.Error as error:
            # A full or locked disk: the device asks again.
            return self._refuse("closed", who, address, f": {error}")
        if decision not in ("wait", "waiting"):
            return self._refuse(decision, who, address)
        if decision == "wait":
            self.counters["join_pending"] += 1
            if not self._lines.take(time.monotonic()):
                return JoinAnswer()
            code = code_of(self._site.authority.der, request.public)
            _log.warning(
                "%s at %s wants to join with code %s; compare it with the code on the device, "
                "then run `fedagent devices accept %s`",
                *(who, address, code, code),
            )
        return JoinAnswer()

    def _decide(self, request: JoinRequest, leaf: bytes, address: str) -> str:
        if request.version != JOIN_VERSION:
            return "version"
        if not verify(request.public, request.signature, request.signed(leaf)):
            return "bad_signature"
        if request.site != self._site.name:
            return "wrong_site"
        return self._enrolment.decide(request, address, self._site.authority.der, now=self._clock())

    def _grant(self, request: JoinRequest, who: str) -> JoinAnswer:
        ident, now = identity_of(request.public), self._clock()
        authority, der = self._site.authority, self._enrolment.certificate_of(ident)
        held = None if der is None else read_certificate(der, authority.der, now=None)
        if held is None or not held.serves(now):
            held = authority.issue(request.public, request.role, self._days, now=now, before=held)
            self._enrolment.issued(held, now=now)
            self.counters["join_granted"] += 1
            until = time.strftime("%Y-%m-%d %H:%M", time.localtime(held.not_after))
            _log.info("%s has a certificate until %s", who, until)
        crl = self._site.own().crl.read_bytes()
        return JoinAnswer(
            certificate=held.der,
            name=self._enrolment.name_of(ident),
            services=self.places,
            broker_port=self._broker_port,
            crl=crl if len(crl) <= MAX_CRL_BYTES else b"",
            now_s=now,
        )

    def _refuse(self, reason: str, who: str, address: str, why: str = "") -> JoinAnswer:
        self.counters[f"join_{reason}"] += 1
        if self._lines.take(time.monotonic()):
            _log.warning("%s at %s may not join: %s%s", who, address, JoinError(reason).words, why)
        return JoinAnswer(refused=reason)


def _context(own: Credentials) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0
    context.load_cert_chain(own.cert, own.key)
    return context
