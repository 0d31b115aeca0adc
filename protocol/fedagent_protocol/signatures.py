"""Ed25519 keys: the id that follows from one, and whether it made a signature."""

import functools
import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

ID_LENGTH = 32
KEY_BYTES = 32
SIGNATURE_BYTES = 64
CLAIM_BYTES = KEY_BYTES + SIGNATURE_BYTES


def identity_of(public_bytes: bytes) -> str:
    """Return the id of a raw public key: 32 hex digits of its SHA-256."""
    return hashlib.sha256(public_bytes).hexdigest()[:ID_LENGTH]


def verify(public: bytes, signature: bytes, data: bytes) -> bool:
    """Return whether the owner of a raw public key signed the data; of no key, nothing is."""
    # Imported late: cryptography costs several megabytes.
    from cryptography.exceptions import InvalidSignature  # noqa: PLC0415

    try:
        _key(public).verify(signature, data)
    except (InvalidSignature, ValueError):
        return False
    return True


def is_claim(claim: bytes, agent: str, data: bytes) -> bool:
    """Return whether a claim is the key of an agent and its signature of the data."""
    public, signature = claim[:KEY_BYTES], claim[KEY_BYTES:]
    return identity_of(public) == agent and verify(public, signature, data)


@functools.lru_cache(maxsize=4096)
def _key(public: bytes) -> "Ed25519PublicKey":
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (  # noqa: PLC0415
        Ed25519PublicKey,
    )

    return Ed25519PublicKey.from_public_bytes(public)
