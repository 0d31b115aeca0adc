"""Ed25519, imported by what signs or verifies alone: the library takes several megabytes."""

import functools

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey


@functools.lru_cache(maxsize=8)
def private_key(raw: bytes) -> Ed25519PrivateKey:
    """Return the private key of 32 bytes."""
    return Ed25519PrivateKey.from_private_bytes(raw)


_public_key = functools.lru_cache(maxsize=4096)(Ed25519PublicKey.from_public_bytes)


def is_signature(public: bytes, signature: bytes, data: bytes) -> bool:
    """Return whether the owner of a raw public key signed the data; of no key, nothing is."""
    try:
        _public_key(public).verify(signature, data)
    except (InvalidSignature, ValueError):
        return False
    return True
