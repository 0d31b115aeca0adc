"""Encode and decode messages: the only place that knows their bytes.

MessagePack maps through msgspec. Sizes are limited before anything is parsed;
whatever the bytes, `decode` returns a message or raises `ProtocolError`.
"""

from collections.abc import Mapping
from enum import Enum
from typing import TypeVar

import msgspec
from msgspec.msgpack import Decoder, Encoder

from .errors import ProtocolError, too_large
from .messages import (
    AgentToEdge,
    AnyMessage,
    CoordinatorToEdge,
    EdgeToAgent,
    EdgeToCoordinator,
)

MAX_PAYLOAD_BYTES = 1_000_000
"""Largest payload; below the 1 MB packet limit that brokers are given."""


class Direction(Enum):
    """Who speaks to whom; each direction is one tagged union."""

    AGENT_TO_EDGE = "agent-to-edge"
    EDGE_TO_AGENT = "edge-to-agent"
    EDGE_TO_COORDINATOR = "edge-to-coordinator"
    COORDINATOR_TO_EDGE = "coordinator-to-edge"


T = TypeVar("T")

_encoder = Encoder()
_decoders: Mapping[Direction, Decoder[AnyMessage]] = {
    Direction.AGENT_TO_EDGE: Decoder(AgentToEdge),
    Direction.EDGE_TO_AGENT: Decoder(EdgeToAgent),
    Direction.EDGE_TO_COORDINATOR: Decoder(EdgeToCoordinator),
    Direction.COORDINATOR_TO_EDGE: Decoder(CoordinatorToEdge),
}


def encode(message: AnyMessage) -> bytes:
    """Return the message's bytes; raises `ProtocolError` above what a broker accepts."""
    payload = _encoder.encode(message)
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise too_large(type(message).__name__, len(payload), MAX_PAYLOAD_BYTES)
    return payload


def decode(direction: Direction, payload: bytes | memoryview) -> AnyMessage:
    """Decode one payload.

    Raises:
        ProtocolError: It is over the limit and not parsed, or no message of this direction.
    """
    return decode_with(_decoders[direction], payload, "payload", MAX_PAYLOAD_BYTES)


def decode_with(decoder: Decoder[T], payload: bytes | memoryview, what: str, limit: int) -> T:
    """Decode bytes of another kind; raises what `decode` raises."""
    if len(payload) > limit:
        raise too_large(what, len(payload), limit)
    try:
        return decoder.decode(payload)
    except (msgspec.DecodeError, ValueError, OverflowError, RecursionError) as error:
        raise ProtocolError(str(error)[:200]) from error
