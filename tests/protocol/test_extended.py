"""Golden bytes of fields that came after the first release: they stay as they are, too."""

from pathlib import Path

import msgspec
import pytest

from fedagent_protocol import messages as m
from fedagent_protocol.codec import Direction, decode, encode

from .samples import FLAT

GOLDEN = Path(__file__).parent / "golden"


def _first(kind: type[m.AnyMessage]) -> m.AnyMessage:
    return next(message for _, message in FLAT if isinstance(message, kind))


EXTENDED = {
    "agent-to-edge.update.steps": (
        Direction.AGENT_TO_EDGE,
        msgspec.structs.replace(_first(m.UpdateOffer), train_ms=290, steps=50, limited=True),
    ),
    "edge-to-agent.order.load-limit": (
        Direction.EDGE_TO_AGENT,
        msgspec.structs.replace(_first(m.TrainOrder), load_limit_ms=1300),
    ),
    "agent-to-edge.hello.address": (
        Direction.AGENT_TO_EDGE,
        msgspec.structs.replace(_first(m.Hello), name="kitchen", address="192.168.1.20"),
    ),
    "edge-to-coordinator.edge-status.devices": (
        Direction.EDGE_TO_COORDINATOR,
        msgspec.structs.replace(
            _first(m.EdgeStatus),
            devices=(
                m.DeviceNote(agent="agent-1", software="fedagent 0.1.0", address="192.168.1.20"),
                m.DeviceNote(agent="agent-2", here=False, age_ms=45_000),
                m.DeviceNote(agent="agent-3", reason="12 % of charge, at least 30 %"),
            ),
        ),
    ),
    "edge-to-agent.welcome.name": (
        Direction.EDGE_TO_AGENT,
        msgspec.structs.replace(_first(m.Welcome), name="hall"),
    ),
    "edge-to-agent.task.recipe": (
        Direction.EDGE_TO_AGENT,
        msgspec.structs.replace(_first(m.TaskBody), recipe="digits"),
    ),
    "coordinator-to-edge.edge-welcome.recipe": (
        Direction.COORDINATOR_TO_EDGE,
        msgspec.structs.replace(_first(m.EdgeWelcome), recipe="digits"),
    ),
}


@pytest.mark.parametrize("name", EXTENDED)
def test_the_bytes_of_added_fields_never_change(name: str) -> None:
    direction, message = EXTENDED[name]
    golden = (GOLDEN / f"{name}.msgpack").read_bytes()
    assert encode(message) == golden
    assert decode(direction, golden) == message


@pytest.mark.parametrize("name", EXTENDED)
def test_a_peer_that_does_not_know_the_fields_leaves_them_out(name: str) -> None:
    direction, message = EXTENDED[name]
    old = GOLDEN / f"{direction.value}.{m.kind(message)}.msgpack"
    assert decode(direction, old.read_bytes()) == _first(type(message))
