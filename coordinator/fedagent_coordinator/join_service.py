"""The join service: a small TLS listener where devices and edges get their certificates.

One connection, one request. Everything is bounded before it is read: connections, their time,
the length of a request, and wrong tries by address. docs/protocol.md, Joining.
"""

import asyncio
import logging
import secrets
import sqlite3
import ssl
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from fedagent_node.address import at_port, counted_as, is_wildcard
from fedagent_node.errors import JoinError, LinkError
from fedagent_node.network import lan_addresses
from fedagent_node.site.certificates import Certificate
from fedagent_node.site.credentials import Credentials
from fedagent_node.site.joining import (
    JOIN_VERSION,
    LENGTH_BYTES,
    MAX_CRL_BYTES,
    MAX_FRAME_BYTES,
    NONCE_BYTES,
    Answer,
    Granted,
    JoinRequest,
    Opening,
    Pending,
    Refusal,
    Refused,
    code_of,
    commitment_to,
    framed,
    read_request,
    session_of,
    spaced,
)
from fedagent_protocol.errors import safe_text
from fedagent_protocol.signatures import identity_of, verify

from .enrolment import Application, Enrolment
from .site import Site

MAX_CONNECTIONS = 64
MAX_OF_ADDRESS = 16
DEADLINE_S = 5.0
"""How long one connection may take, handshake and all."""
TRIES = 5
TRIES_BEHIND_EDGE = 40
"""At the address of an edge that joined: all devices behind it share it."""
TRIES_S = 60.0
"""Wrong tries that an address has in this time; then nobody new is heard for as long."""
MAX_ADDRESSES = 4096
LINES_PER_MINUTE = 30
WRONG: frozenset[Refusal] = frozenset(
    {"malformed", "bad_signature", "unknown_invitation", "used_invitation"}
)
"""What nobody does who means well, or not often."""
_log = logging.getLogger(__name__)


class JoinPortError(LinkError):
    """Raised when the join service cannot listen."""

    template = "the join service cannot listen on port {port} ({reason})"
    hint = "choose another one with --join-port, and create new invitations"

    port: int
    reason: str


class Tries:
    """Wrong tries of addresses, and how long each is not heard. Pure: `now` in seconds."""

    def __init__(self) -> None:
        self._wrong: OrderedDict[str, list[float]] = OrderedDict()

    def blocked(self, address: str, now: float, tries: int = TRIES) -> bool:
        """Return whether this address had its tries."""
        recent = [at for at in self._wrong.get(address, ()) if now - at < TRIES_S]
        return len(recent) >= tries

    def add(self, address: str, now: float) -> None:
        """Count a wrong try."""
        kept = [at for at in self._wrong.pop(address, ()) if now - at < TRIES_S]
        self._wrong[address] = [*kept, now][-TRIES_BEHIND_EDGE:]
        while len(self._wrong) > MAX_ADDRESSES:
            self._wrong.popitem(last=False)


@dataclass(frozen=True, slots=True)
class Begun:
    """What was said on a connection before the request, with which certificate, to whom."""

    opening: Opening
    leaf: bytes
    nonce: bytes
    address: str


class JoinService:
    """Listens until closed; until `permit_until` everybody is let in, in seconds since 1970."""

    def __init__(
        self,
        site: Site,
        enrolment: Enrolment,
        *,
        certificate_days: float,
        permit_s: float = 0.0,
        counters: Counter[str] | None = None,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._site = site
        self._enrolment = enrolment
        self._days = certificate_days
        self._clock = clock
        self._monotonic = monotonic
        self._permit_s = permit_s
        self.permit_until = enrolment.permit_until(permit_s, now=clock())
        self._tries = Tries()
        self._open: Counter[str] = Counter()
        self._serving: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._server: asyncio.Server | None = None
        self._lines = (0.0, 0)
        self.counters = counters if counters is not None else Counter()
        self.places: tuple[str, ...] = ()

    async def start(self, listen: str, port: int) -> int:
        """Listen; return the port.

        Raises:
            JoinPortError: It cannot.
        """
        try:
            self._server = await asyncio.start_server(
                self._serve,
                None if is_wildcard(listen) and ":" not in listen else listen,
                port,
                limit=MAX_FRAME_BYTES,
                backlog=MAX_CONNECTIONS,
            )
        except OSError as exc:
            raise JoinPortError(port, exc.strerror or str(exc)) from exc
        bound = int(self._server.sockets[0].getsockname()[1])
        hosts = lan_addresses() if is_wildcard(listen) else [listen]
        self.places = tuple(at_port(host, bound) for host in hosts)
        self._enrolment.serves_at(self.places)
        return bound

    async def close(self) -> None:
        """Stop listening, and hang up. Idempotent."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
        for writer in tuple(self._serving.values()):
            # Not cancelled: streams of Python 3.11 log that as an error.
            writer.transport.abort()
        if self._serving:
            await asyncio.wait(self._serving, timeout=1.0)

    # -------------------------------------------------------------- a connection

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        address = address_of(writer)
        if self._open.total() >= MAX_CONNECTIONS or self._open[address] >= MAX_OF_ADDRESS:
            self.counters["join_crowded"] += 1
            writer.transport.abort()
            return
        task = asyncio.current_task()
        assert task is not None
        self._serving[task] = writer
        self._open[address] += 1
        try:
            async with asyncio.timeout(DEADLINE_S):
                # Counted before the handshake, or who stops in it would not be. Nothing was
                # read yet: this task began in the step in which the connection was made.
                own = self._site.own()
                await writer.start_tls(_context(own))
                await self._talk(reader, writer, own.certificate.der, address)
        except (TimeoutError, OSError, asyncio.IncompleteReadError):
            self.counters["join_broken_off"] += 1
        except Exception:  # noqa: BLE001 - one connection must not end the service
            self.counters["join_internal_errors"] += 1
            _log.exception("a request to join could not be handled")
        finally:
            del self._serving[task]
            self._open[address] -= 1
            if not self._open[address]:
                del self._open[address]
            writer.close()

    async def _talk(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        leaf: bytes,
        address: str,
    ) -> None:
        nonce = secrets.token_bytes(NONCE_BYTES)
        opening = Opening(
            version=JOIN_VERSION,
            site=self._site.name,
            ca=self._site.authority.der,
            commitment=commitment_to(nonce),
        )
        writer.write(framed(opening))
        answer = await self._answer(reader, Begun(opening, leaf, nonce, address))
        writer.write(framed(answer))
        await writer.drain()

    async def _answer(self, reader: asyncio.StreamReader, begun: "Begun") -> Answer:
        address = begun.address
        length = int.from_bytes(await reader.readexactly(LENGTH_BYTES), "big")
        if not 0 < length <= MAX_FRAME_BYTES:
            return self._refuse("malformed", address, None)
        try:
            request = read_request(await reader.readexactly(length))
        except JoinError:
            return self._refuse("malformed", address, None)
        return self.answer(request, begun)

    def answer(self, request: JoinRequest, begun: "Begun") -> Answer:
        """Return what a request gets on a connection that began like this."""
        address, nonce = begun.address, begun.nonce
        if request.version != JOIN_VERSION:
            return self._refuse("version", address, request)
        signed = request.signed(begun.leaf, begun.opening)
        if not verify(request.public, request.signature, signed):
            return self._refuse("bad_signature", address, request)
        if request.site != self._site.name:
            return self._refuse("wrong_site", address, request)
        now = self._clock()
        application = Application(
            request,
            code_of(self._site.authority.der, request.public, request.nonce, nonce),
            session_of(request.nonce, nonce),
            address,
        )
        # A clock that was set back opens nothing for longer than was asked for.
        permitted = 0.0 < self.permit_until - now <= self._permit_s
        try:
            decision = self._enrolment.decide(
                application,
                now=now,
                open_to_all=permitted,
                guessed=self._guessed(address),
            )
            if decision == "grant":
                return self._grant(application, now)
        except sqlite3.Error as error:
            # A full or locked disk: said once in a while, and the device asks again.
            return self._refuse("closed", address, request, why=f": {error}")
        match decision:
            case "wait":
                self._show(application)
                return Pending(nonce=nonce)
            case "waiting":
                return Pending()
            case refused:
                return self._refuse(refused, address, request)

    def _guessed(self, address: str) -> bool:
        """Return whether somebody at an address had more wrong tries than people need."""
        now = self._monotonic()
        if not self._tries.blocked(address, now):
            return False
        behind = address in self._enrolment.edges_at()
        return not behind or self._tries.blocked(address, now, TRIES_BEHIND_EDGE)

    def _grant(self, application: Application, now: float) -> Granted:
        ident, request = application.id, application.request
        der = self._enrolment.certificate_of(ident, now=now)
        if der is None:
            certificate = self._issue(request, now)
            der = certificate.der
        name = self._enrolment.name_of(ident)
        crl = self._site.own().crl.read_bytes()
        return Granted(
            certificate=der,
            name=name,
            services=self.places[:16],
            crl=crl if len(crl) <= MAX_CRL_BYTES else b"",
        )

    def _issue(self, request: JoinRequest, now: float) -> Certificate:
        certificate = self._site.authority.issue(request.public, request.role, self._days, now=now)
        self._enrolment.issued(certificate, now=now)
        self.counters["join_granted"] += 1
        _log.info(
            "%s %s has a certificate until %s",
            request.role,
            certificate.id[:12],
            time.strftime("%Y-%m-%d %H:%M", time.localtime(certificate.not_after)),
        )
        return certificate

    def _show(self, application: Application) -> None:
        self.counters["join_pending"] += 1
        request, code = application.request, application.code
        edge = self._enrolment.edges_at().get(application.address)
        _log.warning(
            "%s %s (%s, at %s) wants to join with code %s; compare it with the code on the "
            "device, then run `fedagent devices accept %s`",
            request.role,
            safe_text(request.name) or "without a name",
            application.id[:12],
            f"{application.address}, edge {edge} or behind it" if edge else application.address,
            spaced(code),
            code,
        )

    def _refuse(
        self, reason: Refusal, address: str, request: JoinRequest | None, *, why: str = ""
    ) -> Refused:
        now = self._monotonic()
        self.counters[f"join_{reason}"] += 1
        if reason in WRONG and not self._guessed(address):
            self._tries.add(address, now)
        since, lines = self._lines
        if now - since >= 60.0:
            since, lines = now, 0
        self._lines = (since, lines + 1)
        if lines < LINES_PER_MINUTE:
            who = "somebody"
            if request is not None:
                named = f" {safe_text(request.name)}" if request.name else ""
                who = f"{request.role}{named} ({identity_of(request.public)[:12]})"
            words = f"{JoinError(reason).words}{why}"
            _log.warning("%s at %s may not join: %s", who, address, words)
        return Refused(reason=reason)


def _context(own: Credentials) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0
    context.load_cert_chain(own.cert, own.key)
    return context


def address_of(writer: asyncio.StreamWriter) -> str:
    """Return whose tries are counted: an address, or the network of an IPv6 one."""
    peer = writer.get_extra_info("peername")
    return counted_as(str(peer[0])) if peer else "unknown"
