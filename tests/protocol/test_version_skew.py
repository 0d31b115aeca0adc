"""Bytes of a release after this one, made from the golden ones: read, or refused with a reason."""

from collections.abc import Iterator

import msgspec
import pytest

from fedagent_protocol import messages as m
from fedagent_protocol.codec import Direction, decode
from fedagent_protocol.errors import MalformedError

from .test_golden import CASES, NOW

LATER = "zz_of_a_later_release"
_MAPS = {
    "agreed",
    "checks",
    "counters",
    "features",
    "fields",
    "members",
    "names",
    "peers",
    "reasons",
    "shares",
    "timing_ms",
}
"""Fields whose keys are data."""


def with_later_fields(value: object, *, name: str = "") -> object:
    """Add an unknown field at the end of every struct."""
    if isinstance(value, list):
        return [with_later_fields(one) for one in value]
    if not isinstance(value, dict):
        return value
    keys = dict.fromkeys(value, "") if name in _MAPS else {key: key for key in value}
    fields = {key: with_later_fields(one, name=keys[key]) for key, one in value.items()}
    return fields if name in _MAPS else fields | {LATER: {"a": [1, None, b"x"]}}


def _golden(name: str) -> tuple[Direction, bytes]:
    return CASES[name][0], (NOW / f"{name}.msgpack").read_bytes()


@pytest.mark.parametrize("name", CASES)
def test_a_later_field_is_skipped_wherever_it_is(name: str) -> None:
    way, golden = _golden(name)
    later = msgspec.msgpack.encode(with_later_fields(msgspec.msgpack.decode(golden)))
    assert LATER.encode() in later
    assert decode(way, later) == CASES[name][1]


@pytest.mark.parametrize("way", Direction)
def test_a_later_kind_of_message_is_one_error_that_names_it(way: Direction) -> None:
    with pytest.raises(MalformedError, match="of-a-later-release"):
        decode(way, msgspec.msgpack.encode({"t": "of-a-later-release", "round": 4}))


def _words() -> Iterator[tuple[str, str]]:
    for name, (_, message) in CASES.items():
        for field in message.__struct_fields__:
            if isinstance(getattr(message, field), m.OpenEnum):
                yield name, field


@pytest.mark.parametrize(("name", "field"), list(_words()))
def test_a_later_word_is_other(name: str, field: str) -> None:
    way, golden = _golden(name)
    later = msgspec.msgpack.decode(golden) | {field: "of-a-later-release"}
    assert getattr(decode(way, msgspec.msgpack.encode(later)), field).value == "other"


@pytest.mark.parametrize(
    ("name", "field"),
    [("edge-to-agent.opinion-call", "mode"), ("coordinator-to-edge.round-order", "weighting")],
)
def test_a_later_word_that_orders_work_is_refused_whole(name: str, field: str) -> None:
    """Nobody does something else than what was asked for."""
    way, golden = _golden(name)
    assert field in type(CASES[name][1]).__struct_fields__
    later = msgspec.msgpack.decode(golden) | {field: "of-a-later-release"}
    with pytest.raises(MalformedError, match="of-a-later-release"):
        decode(way, msgspec.msgpack.encode(later))


def test_a_later_protocol_is_read_from_its_greeting() -> None:
    for name in ("agent-to-edge.hello", "edge-to-coordinator.edge-hello"):
        way, golden = _golden(name)
        later = msgspec.msgpack.decode(golden) | {"protocol": m.PROTOCOL_VERSION + 1}
        greeting = decode(way, msgspec.msgpack.encode(later))
        assert isinstance(greeting, m.Hello | m.EdgeHello)
        assert greeting.protocol == m.PROTOCOL_VERSION + 1
