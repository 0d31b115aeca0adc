"""Keys of one device in one round: X25519 for masks and for shares, signed by its identity."""

import hashlib
import secrets
from dataclasses import dataclass, field

# This module is imported late: cryptography costs an idle device several megabytes.
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fedagent_protocol import signed
from fedagent_protocol.messages import MemberKeys
from fedagent_task.errors import MaskingError

Seed = tuple[bytes, int]
"""Key of a mask, and 1 or -1: whether it is added or taken away."""
_SIGNED = b"fedagent mask keys 2\0"
_MASK = b"fedagent mask 1\0"
_SEAL = b"fedagent mask share 1\0"
_COMMITMENT = b"fedagent mask seed 1\0"
_HELD = b"fedagent mask held 1\0"
_PROBE = X25519PrivateKey.from_private_bytes(bytes(range(32)))
"""Any key will do: with a point of low order each of them agrees on zero."""


@dataclass(frozen=True, slots=True)
class Place:
    """What keys are for: one round of one run at one edge; and, once it is known, one roster."""

    run: str
    round: int
    edge: str
    roster: bytes = b""

    @property
    def salt(self) -> bytes:
        """32 bytes that differ from round to round, and from roster to roster."""
        named = f"{self.run}/{self.round}/{self.edge}".encode()
        return hashlib.sha256(named + b"\0" + self.roster).digest()


@dataclass(slots=True)
class OwnKeys:
    """The private half; it is never written to a disk."""

    mask: X25519PrivateKey = field(default_factory=X25519PrivateKey.generate, repr=False)
    seal: X25519PrivateKey = field(default_factory=X25519PrivateKey.generate, repr=False)
    seed: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)


def signed_bytes(place: Place, mask: bytes, seal: bytes) -> bytes:
    """Return what a device signs about its keys."""
    return _SIGNED + place.salt + mask + seal


def verify(agent: str, keys: MemberKeys, place: Place) -> None:
    """Raise `MaskingError` unless the keys are this agent's for this round: ids are of keys."""
    if signed.identity_of(keys.identity) != agent:
        raise MaskingError("other_key", f"{agent[:12]}: the key is another's")
    if not signed.verify(keys.identity, keys.signature, signed_bytes(place, keys.mask, keys.seal)):
        raise MaskingError("bad_signature", f"{agent[:12]}: its keys are not signed")


def check_strong(public: bytes) -> None:
    """Raise `MaskingError` for a key of low order: with it, all secrets are known to all."""
    _exchange(_PROBE, public)


def commitment(seed: bytes) -> bytes:
    """Return what holds a device to the seed whose shares it hands out."""
    return hashlib.sha256(_COMMITMENT + seed).digest()


def share_check(of_seed: bytes, of_key: bytes) -> bytes:
    """Return what holds a device to the shares that it is given, and to those that it gave."""
    return check_of(of_seed) + check_of(of_key)


def check_of(share: bytes) -> bytes:
    """Return what a share hashes to; it has 521 random bits, so that this tells nothing."""
    return hashlib.sha256(_HELD + share).digest()


def mask_key(private: X25519PrivateKey, public: bytes, place: Place) -> bytes:
    """Return the key of the mask that two devices share."""
    return _agree(private, public, place, _MASK)


def seal_share(
    private: X25519PrivateKey, public: bytes, place: Place, sender: str, to: str, plain: bytes
) -> bytes:
    """Encrypt shares for one device; each key is used once, so that the nonce is fixed."""
    cipher = ChaCha20Poly1305(_agree(private, public, place, _direction(sender, to)))
    return cipher.encrypt(bytes(12), plain, _direction(sender, to))


def open_share(
    private: X25519PrivateKey, public: bytes, place: Place, sender: str, to: str, sealed: bytes
) -> bytes:
    """Decrypt shares; `MaskingError`: they are not what the sender made for this device."""
    cipher = ChaCha20Poly1305(_agree(private, public, place, _direction(sender, to)))
    try:
        return cipher.decrypt(bytes(12), sealed, _direction(sender, to))
    except InvalidTag as error:
        raise MaskingError("forged_share", f"shares of {sender[:12]} do not open") from error


def mask_public(private: bytes) -> bytes:
    """Return the public half of a mask's key."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def mask_key_of(private: bytes, public: bytes, place: Place) -> bytes:
    """Return what `mask_key` returns, from a private key that was put together from shares."""
    return mask_key(X25519PrivateKey.from_private_bytes(private), public, place)


def _direction(sender: str, to: str) -> bytes:
    return _SEAL + f"{sender}>{to}".encode()


def _agree(private: X25519PrivateKey, public: bytes, place: Place, info: bytes) -> bytes:
    secret = _exchange(private, public)
    return HKDF(algorithm=SHA256(), length=32, salt=place.salt, info=info).derive(secret)


def _exchange(private: X25519PrivateKey, public: bytes) -> bytes:
    try:
        return private.exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError as error:
        raise MaskingError("weak_key", "a key of low order") from error
