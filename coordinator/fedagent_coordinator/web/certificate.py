"""A certificate of the page's own: nobody vouches for it, so its fingerprint is shown beside it."""

import ipaddress
import os
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

KEY_FILE, CERT_FILE = "page.key", "page.crt"
_DAYS = 3650


def own_certificate(folder: Path, hosts: Sequence[str]) -> tuple[tuple[Path, Path], str]:
    """Return certificate and key, made at the first use, and the certificate's SHA-256.

    Raises:
        OSError: They cannot be kept.
    """
    cert, key = folder / CERT_FILE, folder / KEY_FILE
    if not (cert.exists() and key.exists()):
        _make(cert, key, hosts)
    print_ = x509.load_pem_x509_certificate(cert.read_bytes()).fingerprint(SHA256()).hex(":")
    return (cert, key), print_


def _make(cert: Path, key: Path, hosts: Sequence[str]) -> None:
    secret = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "fedagent page")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(secret.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=_DAYS))
        .add_extension(
            x509.SubjectAlternativeName([*map(_name, dict.fromkeys(hosts))]), critical=False
        )
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(secret, SHA256())
    )
    fd = os.open(key, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(
            secret.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
    cert.write_bytes(made.public_bytes(serialization.Encoding.PEM))


def _name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
