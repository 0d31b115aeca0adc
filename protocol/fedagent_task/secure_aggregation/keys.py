"""Keys of one device in one round, and what a device and its edge check of a roster alike.

X25519 for masks and for shares, signed by the device's identity. An edge that let in what devices
refuse would have its round voided by any one device.

A device gives shares for survivors alone who all signed the roster and the cohort that it knows
itself. As more than half of a roster must survive, any two answers name a common survivor, so all
answers are about one cohort. What is left to lie about is who of it survived, to each device
differently; `smallest_sum` bounds what comes of that (docs/privacy.md has the proof).
"""

import hashlib
import secrets
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace

# This module is imported late: cryptography costs an idle device several megabytes.
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fedagent_protocol import signed
from fedagent_protocol.errors import ProtocolError
from fedagent_protocol.messages import MemberKeys
from fedagent_task.recipe.spec import SecureAggregationSpec

Seed = tuple[bytes, int]
"""Key of a mask, and 1 or -1: whether it is added or taken away."""
_SIGNED = b"fedagent mask keys 2\0"
_MASK = b"fedagent mask 1\0"
_SEAL = b"fedagent mask share 1\0"
_COMMITMENT = b"fedagent mask seed 1\0"
_HELD = b"fedagent mask held 1\0"
_AGREED = b"fedagent mask cohort 1\0"
Trusted = Callable[[str, MemberKeys], bool]
"""Whether a device belongs to the site, as its certificate says."""
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
    """Decrypt shares; `ProtocolError`: they are not what the sender made for this device."""
    cipher = ChaCha20Poly1305(_agree(private, public, place, _direction(sender, to)))
    try:
        return cipher.decrypt(bytes(12), sealed, _direction(sender, to))
    except InvalidTag as error:
        raise refused("forged_share", f"shares of {sender[:12]} do not open") from error


def refused(why: str, detail: str) -> ProtocolError:
    """Return the error for keys, shares or answers that do not fit; nothing of them was used."""
    return ProtocolError(detail, f"masking_{why}")


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
        raise refused("weak_key", "a key of low order") from error


def anybody(_agent: str, _keys: MemberKeys) -> bool:
    """Trust all: there is no site whose certificates could be asked for."""
    return True


def check_keys(agent: str, keys: MemberKeys, place: Place, trusted: Trusted) -> None:
    """Raise `ProtocolError` unless a device's keys may be on a roster: ids are of keys."""
    if signed.identity_of(keys.identity) != agent:
        raise refused("other_key", f"{agent[:12]}: the key is another's")
    if not signed.verify(keys.identity, keys.signature, signed_bytes(place, keys.mask, keys.seal)):
        raise refused("bad_signature", f"{agent[:12]}: its keys are not signed")
    # With a key of low order all secrets are known to all.
    _exchange(_PROBE, keys.mask)
    _exchange(_PROBE, keys.seal)
    if not trusted(agent, keys):
        raise refused("stranger", f"{agent[:12]} is not of this site")


def check_distinct(agent: str, keys: MemberKeys, others: Mapping[str, MemberKeys]) -> None:
    """Raise `ProtocolError` if another device has the same mask key."""
    if any(known.mask == keys.mask for other, known in others.items() if other != agent):
        raise refused("same_key", f"{agent[:12]} has the key of another device")


def bound(place: Place, spec: SecureAggregationSpec, members: Mapping[str, MemberKeys]) -> Place:
    """Return the place of a roster: under another one shares do not open, masks do not cancel."""
    known = hashlib.sha256()
    known.update(spec.shares_needed(len(members)).to_bytes(2))
    known.update(spec.minimum_cohort.to_bytes(2))
    for agent in sorted(members):
        known.update(agent.encode() + b"\0" + members[agent].mask + members[agent].seal)
    return replace(place, roster=known.digest())


def agreed_bytes(place: Place, cohort: Collection[str]) -> bytes:
    """Return what a device signs about the cohort whose masks it wears; `place` has a roster."""
    assert place.roster, "a cohort is one of a roster"
    names = "/".join(sorted(cohort)).encode()
    return _AGREED + place.salt + hashlib.sha256(names).digest()


def check_agreed(
    agent: str, identity: bytes, signature: bytes, place: Place, cohort: Collection[str]
) -> None:
    """Raise `ProtocolError` unless a device has signed this roster and this cohort."""
    if not signed.verify(identity, signature, agreed_bytes(place, cohort)):
        raise refused("not_agreed", f"{agent[:12]} has not signed this cohort")


def smallest_sum(cohort: int, survivors: int, needed: int, helpers: int = 0) -> int:
    """Return how many updates are at least in a sum that a lying edge can uncover.

    Each of the cohort answers once, and gives shares of at most `cohort - survivors` keys. A key
    takes `needed` of them. Only a device whose key is known can be taken out of the sum.

    `helpers` are devices of the edge's own, which give it all that they hold; only the others'
    updates count. It holds for fewer than `2 * needed` less the roster.
    """
    others = cohort - helpers
    return others - others * (cohort - survivors) // (needed - helpers)


def survivors_needed(spec: SecureAggregationSpec, roster: int, cohort: int) -> int:
    """Return how many must survive so that no sum of fewer than `minimum_cohort` is uncovered."""
    needed = spec.shares_needed(roster)
    least = max(spec.minimum_cohort, needed)
    while least < cohort and smallest_sum(cohort, least, needed) < spec.minimum_cohort:
        least += 1
    return least
