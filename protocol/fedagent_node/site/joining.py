"""What is said to join a site, and the code that shows a go-between. Pure.

One TLS connection, one request. The service sends its authority's certificate; the device checks
that the TLS certificate is that of a coordinator of this authority, which an invitation names, and
sends its key with a signature. The answer is a certificate, a refusal, or to wait: then both sides
show a code made of both keys, the device's and the authority's. Whoever stands between them with
a key and an authority of his own needs two that have the same code by chance: about 2^31 tries
of a function that takes 16 MB and 50 ms each.
"""

import base64
import functools
import hashlib
from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct, structs

from fedagent_node.errors import JoinError
from fedagent_node.site import MAX_DER_BYTES

T = TypeVar("T")
JOIN_PORT = 8871
JOIN_VERSION = 2
MAX_FRAME_BYTES = 8192
LENGTH_BYTES = 2
SECRET_BYTES = 16
SCHEME = "fedagent:"
MAX_INVITATION_CHARS = 1000
MAX_PLACES = 16
MAX_CRL_BYTES = 4096
"""Of a list of the revoked in an answer; a longer one comes with the coordinator's welcome."""
_REQUEST = b"fedagent/join/2\0"
_CODE = b"fedagent/join/code/2\0"
_GROUP = 4
_GROUPS = 3

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
    "too_many_pending",
    "closed",
]
"""Why somebody is not let in; also the names of the service's counters, as ``join_<word>``."""
LATER = frozenset({"too_many_pending", "closed", "unreachable"})
"""What time ends; after the others a person has to act."""

Name = Annotated[str, Meta(max_length=64)]
Place = Annotated[str, Meta(max_length=120)]
Places = Annotated[tuple[Place, ...], Meta(max_length=MAX_PLACES)]
Port = Annotated[int, Meta(ge=0, lt=65536)]
Digest = Annotated[bytes, Meta(min_length=32, max_length=32)]


class JoinRequest(Struct, frozen=True, kw_only=True):
    """Who wants to join as what, by the `secret` of an invitation or by a code.

    `now_s` is what its clock shows, in seconds since 1970.
    """

    version: int
    public: Annotated[bytes, Meta(min_length=32, max_length=32)]
    role: JoinRole
    site: Name
    name: Name = ""
    secret: Annotated[bytes, Meta(max_length=SECRET_BYTES)] = b""
    software: Name = ""
    now_s: float = 0.0
    signature: Annotated[bytes, Meta(max_length=64)] = b""

    def signed(self, leaf: bytes) -> bytes:
        """Return what is signed: this, for the service with this TLS certificate alone."""
        bare = msgspec.msgpack.encode(structs.replace(self, signature=b""))
        return _REQUEST + hashlib.sha256(leaf).digest() + bare


class JoinAnswer(Struct, frozen=True, kw_only=True):
    """A certificate, or why there is none (`Refusal`); neither means to wait for a person.

    `name` is the enrolled one, `services` are addresses of join services, `broker_port` is that of
    the coordinator's own broker on the same hosts; 0: it has none. `crl` is the list of the
    revoked, PEM; empty where it is long. `now_s` is what the coordinator's clock shows.
    """

    refused: Name = ""
    certificate: Annotated[bytes, Meta(max_length=MAX_DER_BYTES)] = b""
    name: Name = ""
    services: Places = ()
    broker_port: Port = 0
    crl: Annotated[bytes, Meta(max_length=MAX_CRL_BYTES)] = b""
    now_s: float = 0.0


def framed(body: bytes) -> bytes:
    """Return bytes with their length before them."""
    return len(body).to_bytes(LENGTH_BYTES, "big") + body


def read(wanted: type[T], body: bytes) -> T:
    """Return a request or an answer; raises `JoinError`."""
    try:
        return msgspec.msgpack.decode(body, type=wanted)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise JoinError("malformed") from exc


@functools.lru_cache(maxsize=MAX_PLACES)
def code_of(ca_der: bytes, public: bytes) -> str:
    """Return the code that both sides show for an authority and a device's key."""
    both = hashlib.sha256(ca_der).digest() + public
    digest = hashlib.scrypt(both, salt=_CODE, n=2**14, r=8, p=1, dklen=8)
    return read_code(base64.b32encode(digest).decode())


def read_code(text: str) -> str:
    """Return a code that somebody typed in the one way in which codes are kept and shown."""
    letters = "".join(filter(str.isalnum, text.upper()))[: _GROUP * _GROUPS]
    return "-".join(letters[i : i + _GROUP] for i in range(0, len(letters), _GROUP))


class Invitation(Struct, frozen=True, kw_only=True, array_like=True):
    """What a person carries to a device: a secret for one join, and whom to trust with it."""

    version: int
    secret: Annotated[bytes, Meta(min_length=SECRET_BYTES, max_length=SECRET_BYTES)]
    fingerprint: Digest
    site: Name
    role: JoinRole
    name: Name
    places: Places

    def text(self) -> str:
        """Return it as one string without spaces."""
        return SCHEME + base64.urlsafe_b64encode(msgspec.msgpack.encode(self)).decode().rstrip("=")

    @classmethod
    def parse(cls, text: str) -> "Invitation":
        """Return the invitation in a string.

        Raises:
            JoinError: It is cut short, mistyped, or of another version.
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


def split_place(place: str) -> tuple[str, int]:
    """Return host and port of ``HOST``, ``HOST:PORT`` or ``[IPV6]:PORT``; raises `JoinError`."""
    host, colon, port = place.rpartition(":")
    if not colon or "]" in port:
        host, port = place, str(JOIN_PORT)
    if not host or not port.isdecimal() or not 0 < int(port) < 65536 or len(place) > 120:
        raise JoinError("not_an_invitation")
    return host.strip("[]"), int(port)
