"""What agents exchange in democratized analytics, and its bytes; docs/democratized.md.

A relay carries a `PeerCard` (public keys, signed) and a `PeerPacket` (sealed bytes). In the
packet, readable by its receiver alone, is an `Envelope` of beliefs and of the best indices,
as MessagePack arrays, because most then fit the smallest packet. It evolves as `messages` do.
"""

import math
from typing import Annotated

from msgspec import Meta, Struct
from msgspec.msgpack import Decoder, Encoder

from .codec import decode_with
from .messages import Count, Id, Seq

MAX_PACKET_BYTES = 65_536
"""Largest sealed packet: 1024 best entries and both sketches of a gossip message fit."""
MAX_CARD_BYTES = 1024
MAX_BEST = 1024
MAX_SKETCH = 64
MAX_DEGREE = 4096
MAX_TURN = 2**16 - 1
MAX_STAGE = 255

Degree = Annotated[int, Meta(ge=1, le=MAX_DEGREE)]
Distance = Annotated[float, Meta(ge=0.0, le=1e9)]
Hash = Annotated[int, Meta(ge=0, lt=2**32)]
Sketch = Annotated[tuple[Hash, ...], Meta(max_length=MAX_SKETCH)]
Turn = Annotated[int, Meta(ge=1, le=MAX_TURN)]
Turns = Annotated[tuple[tuple[Hash, Turn], ...], Meta(max_length=MAX_SKETCH)]
Stage = Annotated[int, Meta(ge=0, le=MAX_STAGE)]
Key = Annotated[bytes, Meta(min_length=32, max_length=32)]
Signature = Annotated[bytes, Meta(min_length=64, max_length=64)]
Best = Annotated[tuple[tuple[float, Id], ...], Meta(max_length=MAX_BEST)]
Epoch = Annotated[int, Meta(ge=1, lt=2**53)]


class BeliefMessage(Struct, frozen=True, kw_only=True, array_like=True):
    """One message of belief propagation, and what its weight is made of."""

    degree: Degree  # how many neighbours the sender has
    ratio: float = 0.0  # log ratio of the message's two values
    typical: Distance = 0.0  # median distance of the sender's neighbours
    distance: Distance = 0.0  # from sender to receiver, as the sender has it

    def __post_init__(self) -> None:
        if not all(map(math.isfinite, (self.ratio, self.typical, self.distance))):
            raise ValueError("a belief message has a non-finite number")


class GossipMessage(Struct, frozen=True, kw_only=True, array_like=True):
    """What the receiver may not know yet about a slot."""

    best: Best = ()  # (index, agent) among the K best
    known: Sketch = ()  # hashes of agents that take part, among the smallest
    spoken: Sketch = ()  # hashes of agents that have named their index, or have none, likewise
    turns: Turns = ()  # (hash, turn) of those that have not: odd while its beliefs stand still
    parent: bool = False  # the receiver is the sender's next on the way to the smallest hash
    next: float | None = None  # the largest index that is not among the K best, of nobody named

    def __post_init__(self) -> None:
        indices = [index for index, _ in self.best]
        if not all(map(math.isfinite, indices if self.next is None else [*indices, self.next])):
            raise ValueError("an index is not finite")


class Envelope(Struct, frozen=True, kw_only=True, array_like=True):
    """An agent's state of one slot, as far as one neighbour lacks it.

    `seq` numbers it towards this receiver: larger is newer; 0 is an acknowledgement alone.
    """

    run: Annotated[str, Meta(pattern=r"^([0-9a-f]{32})?$")]  # 32 hex digits
    slot: Count  # it means nothing in another
    seq: Seq = 0
    ack: Seq = 0  # the largest `seq` that the sender has had from this receiver in this slot
    belief: BeliefMessage | None = None
    gossip: GossipMessage | None = None
    stage: Stage = 0  # how often beliefs went on as the K best were in doubt


class PeerCard(Struct, frozen=True, kw_only=True, tag_field="t", tag="card"):
    """Who an agent is since its last start; public, and good for nothing without its keys."""

    identity: Key  # raw Ed25519 public key; the agent's id is its hash
    agreement: Key  # raw X25519 public key, made at the start
    epoch: Epoch  # number of the start; grows
    signature: Signature  # Ed25519 over the two above


class PeerPacket(Struct, frozen=True, kw_only=True, tag_field="t", tag="sealed"):
    """Sealed bytes; what a relay sees of an envelope is their number, a multiple of 256."""

    data: Annotated[bytes, Meta(max_length=MAX_PACKET_BYTES)]


Relayed = PeerCard | PeerPacket
"""All that ever passes between agents in the open."""

_encoder = Encoder()
_envelopes = Decoder(Envelope)
_relayed: Decoder[Relayed] = Decoder(Relayed)


def encode_envelope(envelope: Envelope) -> bytes:
    """Return the bytes that are to be sealed."""
    return _encoder.encode(envelope)


def decode_envelope(payload: bytes) -> Envelope:
    """Return the envelope of opened bytes; raises what `codec.decode` raises."""
    return decode_with(_envelopes, payload, "peer payload", MAX_PACKET_BYTES)


def encode_relayed(message: Relayed) -> bytes:
    """Return the bytes that a relay carries."""
    return _encoder.encode(message)


def decode_relayed(payload: bytes) -> Relayed:
    """Return what came from a relay; raises likewise."""
    return decode_with(_relayed, payload, "peer payload", MAX_PACKET_BYTES + MAX_CARD_BYTES)
