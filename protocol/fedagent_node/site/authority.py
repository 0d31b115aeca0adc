"""The authority of a site: its own key, and the certificates and revocations it signs.

Only the coordinator and its command line import this: a device needs none of it.
"""

import datetime as dt
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedagent_node.data_dir import write_private
from fedagent_node.errors import CredentialsError
from fedagent_node.site.certificates import Certificate, Role, common_name
from fedagent_node.site.reading import REVOKED_IDS, read_certificate, site_of
from fedagent_protocol.errors import ProtocolError
from fedagent_protocol.signed import identity_of

KEY_FILE = "authority.key"
CA_FILE = "ca.pem"
DAYS = 30.0
_ALWAYS = 0.0, 253_402_300_799.0
"""1970 to 9999: no clock ends an authority, which cannot be replaced (RFC 5280, 4.1.2.5)."""
_DAY_S = 86_400.0
_EARLY_S = 3600.0
"""How much earlier a certificate begins: others' clocks are not ours."""
_SERVERS = ("edge", "coordinator", "broker")
_CLIENTS = ("agent", "edge", "coordinator")
_RESTORE = "restore the folder from a backup; without its key every device has to join again"


@dataclass(frozen=True, slots=True)
class Authority:
    """A site's authority; `der` is its own certificate."""

    site: str
    der: bytes
    _key: Ed25519PrivateKey = field(repr=False, compare=False)

    @classmethod
    def create(cls, folder: Path, site: str) -> Self:
        """Make an authority and keep it in a folder; its key is readable by the owner alone."""
        key = Ed25519PrivateKey.generate()
        own = identity_of(key.public_key().public_bytes_raw())
        name = _name(site, f"fedagent {own[:12]}")
        made = _builder(key.public_key(), name, name, *_ALWAYS, ca=True).sign(key, None)
        pem = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        # The certificate comes last: a folder that has one is whole.
        write_private(folder / KEY_FILE, pem)
        write_private(folder / CA_FILE, made.public_bytes(serialization.Encoding.PEM))
        return cls(site, made.public_bytes(serialization.Encoding.DER), key)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Return the authority kept in a folder.

        Raises:
            CredentialsError: It is not there, or damaged.
        """
        try:
            found = x509.load_pem_x509_certificate((folder / CA_FILE).read_bytes())
            key = serialization.load_pem_private_key((folder / KEY_FILE).read_bytes(), None)
            der = found.public_bytes(serialization.Encoding.DER)
            site = site_of(der)
        except OSError as exc:
            raise CredentialsError(folder, exc.strerror or str(exc), _RESTORE) from exc
        except (ValueError, TypeError, ProtocolError) as exc:
            raise CredentialsError(folder, "no files of an authority", _RESTORE) from exc
        if not isinstance(key, Ed25519PrivateKey) or found.public_key() != key.public_key():
            raise CredentialsError(folder, "the key does not belong to the certificate", _RESTORE)
        return cls(site, der, key)

    def issue(
        self,
        public: bytes,
        role: Role,
        days: float = DAYS,
        *,
        now: float | None = None,
        before: Certificate | None = None,
    ) -> Certificate:
        """Return a certificate for a raw Ed25519 public key, valid for `days` from `now`.

        It ends no earlier than the one that it replaces, `before`: a clock that is late, or was
        ahead then, shuts nobody out.
        """
        begin = time.time() if now is None else now
        end = max(begin + days * _DAY_S, before.not_after if before is not None else 0.0)
        subject = _name(self.site, common_name(role, identity_of(public)))
        purposes = [
            *([ExtendedKeyUsageOID.SERVER_AUTH] if role in _SERVERS else []),
            *([ExtendedKeyUsageOID.CLIENT_AUTH] if role in _CLIENTS else []),
        ]
        key = Ed25519PublicKey.from_public_bytes(public)
        early = min(_EARLY_S, (end - begin) / 10)
        issuer = x509.load_der_x509_certificate(self.der).subject
        made = (
            _builder(key, subject, issuer, begin - early, end, ca=False)
            .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
            .add_extension(self._key_identifier(), critical=False)
            .sign(self._key, None)
        )
        der = made.public_bytes(serialization.Encoding.DER)
        return read_certificate(der, self.der, now=None)

    def crl(
        self,
        serials: Iterable[int],
        number: int,
        *,
        ids: Iterable[str] = (),
        now: float | None = None,
    ) -> bytes:
        """Return a list of the revoked serials and of the `ids` of who is out with any, as PEM.

        A newer list has a higher number.
        """
        begin = time.time() if now is None else now
        packed = b"".join(map(bytes.fromhex, sorted(ids)))
        authority = x509.load_der_x509_certificate(self.der)
        builder = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(authority.subject)
            # It holds until the next one comes, by whatever clock: an edge that is cut off goes on.
            .last_update(authority.not_valid_before_utc)
            .next_update(authority.not_valid_after_utc)
            .add_extension(x509.CRLNumber(number), critical=False)
            # Not critical: OpenSSL goes by the serials.
            .add_extension(
                x509.UnrecognizedExtension(x509.ObjectIdentifier(REVOKED_IDS), packed),
                critical=False,
            )
            .add_extension(self._key_identifier(), critical=False)
        )
        for serial in sorted(set(serials)):
            revoked = x509.RevokedCertificateBuilder().serial_number(serial)
            builder = builder.add_revoked_certificate(
                revoked.revocation_date(_moment(begin - _EARLY_S)).build()
            )
        return builder.sign(self._key, None).public_bytes(serialization.Encoding.PEM)

    def _key_identifier(self) -> x509.AuthorityKeyIdentifier:
        return x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())


def _name(site: str, common: str) -> x509.Name:
    parts = ((NameOID.ORGANIZATION_NAME, site), (NameOID.COMMON_NAME, common))
    return x509.Name([x509.NameAttribute(oid, text) for oid, text in parts])


def _builder(
    key: Ed25519PublicKey,
    subject: x509.Name,
    issuer: x509.Name,
    begin: float,
    end: float,
    *,
    ca: bool,
) -> x509.CertificateBuilder:
    usage = x509.KeyUsage(
        digital_signature=not ca,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=ca,
        crl_sign=ca,
        encipher_only=False,
        decipher_only=False,
    )
    basic = x509.BasicConstraints(ca=ca, path_length=0 if ca else None)
    return (
        x509.CertificateBuilder()
        .public_key(key)
        .subject_name(subject)
        .issuer_name(issuer)
        .serial_number(x509.random_serial_number())
        .not_valid_before(_moment(begin))
        .not_valid_after(_moment(end))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(basic, critical=True)
        .add_extension(usage, critical=True)
    )


def _moment(seconds: float) -> dt.datetime:
    # X.509 knows whole seconds, and no year before 1950.
    return dt.datetime.fromtimestamp(max(int(seconds), 0), dt.UTC)
