"""What is said to join a site, and the six-digit code that tells a go-between. Pure.

One connection, one request. The service opens with its authority and a commitment to a nonce;
the device sends its key, a nonce and a signature over all that both said; the answer is a
certificate, a refusal, or "pending" with the service's nonce. Both sides then show a code made of
the authority, the key and the nonces. Whoever stands between them with an authority or a key of
his own has to commit before he knows the other's nonce: he meets the right code once in a million.
"""

import base64
import hashlib
from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct, structs

from fedagent_node.errors import JoinError
from fedagent_node.site.certificates import MAX_DER_BYTES

T = TypeVar("T")
JOIN_PORT = 8871
JOIN_VERSION = 1
MAX_FRAME_BYTES = 8192
LENGTH_BYTES = 2
NONCE_BYTES = 32
SECRET_BYTES = 16
SCHEME = "fedagent:"
MAX_INVITATION_CHARS = 1000
_REQUEST = b"fedagent/join/1\0"
_COMMITMENT = b"fedagent/join/commitment/1\0"
_CODE = b"fedagent/join/code/1\0"
_SESSION = b"fedagent/join/session/1\0"
CODES = 1_000_000
MAX_CRL_BYTES = 4096
"""Of a list of the revoked in an answer; a longer one comes with the coordinator's welcome."""

JoinRole = Literal["agent", "edge"]
Refusal = Literal[
    "malformed",
    "version",
    "bad_signature",
    "wrong_site",
    "wrong_role",
    "unknown_invitation",
    "used_invitation",
    "expired_invitation",
    "revoked",
    "too_many_tries",
    "too_many_pending",
    "closed",
]
"""Why nobody is let in; also the names of the service's counters, as ``join_<word>``."""
LATER = frozenset({"too_many_tries", "too_many_pending", "closed"})
"""Refusals that time mends; after the others a person has to act."""

Nonce = Annotated[bytes, Meta(min_length=NONCE_BYTES, max_length=NONCE_BYTES)]
Name = Annotated[str, Meta(max_length=64)]
Place = Annotated[str, Meta(max_length=120)]


class Opening(Struct, frozen=True, kw_only=True, tag="opening"):
    """The service's first words; `ca` is its authority's certificate, DER."""

    version: int
    site: Name
    ca: Annotated[bytes, Meta(max_length=MAX_DER_BYTES)]
    commitment: Nonce


class JoinRequest(Struct, frozen=True, kw_only=True, tag="join"):
    """Who wants to join as what; `secret` of an invitation, `session` of a code shown already."""

    version: int
    public: Annotated[bytes, Meta(min_length=32, max_length=32)]
    role: JoinRole
    site: Name
    name: Name = ""
    nonce: Nonce
    secret: Annotated[bytes, Meta(max_length=SECRET_BYTES)] = b""
    session: Annotated[bytes, Meta(max_length=NONCE_BYTES)] = b""
    software: Name = ""
    signature: Annotated[bytes, Meta(max_length=64)] = b""

    def signed(self, leaf: bytes, opening: Opening) -> bytes:
        """Return what is signed: this, for this service and this connection alone."""
        bare = msgspec.msgpack.encode(structs.replace(self, signature=b""))
        return b"".join([_REQUEST, hashlib.sha256(leaf).digest(), opening.commitment, bare])


class Granted(Struct, frozen=True, kw_only=True, tag="granted"):
    """A certificate; `services` are more addresses of join services, `name` the enrolled one.

    `crl` is the list of the revoked, PEM; empty where it is long.
    """

    certificate: Annotated[bytes, Meta(max_length=MAX_DER_BYTES)]
    name: Name = ""
    services: Annotated[tuple[Place, ...], Meta(max_length=16)] = ()
    crl: Annotated[bytes, Meta(max_length=MAX_CRL_BYTES)] = b""


class Pending(Struct, frozen=True, kw_only=True, tag="pending"):
    """Wait for a person; `nonce` is the one committed to, empty for a session that goes on."""

    nonce: Annotated[bytes, Meta(max_length=NONCE_BYTES)] = b""


class Refused(Struct, frozen=True, kw_only=True, tag="refused"):
    """No; `reason` is a `Refusal`, or of a later release."""

    reason: Name


Answer = Granted | Pending | Refused
_openings = msgspec.msgpack.Decoder(Opening)
_requests = msgspec.msgpack.Decoder(JoinRequest)
_answers = msgspec.msgpack.Decoder(Answer)


def framed(message: Opening | JoinRequest | Answer) -> bytes:
    """Return a message with its length before it."""
    body = msgspec.msgpack.encode(message)
    return len(body).to_bytes(LENGTH_BYTES, "big") + body


def read_opening(body: bytes) -> Opening:
    """Return the service's first words; raises `JoinError`."""
    return _read(_openings, body)


def read_request(body: bytes) -> JoinRequest:
    """Return a device's request; raises `JoinError`."""
    return _read(_requests, body)


def read_answer(body: bytes) -> Answer:
    """Return the service's answer; raises `JoinError`."""
    answer: Answer = _read(_answers, body)
    return answer


def _read(decoder: msgspec.msgpack.Decoder[T], body: bytes) -> T:
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise JoinError("malformed") from exc


def commitment_to(nonce: bytes) -> bytes:
    """Return what binds the service to its nonce without telling it."""
    return hashlib.sha256(_COMMITMENT + nonce).digest()


def code_of(ca_der: bytes, public: bytes, device_nonce: bytes, service_nonce: bytes) -> str:
    """Return the six digits that both sides show."""
    digest = hashlib.sha256(_CODE)
    for part in (hashlib.sha256(ca_der).digest(), public, device_nonce, service_nonce):
        digest.update(part)
    return f"{int.from_bytes(digest.digest(), 'big') % CODES:06d}"


def session_of(device_nonce: bytes, service_nonce: bytes) -> bytes:
    """Return the name under which a shown code is asked about again."""
    return hashlib.sha256(_SESSION + device_nonce + service_nonce).digest()[:SECRET_BYTES]


class Invitation(Struct, frozen=True, kw_only=True, array_like=True):
    """What a person carries to a device: a secret for one join, and whom to trust with it."""

    version: int
    secret: Annotated[bytes, Meta(min_length=SECRET_BYTES, max_length=SECRET_BYTES)]
    fingerprint: Nonce
    site: Name
    role: JoinRole
    name: Name
    places: Annotated[tuple[Place, ...], Meta(max_length=16)]

    def text(self) -> str:
        """Return it as one string without spaces."""
        return SCHEME + base64.urlsafe_b64encode(msgspec.msgpack.encode(self)).decode().rstrip("=")

    @classmethod
    def parse(cls, text: str) -> "Invitation":
        """Return the invitation in a string.

        Raises:
            JoinError: It is cut short, mistyped, or of a later release.
        """
        text = text.strip()
        if not text.startswith(SCHEME) or len(text) > MAX_INVITATION_CHARS:
            raise JoinError("not_an_invitation")
        coded = text.removeprefix(SCHEME)
        try:
            packed = base64.b64decode(coded + "=" * (-len(coded) % 4), b"-_", validate=True)
            found = msgspec.msgpack.decode(packed, type=cls)
        except (ValueError, msgspec.DecodeError) as exc:
            raise JoinError("not_an_invitation") from exc
        if found.version != JOIN_VERSION:
            raise JoinError("version")
        return found


def secret_hash(secret: bytes) -> bytes:
    """Return what a coordinator keeps of a secret."""
    return hashlib.sha256(secret).digest()


def spaced(code: str) -> str:
    """Return a code as people read it: ``123 456``."""
    return f"{code[:3]} {code[3:]}"


def split_place(place: str) -> tuple[str, int]:
    """Return host and port of ``HOST``, ``HOST:PORT`` or ``[IPV6]:PORT``; raises `JoinError`."""
    host, colon, port = place.rpartition(":")
    if not colon or "]" in port:
        host, port = place, str(JOIN_PORT)
    if not host or not port.isdecimal() or not 0 < int(port) < 65536 or len(place) > 120:
        raise JoinError("not_an_invitation")
    return host.strip("[]"), int(port)
