"""The side of joining that wants in: one question to a join service, over TLS."""

import asyncio
import ssl
from contextlib import suppress
from dataclasses import dataclass

import msgspec
from msgspec import structs

from fedagent_node.data_dir import Identity
from fedagent_node.errors import JoinError, JoinUnreachableError, connect_reason
from fedagent_protocol import SOFTWARE

from .certificates import Certificate, CertificateError, fingerprint
from .joining import (
    JOIN_VERSION,
    LENGTH_BYTES,
    MAX_FRAME_BYTES,
    JoinAnswer,
    JoinRequest,
    JoinRole,
    framed,
    read,
    split_place,
)
from .reading import read_certificate, read_crl

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
    """It is a person's turn; the authority is part of the code (`joining.code_of`)."""

    ca_der: bytes


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
        raise JoinUnreachableError(place, "it hung up") from exc
    except (OSError, TimeoutError) as exc:
        raise JoinUnreachableError(place, connect_reason(exc)) from exc
    if answer.refused:
        raise JoinError(answer.refused)
    return _admitted(answer, ca_der, applicant) if answer.certificate else Waiting(ca_der)


def _check(ca_der: bytes, leaf: bytes, applicant: Applicant) -> None:
    """Raise `JoinError` unless it is the site's coordinator that speaks."""
    if applicant.fingerprint and fingerprint(ca_der) != applicant.fingerprint:
        raise JoinError("other_authority")
    try:
        # A device that joins may not know the time yet.
        certificate = read_certificate(leaf, ca_der, now=None)
    except CertificateError as exc:
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
    )
    return structs.replace(bare, signature=applicant.identity.sign(bare.signed(leaf)))


def _admitted(answer: JoinAnswer, ca_der: bytes, applicant: Applicant) -> Admitted:
    try:
        certificate = read_certificate(answer.certificate, ca_der, now=None)
        if answer.crl:
            read_crl(answer.crl, ca_der)
    except CertificateError as exc:
        raise JoinError("malformed") from exc
    if certificate.id != applicant.identity.id or certificate.role != applicant.role:
        raise JoinError("malformed")
    return Admitted(certificate, ca_der, answer.name, answer.services, answer.crl)


async def read_frame(reader: asyncio.StreamReader) -> bytes:
    """Return one message's bytes; `JoinError` if it is longer than any of ours."""
    length = int.from_bytes(await reader.readexactly(LENGTH_BYTES), "big")
    if length > MAX_FRAME_BYTES:
        raise JoinError("malformed")
    return await reader.readexactly(length)


def _context() -> ssl.SSLContext:
    """Return a context that takes any certificate: who it is, the service shows."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
