"""Reading certificates and lists of the revoked, with caution: they come from the network."""

import warnings

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.x509.oid import NameOID

from fedagent_protocol.errors import ProtocolError
from fedagent_protocol.signed import ID_LENGTH, identity_of

from . import MAX_DER_BYTES
from .certificates import LETTERS, Certificate, RevocationList

_WHOLE_BYTES = b"\x03\x41\x00"
"""Begins an Ed25519 signature at a certificate's end: its last octet says that no bit is left over,
and is the one that no signature covers."""
_SIGNED_BYTES = len(_WHOLE_BYTES) + 64
REVOKED_IDS = "2.25.205712263218765427216843221840315087153"
"""Of the extension of a revocation list with the ids of the revoked, 16 bytes each."""
_ID_BYTES = ID_LENGTH // 2
_EXTENSIONS = (x509.ExtensionNotFound, x509.DuplicateExtension, x509.UnsupportedGeneralNameType)


def read_certificate(der: bytes, ca_der: bytes, *, now: float | None) -> Certificate:
    """Return what a certificate says, once it is seen to be the authority's.

    `now` is in seconds since 1970; None does not judge the times.

    Raises:
        ProtocolError: It is not of our form, not of this authority, or not valid now.
    """
    found = _parsed(der)
    authority = _parsed(ca_der)
    try:
        found.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm) as exc:
        raise _refused("wrong_ca") from exc
    certificate = _checked(found, der)
    if certificate.site != _one(authority, NameOID.ORGANIZATION_NAME):
        raise _refused("wrong_site")
    if now is not None and now < certificate.not_before:
        raise _refused("not_yet")
    if now is not None and now >= certificate.not_after:
        raise _refused("expired")
    return certificate


def read_crl(pem: bytes, ca_der: bytes) -> RevocationList:
    """Return what a revocation list says, once it is seen to be the authority's.

    Raises:
        ProtocolError: It is damaged, or of somebody else.
    """
    authority = _parsed(ca_der)
    try:
        found = x509.load_pem_x509_crl(pem)
        valid = found.issuer == authority.subject and found.is_signature_valid(
            authority.public_key()  # type: ignore[arg-type]  # a wrong kind of key is a TypeError
        )
    except (ValueError, TypeError, x509.InvalidVersion, UnsupportedAlgorithm) as exc:
        raise _refused("malformed") from exc
    if not valid:
        raise _refused("wrong_ca")
    try:
        number = found.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number
        owners = [one for one in found.extensions if one.oid.dotted_string == REVOKED_IDS]
    except (ValueError, x509.ExtensionNotFound) as exc:
        raise _refused("malformed") from exc
    packed = b"".join(one.value.public_bytes() for one in owners)
    if len(packed) % _ID_BYTES:
        raise _refused("malformed")
    ids = [packed[i : i + _ID_BYTES].hex() for i in range(0, len(packed), _ID_BYTES)]
    return RevocationList(number, frozenset(one.serial_number for one in found), frozenset(ids))


def site_of(ca_der: bytes) -> str:
    """Return the site of an authority's own certificate; raises `ProtocolError`."""
    return _one(_parsed(ca_der), NameOID.ORGANIZATION_NAME)


def _checked(found: x509.Certificate, der: bytes) -> Certificate:
    name = _one(found, NameOID.COMMON_NAME)
    letter, _, ident = name.partition("/")
    try:
        key = found.public_key()
        basic = found.extensions.get_extension_for_class(x509.BasicConstraints).value
    except (ValueError, TypeError, *_EXTENSIONS) as exc:
        raise _refused("malformed") from exc
    if letter not in LETTERS or not isinstance(key, Ed25519PublicKey) or basic.ca:
        raise _refused("malformed")
    public = key.public_bytes_raw()
    if ident != identity_of(public):
        raise _refused("malformed")
    return Certificate(
        id=ident,
        role=LETTERS[letter],
        site=_one(found, NameOID.ORGANIZATION_NAME),
        public=public,
        serial=found.serial_number,
        not_before=found.not_valid_before_utc.timestamp(),
        not_after=found.not_valid_after_utc.timestamp(),
        der=der,
    )


def _parsed(der: bytes) -> x509.Certificate:
    if len(der) > MAX_DER_BYTES or der[-_SIGNED_BYTES:][:3] != _WHOLE_BYTES:
        raise _refused("malformed")
    try:
        with warnings.catch_warnings():
            # What the library only warns of is not of our form either.
            warnings.simplefilter("error")
            return x509.load_der_x509_certificate(der)
    except (ValueError, UserWarning, x509.InvalidVersion) as exc:
        raise _refused("malformed") from exc


def _one(found: x509.Certificate, oid: x509.ObjectIdentifier) -> str:
    """Return the one attribute of this kind in the subject."""
    try:
        (attribute,) = found.subject.get_attributes_for_oid(oid)
    except ValueError as exc:
        raise _refused("malformed") from exc
    return str(attribute.value)


def _refused(reason: str) -> ProtocolError:
    return ProtocolError(f"a certificate was refused: {reason}", reason)
