"""Encode and decode messages: the only place that knows their bytes.

MessagePack maps through msgspec. Sizes are limited before anything is parsed;
whatever the bytes, `decode` returns a message or raises `ProtocolError`.
"""

from enum import Enum
from typing import TypeVar

import msgspec
from msgspec.msgpack import Decoder, Encoder

from .errors import MalformedError, OversizeError
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
_agent_to_edge: Decoder[AgentToEdge] = Decoder(AgentToEdge)
_edge_to_agent: Decoder[EdgeToAgent] = Decoder(EdgeToAgent)
_edge_to_coordinator: Decoder[EdgeToCoordinator] = Decoder(EdgeToCoordinator)
_coordinator_to_edge: Decoder[CoordinatorToEdge] = Decoder(CoordinatorToEdge)


def encode(message: AnyMessage) -> bytes:
    """Return the message's bytes.

    Raises:
        OversizeError: The message is larger than any broker here accepts.
    """
    payload = _encoder.encode(message)
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise OversizeError(type(message).__name__, len(payload), MAX_PAYLOAD_BYTES)
    return payload


def decode_agent_to_edge(payload: bytes) -> AgentToEdge:
    """Decode what an agent sent to an edge; see `decode`."""
    return _decode(_agent_to_edge, payload)


def decode_edge_to_agent(payload: bytes) -> EdgeToAgent:
    """Decode what an edge sent to an agent; see `decode`."""
    return _decode(_edge_to_agent, payload)


def decode_edge_to_coordinator(payload: bytes) -> EdgeToCoordinator:
    """Decode what an edge sent to the coordinator; see `decode`."""
    return _decode(_edge_to_coordinator, payload)


def decode_coordinator_to_edge(payload: bytes) -> CoordinatorToEdge:
    """Decode what the coordinator sent to an edge; see `decode`."""
    return _decode(_coordinator_to_edge, payload)


def decode(direction: Direction, payload: bytes) -> AnyMessage:
    """Decode one payload.

    Raises:
        OversizeError: The payload is over the limit; nothing was parsed.
        MalformedError: The bytes are no message of this direction.
    """
    match direction:
        case Direction.AGENT_TO_EDGE:
            return decode_agent_to_edge(payload)
        case Direction.EDGE_TO_AGENT:
            return decode_edge_to_agent(payload)
        case Direction.EDGE_TO_COORDINATOR:
            return decode_edge_to_coordinator(payload)
        case Direction.COORDINATOR_TO_EDGE:
            return decode_coordinator_to_edge(payload)


def _decode(decoder: Decoder[T], payload: bytes) -> T:
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise OversizeError("payload", len(payload), MAX_PAYLOAD_BYTES)
    try:
        return decoder.decode(payload)
    except (msgspec.DecodeError, ValueError, OverflowError, RecursionError) as error:
        raise MalformedError(str(error)[:200]) from error
