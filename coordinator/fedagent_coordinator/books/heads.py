"""Heads of the ledger: the newest entry, signed by the coordinator, kept by edges as witnesses."""

from fedagent_protocol.messages import LedgerHead
from fedagent_protocol.signed import verify

_PURPOSE = b"fedagent/ledger-head/1\0"


def head_bytes(seq: int, hash_: bytes) -> bytes:
    """Return what a coordinator signs of a head."""
    return _PURPOSE + seq.to_bytes(8) + hash_


def is_genuine(head: LedgerHead, public: bytes) -> bool:
    """Return whether the coordinator with this key has signed a head."""
    return verify(public, head.signature, head_bytes(head.seq, head.hash))
