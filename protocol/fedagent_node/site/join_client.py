"""The side of joining that wants in: one question to a join service, over TLS."""

import asyncio
import secrets
import ssl
from contextlib import suppress
from dataclasses import dataclass

from msgspec import structs

from fedagent_node.data_dir import Identity
from fedagent_node.errors import JoinError, JoinUnreachableError, connect_reason
from fedagent_node.site.certificates import (
    Certificate,
    CertificateError,
    fingerprint,
    read_certificate,
    read_crl,
)
from fedagent_node.site.joining import (
    JOIN_VERSION,
    LENGTH_BYTES,
    MAX_FRAME_BYTES,
    Granted,
    JoinRequest,
    JoinRole,
    Opening,
    Pending,
    Refused,
    code_of,
    commitment_to,
    framed,
    read_answer,
    read_opening,
    session_of,
    split_place,
)
from fedagent_protocol import SOFTWARE

ASK_S = 10.0


@dataclass(frozen=True, slots=True)
class Applicant:
    """Who asks, and what is known of the site; an empty fingerprint takes any authority."""

    identity: Identity
    role: JoinRole
    site: str
    name: str
    fingerprint: str = ""
    secret: bytes = b""
    session: bytes = b""


@dataclass(frozen=True, slots=True)
class Admitted:
    """A certificate, the authority behind it, and its list of the revoked if it came along."""

    certificate: Certificate
    ca_der: bytes
    name: str
    services: tuple[str, ...]
    crl: bytes = b""


@dataclass(frozen=True, slots=True)
class Waiting:
    """The code that both sides show; empty where it was shown before."""

    code: str
    session: bytes
    fingerprint: str


async def ask(place: str, applicant: Applicant) -> Admitted | Waiting:
    """Ask a join service once.

    Raises:
        JoinError: It refuses, or is not the one that was meant.
        JoinUnreachableError: Nobody answers there.
    """
    host, port = split_place(place)
    try:
        async with asyncio.timeout(ASK_S):
            reader, writer = await asyncio.open_connection(
                host, port, ssl=_context(), limit=MAX_FRAME_BYTES
            )
            try:
                return await _asked(reader, writer, applicant)
            finally:
                # All is said: nothing is waited for but that the socket is closed.
                writer.transport.abort()
                with suppress(OSError):
                    await writer.wait_closed()
    except asyncio.IncompleteReadError as exc:
        raise JoinUnreachableError(place, "it hung up") from exc
    except (OSError, TimeoutError) as exc:
        raise JoinUnreachableError(place, connect_reason(exc)) from exc


async def _asked(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, applicant: Applicant
) -> Admitted | Waiting:
    leaf = writer.get_extra_info("ssl_object").getpeercert(binary_form=True) or b""
    opening = read_opening(await read_frame(reader))
    _check(opening, leaf, applicant)
    # Nothing of ours is said before this line: not to who is not the site.
    nonce = secrets.token_bytes(len(opening.commitment))
    bare = JoinRequest(
        version=JOIN_VERSION,
        public=applicant.identity.public_bytes,
        role=applicant.role,
        site=applicant.site,
        name=applicant.name[:64],
        nonce=nonce,
        secret=applicant.secret,
        session=applicant.session,
        software=SOFTWARE[:64],
    )
    signature = applicant.identity.sign(bare.signed(leaf, opening))
    writer.write(framed(structs.replace(bare, signature=signature)))
    match read_answer(await read_frame(reader)):
        case Granted() as granted:
            return _admitted(granted, opening.ca, applicant)
        case Pending(nonce=revealed):
            return _waiting(revealed, nonce, opening, applicant)
        case Refused(reason=reason):
            raise JoinError(reason)


def _check(opening: Opening, leaf: bytes, applicant: Applicant) -> None:
    """Raise `JoinError` unless it is the site's coordinator that speaks."""
    if opening.version != JOIN_VERSION:
        raise JoinError("version")
    if applicant.fingerprint and fingerprint(opening.ca) != applicant.fingerprint:
        raise JoinError("other_authority")
    try:
        # A device that joins may not know the time yet.
        certificate = read_certificate(leaf, opening.ca, now=None)
    except CertificateError as exc:
        raise JoinError("other_authority") from exc
    if certificate.role != "coordinator":
        raise JoinError("other_authority")
    if opening.site != applicant.site or certificate.site != applicant.site:
        raise JoinError("wrong_site")


def _admitted(granted: Granted, ca_der: bytes, applicant: Applicant) -> Admitted:
    try:
        certificate = read_certificate(granted.certificate, ca_der, now=None)
        if granted.crl:
            read_crl(granted.crl, ca_der)
    except CertificateError as exc:
        raise JoinError("malformed") from exc
    if certificate.id != applicant.identity.id or certificate.role != applicant.role:
        raise JoinError("malformed")
    return Admitted(certificate, ca_der, granted.name, granted.services, granted.crl)


def _waiting(revealed: bytes, nonce: bytes, opening: Opening, applicant: Applicant) -> Waiting:
    mark = fingerprint(opening.ca)
    if not revealed:
        if not applicant.session:
            raise JoinError("malformed")
        return Waiting("", applicant.session, mark)
    if commitment_to(revealed) != opening.commitment:
        raise JoinError("bad_commitment")
    code = code_of(opening.ca, applicant.identity.public_bytes, nonce, revealed)
    return Waiting(code, session_of(nonce, revealed), mark)


async def read_frame(reader: asyncio.StreamReader) -> bytes:
    """Return one message's bytes; `JoinError` if it is longer than any of ours."""
    length = int.from_bytes(await reader.readexactly(LENGTH_BYTES), "big")
    if length > MAX_FRAME_BYTES:
        raise JoinError("malformed")
    return await reader.readexactly(length)


def _context() -> ssl.SSLContext:
    """Return a context that takes any certificate: who it is, the opening shows."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
