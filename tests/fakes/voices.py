"""Peers that a test plays on a real wire: each with a key, whose hash is its id."""

import functools
import hashlib
import time

from fedagent_node.data_dir import Identity
from fedagent_node.envelope import Gate, _parts
from fedagent_protocol.codec import Direction, decode, encode
from fedagent_protocol.messages import AnyMessage, kind


def identity(name: str) -> Identity:
    """Return the same identity for the same name."""
    return Identity.of(hashlib.sha256(name.encode()).digest())


class Voice:
    """Seals what a test says in one name; it counts on from where an earlier one ended."""

    def __init__(self, name: str, *, starts: int | None = None) -> None:
        self.identity = identity(name)
        self.id = self.identity.id
        starts = int(time.time()) if starts is None else starts
        self.gate = Gate(self.identity, starts=starts, clock=time.monotonic)

    def seal(self, topic: str, message: AnyMessage) -> bytes:
        return self.gate.seal(topic, encode(message), kind=kind(message))


@functools.cache
def voice(name: str) -> Voice:
    """Return the one voice of that name."""
    return Voice(name)


def read(direction: Direction, payload: bytes) -> AnyMessage:
    """Return the message in an envelope, whoever sealed it."""
    return decode(direction, bare(payload))


def bare(payload: bytes) -> bytes:
    """Return what is in an envelope; bytes without one as they are."""
    return bytes(_parts(payload)[-1]) if payload[:1] == b"\xc1" else payload
