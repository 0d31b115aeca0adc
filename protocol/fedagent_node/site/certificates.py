"""Certificates of a site: who somebody is and which role they play, read with caution.

X.509 over the Ed25519 key that each role has already. The subject's common name is what begins
the role's topics, its organisation the site; there are no addresses, so a network may change.
`authority` issues them.
"""

import hashlib
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, get_args

from fedagent_protocol.errors import FedagentError
from fedagent_protocol.signed import ID_LENGTH, identity_of

if TYPE_CHECKING:
    from cryptography.x509 import Certificate as Parsed
    from cryptography.x509 import CertificateRevocationList
    from cryptography.x509.oid import NameOID, ObjectIdentifier

Role = Literal["agent", "edge", "coordinator", "broker"]
Reason = Literal["malformed", "wrong_ca", "wrong_role", "wrong_site", "expired", "not_yet"]

ROLES: tuple[Role, ...] = get_args(Role)
MAX_DER_BYTES = 2048
_WHOLE_BYTES = b"\x03\x41\x00"
"""Begins an Ed25519 signature at a certificate's end: its last octet says that no bit is left over,
and is the one that no signature covers."""
_SIGNED_BYTES = len(_WHOLE_BYTES) + 64
RENEW_AT = 2 / 3
"""Share of its life after which a certificate is renewed."""
REVOKED_IDS = "2.25.205712263218765427216843221840315087153"
"""Of the extension of a revocation list with the ids of the revoked, 16 bytes each."""
_ID_BYTES = ID_LENGTH // 2
_LETTERS: dict[str, Role] = {role[0]: role for role in ROLES}


class CertificateError(FedagentError):
    """Raised when a certificate is not one of the site, or not valid now."""

    template = "a certificate was refused: {reason}"

    reason: Reason


@dataclass(frozen=True, slots=True)
class Certificate:
    """Whose key it is, in which role and site, and how long; times are seconds since 1970."""

    id: str
    role: Role
    site: str
    public: bytes
    serial: int
    not_before: float
    not_after: float
    der: bytes = field(repr=False)

    @property
    def name(self) -> str:
        """Its common name: the user name at a broker."""
        return common_name(self.role, self.id)

    @property
    def renew_at(self) -> float:
        """When to ask for the next one."""
        return self.not_before + RENEW_AT * (self.not_after - self.not_before)


@dataclass(frozen=True, slots=True)
class RevocationList:
    """Serials that the authority took back, and ids of their owners; the highest `number` holds.

    An id is out with whatever certificate it has: after a restore the authority may have forgotten
    some.
    """

    number: int
    serials: frozenset[int]
    ids: frozenset[str] = frozenset()

    def has(self, certificate: Certificate) -> bool:
        """Return whether a certificate, or its owner, was revoked."""
        return certificate.serial in self.serials or certificate.id in self.ids


def common_name(role: Role, ident: str) -> str:
    """Return the common name of somebody's certificate."""
    return f"{role[0]}/{ident}"


def read_certificate(der: bytes, ca_der: bytes, *, now: float | None) -> Certificate:
    """Return what a certificate says, once it is seen to be the authority's.

    `now` is in seconds since 1970; None does not judge the times.

    Raises:
        CertificateError: It is not of our form, not of this authority, or not valid now.
    """
    found = _parsed(der)
    authority = _parsed(ca_der)
    if not _issued_by(authority, found):
        raise CertificateError(reason="wrong_ca")
    certificate = _checked(found, der)
    if certificate.site != _one(authority, _oid().ORGANIZATION_NAME):
        raise CertificateError(reason="wrong_site")
    if now is not None and now < certificate.not_before:
        raise CertificateError(reason="not_yet")
    if now is not None and now >= certificate.not_after:
        raise CertificateError(reason="expired")
    return certificate


def read_crl(pem: bytes, ca_der: bytes) -> RevocationList:
    """Return what a revocation list says, once it is seen to be the authority's.

    Raises:
        CertificateError: It is damaged, or of somebody else.
    """
    from cryptography import x509  # noqa: PLC0415 - costs several megabytes
    from cryptography.exceptions import InvalidSignature  # noqa: PLC0415

    authority = _parsed(ca_der)
    try:
        found: CertificateRevocationList = x509.load_pem_x509_crl(pem)
        number = found.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number
        valid = found.issuer == authority.subject and found.is_signature_valid(
            authority.public_key()  # type: ignore[arg-type]  # a wrong kind of key is a TypeError
        )
        serials = frozenset(one.serial_number for one in found)
        ids = _ids_in(found)
    except (ValueError, TypeError, x509.ExtensionNotFound, InvalidSignature) as exc:
        raise CertificateError(reason="malformed") from exc
    if not valid:
        raise CertificateError(reason="wrong_ca")
    return RevocationList(number, serials, ids)


def packed_ids(ids: Iterable[str]) -> bytes:
    """Return ids as a revocation list holds them."""
    return b"".join(map(bytes.fromhex, sorted(ids)))


def _ids_in(found: "CertificateRevocationList") -> frozenset[str]:
    from cryptography import x509  # noqa: PLC0415

    try:
        extension = found.extensions.get_extension_for_oid(x509.ObjectIdentifier(REVOKED_IDS))
    except x509.ExtensionNotFound:
        return frozenset()
    data = extension.value.public_bytes()
    if len(data) % _ID_BYTES:
        raise CertificateError(reason="malformed")
    return frozenset(data[i : i + _ID_BYTES].hex() for i in range(0, len(data), _ID_BYTES))


def fingerprint(ca_der: bytes) -> str:
    """Return the SHA-256 of an authority's certificate, 64 hex digits."""
    return hashlib.sha256(ca_der).hexdigest()


def site_of(ca_der: bytes) -> str:
    """Return the site of an authority's own certificate; raises `CertificateError`."""
    return _one(_parsed(ca_der), _oid().ORGANIZATION_NAME)


def judged_time(own: Certificate, clock: Callable[[], float] = time.time) -> float | None:
    """Return the time by which others' certificates are judged; None for a clock that is wrong.

    A clock that is before our own certificate was made has not been set yet.
    """
    now = clock()
    return now if now >= own.not_before else None


def _checked(found: "Parsed", der: bytes) -> Certificate:
    from cryptography import x509  # noqa: PLC0415
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (  # noqa: PLC0415
        Ed25519PublicKey,
    )

    name = _one(found, _oid().COMMON_NAME)
    letter, _, ident = name.partition("/")
    try:
        key = found.public_key()
        basic = found.extensions.get_extension_for_class(x509.BasicConstraints).value
    except (ValueError, TypeError, x509.ExtensionNotFound) as exc:
        raise CertificateError(reason="malformed") from exc
    if letter not in _LETTERS or not isinstance(key, Ed25519PublicKey) or basic.ca:
        raise CertificateError(reason="malformed")
    public = key.public_bytes_raw()
    if ident != identity_of(public):
        raise CertificateError(reason="malformed")
    return Certificate(
        id=ident,
        role=_LETTERS[letter],
        site=_one(found, _oid().ORGANIZATION_NAME),
        public=public,
        serial=found.serial_number,
        not_before=found.not_valid_before_utc.timestamp(),
        not_after=found.not_valid_after_utc.timestamp(),
        der=der,
    )


def _parsed(der: bytes) -> "Parsed":
    from cryptography import x509  # noqa: PLC0415

    if len(der) > MAX_DER_BYTES or der[-_SIGNED_BYTES:][:3] != _WHOLE_BYTES:
        raise CertificateError(reason="malformed")
    try:
        with warnings.catch_warnings():
            # What the library only warns of is not of our form either.
            warnings.simplefilter("error")
            return x509.load_der_x509_certificate(der)
    except (ValueError, UserWarning, x509.InvalidVersion) as exc:
        raise CertificateError(reason="malformed") from exc


def _issued_by(authority: "Parsed", found: "Parsed") -> bool:
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm  # noqa: PLC0415

    try:
        found.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
        return False
    return True


def _one(found: "Parsed", oid: "ObjectIdentifier") -> str:
    """Return the one attribute of this kind in the subject."""
    try:
        (attribute,) = found.subject.get_attributes_for_oid(oid)
    except ValueError as exc:
        raise CertificateError(reason="malformed") from exc
    return str(attribute.value)


def _oid() -> "type[NameOID]":
    from cryptography.x509.oid import NameOID  # noqa: PLC0415

    return NameOID
