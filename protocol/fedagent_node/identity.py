"""Who a process is: an Ed25519 key made at its first start."""

import base64
import binascii
import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path

from .data_dir import write_private
from .errors import IdentityError

FILE = "identity.json"
ID_LENGTH = 32
_KEY_BYTES = 32


@dataclass(frozen=True, slots=True)
class Identity:
    """A device's or server's key, with the id that is derived from it.

    Attributes:
        id: First 32 hex digits of the SHA-256 of the raw public key.
        public_bytes: The raw Ed25519 public key, 32 bytes.
    """

    id: str
    public_bytes: bytes
    _private_bytes: bytes = field(repr=False)

    def sign(self, data: bytes) -> bytes:
        """Return the Ed25519 signature of `data`, 64 bytes."""
        # Imported late: cryptography costs an idle agent several megabytes.
        from cryptography.hazmat.primitives.asymmetric.ed25519 import (  # noqa: PLC0415
            Ed25519PrivateKey,
        )

        return Ed25519PrivateKey.from_private_bytes(self._private_bytes).sign(data)


def load_or_create(data_dir: Path) -> Identity:
    """Return the identity kept in a data directory, made there if there is none.

    Raises:
        IdentityError: The file is there and damaged. It is never replaced by itself,
            because that would make the device a stranger to its edges.
    """
    path = data_dir / FILE
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return _create(path)
    except OSError as exc:
        raise IdentityError(path, exc.strerror or str(exc)) from exc
    return _load(path, text)


def identity_of(public_bytes: bytes) -> str:
    """Return the id that belongs to a raw public key."""
    return hashlib.sha256(public_bytes).hexdigest()[:ID_LENGTH]


def _load(path: Path, text: bytes) -> Identity:
    try:
        content = json.loads(text)
        public = base64.b64decode(content["public"], validate=True)
        private = base64.b64decode(content["private"], validate=True)
        stated = content["id"]
    except (ValueError, KeyError, TypeError, binascii.Error) as exc:
        raise IdentityError(path, "not an identity file") from exc
    if len(public) != _KEY_BYTES or len(private) != _KEY_BYTES:
        raise IdentityError(path, "a key has the wrong length")
    if stated != identity_of(public):
        raise IdentityError(path, "the id does not belong to the key")
    return Identity(stated, public, private)


def _create(path: Path) -> Identity:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (  # noqa: PLC0415
        Ed25519PrivateKey,
    )

    key = Ed25519PrivateKey.generate()
    public, private = key.public_key().public_bytes_raw(), key.private_bytes_raw()
    identity = Identity(identity_of(public), public, private)
    content = {
        "id": identity.id,
        "public": base64.b64encode(public).decode(),
        "private": base64.b64encode(private).decode(),
    }
    write_private(path, json.dumps(content, indent=1).encode())
    return identity
