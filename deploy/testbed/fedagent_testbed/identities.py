"""Keys of virtual agents: real ones, so that cards and envelopes are checked as they are live."""

import hashlib

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedagent_node.identity import Identity, identity_of


def seeded_identity(seed: int, name: str) -> Identity:
    """Return an identity that follows from a seed, for which it must guard nothing."""
    private = hashlib.sha256(f"fedagent testbed/{seed}/{name}".encode()).digest()
    public = Ed25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()
    return Identity(identity_of(public), public, private)
