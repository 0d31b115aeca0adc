"""What a role holds of its site: its certificate and key, the authority, and who was revoked."""

import functools
import logging
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec
from cryptography.hazmat.primitives import serialization

from fedagent_node.data_dir import Identity, write_private
from fedagent_node.errors import CredentialsError
from fedagent_node.site import CERT_FILE, FOLDER
from fedagent_node.site.certificates import (
    CLOCK_S,
    Certificate,
    RevocationList,
)
from fedagent_node.site.joining import Name, Places, Port
from fedagent_node.site.reading import read_certificate, read_crl
from fedagent_protocol.ed25519 import private_key
from fedagent_protocol.errors import ProtocolError
from fedagent_protocol.messages import MemberKeys

CA_FILE, KEY_FILE, CRL_FILE = "ca.pem", "key.pem", "crl.pem"
_log = logging.getLogger(__name__)
JOINED_FILE = "joined.json"


class Joined(msgspec.Struct, frozen=True, kw_only=True):
    """Where a role joined; `services` are addresses of join services, `fingerprint` the CA's.

    The coordinator's broker is at `broker_port` of their hosts. `ahead_s` is by how much our clock
    was ahead of the coordinator's at the last answer.
    """

    site: Name
    fingerprint: Name
    services: Places = ()
    broker_port: Port = 0
    name: Name = ""
    ahead_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Credentials:
    """A role's files (PEM, 0600), and what its certificate says."""

    ca: Path
    cert: Path
    key: Path
    crl: Path
    certificate: Certificate
    ca_der: bytes
    ahead_s: float

    def revocations(self) -> RevocationList:
        """Return who was revoked; raises `CredentialsError` of a damaged list."""
        try:
            return read_crl(self.crl.read_bytes(), self.ca_der)
        except FileNotFoundError:
            return RevocationList(0, frozenset())
        except (OSError, ProtocolError) as exc:
            raise CredentialsError(self.crl, str(exc)) from exc

    def judged_time(self, now: float | None = None) -> float | None:
        """Return the time by which others' certificates are judged; None for a clock that is wrong.

        Such a clock differs from the coordinator's, or is before our own certificate: never set.
        """
        now = time.time() if now is None else now
        known = abs(self.ahead_s) <= CLOCK_S and self.certificate.not_before <= now
        return now if known else None


def load_credentials(data_dir: Path) -> Credentials | None:
    """Return what a role holds of its site; None for one that never joined.

    An expired certificate is returned as well: whoever uses it decides.

    Raises:
        CredentialsError: The files are damaged.
    """
    folder = data_dir / FOLDER
    cert = folder / CERT_FILE
    try:
        if not cert.exists():
            return None
        (folder / KEY_FILE).stat()
        der = ssl.PEM_cert_to_DER_cert(cert.read_text("ascii"))
        ca_der = ssl.PEM_cert_to_DER_cert((folder / CA_FILE).read_text("ascii"))
        certificate = read_certificate(der, ca_der, now=None)
    except OSError as exc:
        path = Path(exc.filename or folder)
        raise CredentialsError(path, exc.strerror or str(exc)) from exc
    except (ValueError, ProtocolError) as exc:
        raise CredentialsError(cert, str(exc)) from exc
    joined = read_joined(data_dir)
    return Credentials(
        ca=folder / CA_FILE,
        cert=cert,
        key=folder / KEY_FILE,
        crl=folder / CRL_FILE,
        certificate=certificate,
        ca_der=ca_der,
        ahead_s=0.0 if joined is None else joined.ahead_s,
    )


def store_credentials(
    data_dir: Path, identity: Identity, certificate: Certificate, ca_der: bytes, joined: Joined
) -> Credentials:
    """Keep a certificate for the identity's key, and return what the role holds now.

    Of a certificate that is renewed, the file is replaced whole.
    """
    folder = data_dir / FOLDER
    write_private(folder / CA_FILE, ssl.DER_cert_to_PEM_cert(ca_der).encode())
    pem = private_key(identity.private_bytes).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    write_private(folder / KEY_FILE, pem)
    write_private(folder / JOINED_FILE, msgspec.json.format(msgspec.json.encode(joined), indent=1))
    # Last: with it the role has joined.
    write_private(folder / CERT_FILE, ssl.DER_cert_to_PEM_cert(certificate.der).encode())
    found = load_credentials(data_dir)
    assert found is not None
    return found


def store_crl(data_dir: Path, pem: bytes) -> None:
    """Keep the newest list of who was revoked."""
    write_private(data_dir / FOLDER / CRL_FILE, pem)


def read_joined(data_dir: Path) -> Joined | None:
    """Return where a role joined, None if it did not or the file is damaged."""
    try:
        return msgspec.json.decode((data_dir / FOLDER / JOINED_FILE).read_bytes(), type=Joined)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None


def is_of_site(held: Credentials, agent: str, keys: MemberKeys) -> bool:
    """Return whether a device's certificate is the site's, for its own key, and not revoked."""
    try:
        found = read_certificate(keys.certificate, held.ca_der, now=held.judged_time())
        revoked = held.revocations()
    except (ProtocolError, CredentialsError):
        return False
    named = (found.role, found.id, found.public) == ("agent", agent, keys.identity)
    return named and not revoked.has(found)


def members_of(data_dir: Path) -> Callable[[str, MemberKeys], bool]:
    """Return the check of a role's own site; everybody passes where the role has none."""
    try:
        held = load_credentials(data_dir)
    except CredentialsError as error:
        _log.warning("certificates of masked rounds are left to the devices: %s", error)
        held = None
    return functools.partial(is_of_site, held) if held is not None else lambda _agent, _keys: True
