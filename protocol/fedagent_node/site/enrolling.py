"""How a role comes to its credentials: by an invitation, or by a code that a person accepts."""

import asyncio
import logging
import ssl
import time
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing, suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec
from msgspec import structs

from fedagent_node.data_dir import Identity
from fedagent_node.discovery.advert import Advert
from fedagent_node.effects import Emit
from fedagent_node.errors import JoinError, connect_reason
from fedagent_node.network import Backoff, cancelled
from fedagent_node.settings import NodeConfig
from fedagent_node.shell import Shell
from fedagent_node.site import FOLDER
from fedagent_protocol import SOFTWARE
from fedagent_protocol.errors import ProtocolError, safe_text

from .certificates import Certificate, fingerprint
from .credentials import (
    CRL_FILE,
    Credentials,
    Joined,
    load_credentials,
    read_joined,
    store_credentials,
    store_crl,
)
from .joining import (
    JOIN_VERSION,
    LATER,
    LENGTH_BYTES,
    MAX_FRAME_BYTES,
    MAX_PLACES,
    Invitation,
    JoinAnswer,
    JoinRequest,
    JoinRole,
    code_of,
    framed,
    read,
    split_place,
)
from .reading import read_certificate, read_crl

ASK_S = 10.0
POLL_S = 2.0
REMIND_S = 60.0
QUIET_S = 8.0
"""How long no join service may be found before that is logged."""
_OTHERS = frozenset({"other_authority", "wrong_site", "malformed", "version"})
"""What somebody else may say: the site that is meant may still answer elsewhere."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Applicant:
    """Who asks, and what is known of the site; an empty fingerprint takes any authority."""

    identity: Identity
    role: JoinRole
    site: str
    name: str
    fingerprint: str = ""
    secret: bytes = b""


@dataclass(frozen=True, slots=True)
class Admitted:
    """What a join service answered that lets us in, and the authority behind it."""

    place: str
    certificate: Certificate
    ca_der: bytes
    answer: JoinAnswer


@dataclass(frozen=True, slots=True)
class Waiting:
    """It is a person's turn; the authority is part of the code (`code_of`)."""

    ca_der: bytes


class Joiner:
    """Asks join services until one lets this role in.

    `invitation` is what somebody was given: an invitation, HOST:PORT of a join service, or
    nothing; more services come by `seen`.
    """

    def __init__(
        self, shell: Shell, identity: Identity, role: JoinRole, config: NodeConfig, *, name: str
    ) -> None:
        self._shell = shell
        given, mark, secret = config.invitation(), "", b""
        places: tuple[str, ...] = (given,) if isinstance(given, str) else ()
        if isinstance(given, Invitation):
            places, mark, secret = given.places, given.fingerprint.hex(), given.secret
        self._applicant = Applicant(identity, role, config.site, name, mark, secret)
        self._places = dict.fromkeys(places)
        self._news = asyncio.Event()
        self._said: dict[str, float] = {}
        self._waits = False  # a join service has taken the request: it is a person's turn

    def seen(self, adverts: Iterable[Advert]) -> None:
        """Take in who announces a join service."""
        for advert in sorted(adverts, key=lambda one: one.id):
            if advert.join and advert.hosts and len(self._places) < MAX_PLACES:
                self._places.setdefault(f"{advert.address.host}:{advert.join}")
        if self._places:
            self._news.set()

    async def run(self) -> Credentials:
        """Return the credentials, once they are stored.

        Raises:
            JoinError: The site does not let us in, for a reason that time does not end.
        """
        backoff = Backoff(first_s=1.0, cap_s=10.0)
        while True:
            refusals = []
            async with aclosing(_answers(tuple(self._places), self._applicant)) as answers:
                async for place, answer in answers:
                    if isinstance(answer, Admitted):
                        return self._keep(answer)
                    if isinstance(answer, Waiting):
                        await self._show(answer.ca_der)
                        continue
                    self._say(f"{place}: {answer}; trying again")
                    if answer.reason in _OTHERS:
                        refusals.append(answer)
            if self._applicant.secret and len(refusals) == len(self._places) > 0:
                raise refusals[0]
            pause_s = POLL_S if self._waits else backoff.next()
            self._news.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s if self._places else None):
                    await self._news.wait()

    async def _show(self, ca_der: bytes) -> None:
        code = await asyncio.to_thread(code_of, ca_der, self._applicant.identity.public_bytes)
        site, self._waits = self._applicant.site, True
        if self._say(
            f"waiting to be accepted to site {site} with code {code}; compare the code, then run "
            f"at the coordinator: `fedagent devices accept {code}`",
            again_s=REMIND_S,
        ):
            self._shell.emit(Emit("joining", {"site": site, "code": code}))

    def _keep(self, admitted: Admitted) -> Credentials:
        own = self._applicant
        found = _store(self._shell.directory, own.identity, admitted)
        self._shell.emit(Emit("joined", {"site": own.site, "at": admitted.place}))
        _log.info(
            "%s: joined site %s as %s, authority %s",
            *(self._shell.id, own.site, own.role, fingerprint(admitted.ca_der)[:16]),
        )
        return found

    def say_how(self) -> None:
        """Say how to join where zeroconf finds nobody."""
        if not self._waits:
            self._say(
                f"not in site {self._applicant.site} yet; if zeroconf does not find the join "
                "service, give it: --join HOST:PORT, or an invitation"
            )

    def _say(self, text: str, *, again_s: float = float("inf")) -> bool:
        now = time.monotonic()
        if now - self._said.get(text, -again_s) < again_s or len(self._said) > 4 * MAX_PLACES:
            return False
        self._said[text] = now
        _log.warning("%s: %s", self._shell.id, text)
        return True


async def join_first(
    shell: Shell, identity: Identity, role: JoinRole, config: NodeConfig, *, name: str, must: bool
) -> None:
    """Join the site before anything else, where that was asked for, or must be.

    Returns when this role has its credentials, needs none, or the process is to stop.

    Raises:
        JoinError: It is not let in.
    """
    credentials = load_credentials(shell.directory)
    given = config.invitation()
    if credentials is not None:
        invited = given.fingerprint.hex() if isinstance(given, Invitation) else ""
        if invited not in ("", fingerprint(credentials.ca_der)):
            raise JoinError("elsewhere")
        return  # it is renewed beside the work
    if config.tls is not None or not (given or must):
        return
    joiner = Joiner(shell, identity, role, config, name=name)
    discovery = await shell.discover() if config.discovery != "off" else None
    joining = asyncio.create_task(joiner.run(), name="join")
    stopping = asyncio.create_task(shell.stop.wait(), name="stop")
    quiet = asyncio.get_running_loop().call_later(QUIET_S, joiner.say_how)
    try:
        if discovery is not None:
            for wanted in ("coordinator", "edge"):
                discovery.browse(wanted, joiner.seen)
        await asyncio.wait({joining, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if joining.done():
            joining.result()
    finally:
        quiet.cancel()
        await cancelled(joining, stopping)
        if discovery is not None:
            await discovery.stop()


async def renew(directory: Path, identity: Identity) -> Credentials:
    """Ask for the next certificate, and keep it; errors as of `ask_again`."""
    return _store(directory, identity, await ask_again(directory, identity))


async def ask_again(directory: Path, identity: Identity) -> Admitted:
    """Ask the site that a role joined; return what it answered.

    Raises:
        JoinError: The site refuses (``revoked`` is for good), or nobody answers.
    """
    credentials, joined = load_credentials(directory), read_joined(directory)
    if credentials is None or joined is None:
        raise JoinError("unreachable", " (this role has not joined a site)")
    own = credentials.certificate
    if own.role not in ("agent", "edge"):
        raise JoinError("wrong_role")
    applicant = Applicant(identity, own.role, own.site, joined.name, joined.fingerprint)
    failure: JoinError | None = None
    async with aclosing(_answers(joined.services, applicant)) as answers:
        async for _, answer in answers:
            if isinstance(answer, Admitted):
                return answer
            failure = JoinError("forgotten") if isinstance(answer, Waiting) else failure or answer
    raise failure or JoinError("unreachable", " (no address is known)")


_Answer = Admitted | Waiting | JoinError


async def _answers(
    places: Iterable[str], applicant: Applicant
) -> AsyncGenerator[tuple[str, _Answer], None]:
    """Ask at each place in turn; a refusal that neither time nor another place ends is raised."""
    for place in places:
        answer: _Answer
        try:
            answer = await ask(place, applicant)
        except JoinError as error:
            if error.reason not in LATER | _OTHERS:
                raise
            answer = error
        yield place, answer


def _store(directory: Path, identity: Identity, admitted: Admitted) -> Credentials:
    answer = admitted.answer
    places = dict.fromkeys((admitted.place, *answer.services))
    joined = Joined(
        site=admitted.certificate.site,
        fingerprint=fingerprint(admitted.ca_der),
        services=tuple(places)[:MAX_PLACES],
        broker_port=answer.broker_port,
        name=safe_text(answer.name, limit=64),
        ahead_s=time.time() - answer.now_s,
    )
    if answer.crl and not (directory / FOLDER / CRL_FILE).exists():
        # Before a broker starts: mosquitto reads a list again, but not that there is one.
        store_crl(directory, answer.crl)
    return store_credentials(directory, identity, admitted.certificate, admitted.ca_der, joined)


async def ask(place: str, applicant: Applicant) -> Admitted | Waiting:
    """Ask a join service once.

    Raises:
        JoinError: It refuses, is not the one that was meant, or nobody answers.
    """
    host, port = split_place(place)
    try:
        async with asyncio.timeout(ASK_S):
            reader, writer = await asyncio.open_connection(
                host, port, ssl=_context(), limit=MAX_FRAME_BYTES
            )
            try:
                leaf = writer.get_extra_info("ssl_object").getpeercert(binary_form=True) or b""
                ca_der = await read_frame(reader)
                _check(ca_der, leaf, applicant)
                # Nothing of ours is said before this line: not to who is not the site.
                writer.write(framed(msgspec.msgpack.encode(_request(applicant, leaf))))
                answer = read(JoinAnswer, await read_frame(reader))
            finally:
                # All is said: nothing is waited for but that the socket is closed.
                writer.transport.abort()
                with suppress(OSError):
                    await writer.wait_closed()
    except asyncio.IncompleteReadError as exc:
        raise JoinError("unreachable", f" at {place} (it hung up)") from exc
    except (OSError, TimeoutError) as exc:
        raise JoinError("unreachable", f" at {place} ({connect_reason(exc)})") from exc
    if answer.refused:
        raise JoinError(answer.refused)
    if not answer.certificate:
        return Waiting(ca_der)
    try:
        certificate = read_certificate(answer.certificate, ca_der, now=None)
        if answer.crl:
            read_crl(answer.crl, ca_der)
    except ProtocolError as exc:
        raise JoinError("malformed") from exc
    if certificate.id != applicant.identity.id or certificate.role != applicant.role:
        raise JoinError("malformed")
    return Admitted(place, certificate, ca_der, answer)


def _check(ca_der: bytes, leaf: bytes, applicant: Applicant) -> None:
    """Raise `JoinError` unless it is the site's coordinator that speaks."""
    if applicant.fingerprint and fingerprint(ca_der) != applicant.fingerprint:
        raise JoinError("other_authority")
    try:
        # A device that joins may not know the time yet.
        certificate = read_certificate(leaf, ca_der, now=None)
    except ProtocolError as exc:
        raise JoinError("other_authority") from exc
    if certificate.role != "coordinator":
        raise JoinError("other_authority")
    if certificate.site != applicant.site:
        raise JoinError("wrong_site")


def _request(applicant: Applicant, leaf: bytes) -> JoinRequest:
    bare = JoinRequest(
        version=JOIN_VERSION,
        public=applicant.identity.public_bytes,
        role=applicant.role,
        site=applicant.site,
        name=applicant.name[:64],
        secret=applicant.secret,
        software=SOFTWARE[:64],
        now_s=time.time(),
    )
    return structs.replace(bare, signature=applicant.identity.sign(bare.signed(leaf)))


async def read_frame(reader: asyncio.StreamReader) -> bytes:
    """Return one message's bytes; `JoinError` if it is longer than any of ours."""
    length = int.from_bytes(await reader.readexactly(LENGTH_BYTES), "big")
    if length > MAX_FRAME_BYTES:
        raise JoinError("malformed")
    return await reader.readexactly(length)


def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # takes anybody: `_check` sees who it is
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
