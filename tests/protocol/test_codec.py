"""Round trips, and the rule: a message or a ProtocolError, whatever the bytes."""

import math

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedagent_protocol import messages as m
from fedagent_protocol.codec import MAX_PAYLOAD_BYTES, Direction, decode, encode
from fedagent_protocol.errors import MalformedError, OversizeError, ProtocolError

from .samples import FLAT

_IDS = [f"{direction.value}.{m.kind(message)}" for direction, message in FLAT]


def _raw(message: m.AnyMessage) -> dict[str, object]:
    raw: dict[str, object] = msgspec.msgpack.decode(encode(message))
    return raw


@pytest.mark.parametrize(("direction", "message"), FLAT, ids=_IDS)
def test_a_message_survives_the_wire(direction: Direction, message: m.AnyMessage) -> None:
    assert decode(direction, encode(message)) == message


@pytest.mark.parametrize(("direction", "message"), FLAT, ids=_IDS)
def test_unknown_fields_of_a_newer_peer_are_skipped(
    direction: Direction, message: m.AnyMessage
) -> None:
    raw = _raw(message)
    raw["from_the_future"] = [1, {"a": b"x"}]
    assert decode(direction, msgspec.msgpack.encode(raw)) == message


def test_an_unknown_word_is_refused() -> None:
    raw = {"t": "receipt", "digest": "a" * 64, "status": "sealed-in-amber"}
    with pytest.raises(MalformedError, match="sealed-in-amber"):
        decode(Direction.EDGE_TO_AGENT, msgspec.msgpack.encode(raw))


@given(st.sampled_from(list(Direction)), st.binary(max_size=400))
@settings(max_examples=400, deadline=None)
def test_any_bytes_are_a_message_or_a_protocol_error(direction: Direction, data: bytes) -> None:
    try:
        decode(direction, data)
    except ProtocolError as error:
        assert error.reason in {"malformed", "oversize"}


@given(st.sampled_from(FLAT), st.data())
@settings(max_examples=400, deadline=None)
def test_a_damaged_message_is_a_message_or_a_protocol_error(
    sample: tuple[Direction, m.AnyMessage], data: st.DataObject
) -> None:
    direction, message = sample
    payload = bytearray(encode(message))
    for _ in range(data.draw(st.integers(1, 4))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    try:
        decode(direction, bytes(payload[: data.draw(st.integers(0, len(payload)))]))
    except ProtocolError as error:
        assert error.reason in {"malformed", "oversize"}


@pytest.mark.parametrize(
    "raw",
    [
        {"t": "context", "available": True, "price": -1},
        {"t": "context", "available": True, "price": 1.5},
        {"t": "context", "available": True, "price": 2**63},
        {"t": "context", "available": True, "price": 1, "features": {"compute": float("nan")}},
        {"t": "context", "available": True, "price": 1, "features": {"compute": float("inf")}},
        {"t": "need", "digest": "short", "ranges": []},
        {"t": "need", "digest": "A" * 64, "ranges": []},
        {"t": "hello", "agent": "../../etc"},
        {"t": "hello", "agent": "a", "run": "xyz"},
        {"t": "no-such-kind"},
        {},
    ],
)
def test_bad_values_are_refused(raw: dict[str, object]) -> None:
    with pytest.raises(MalformedError):
        decode(Direction.AGENT_TO_EDGE, msgspec.msgpack.encode(raw))


_OUTCOME = {"agent": "a", "status": "arrived"}


@pytest.mark.parametrize(
    "raw",
    [
        {"t": "report", "epoch": "0" * 32, "outcomes": [], "timing_ms": {"aggregate": math.nan}},
        {"t": "report", "epoch": "0" * 32, "outcomes": [], "weight": math.inf},
        {"t": "moments", "epoch": "0" * 32, "model": "a" * 64, "asked": m.MAX_AGENTS + 1},
        *(
            {"t": "report", "epoch": "0" * 32, "outcomes": [{**_OUTCOME, "stats": {"score": no}}]}
            for no in (-0.1, 1.1, math.inf, math.nan)
        ),
    ],
)
def test_what_would_spoil_a_sum_is_refused(raw: dict[str, object]) -> None:
    with pytest.raises(MalformedError):
        decode(Direction.EDGE_TO_COORDINATOR, msgspec.msgpack.encode(raw))


def test_array_headers_that_lie_cost_no_memory() -> None:
    lie = b"\x83\xa1t\xa4need\xa6digest\xd9\x40" + b"a" * 64 + b"\xa6ranges\xdd\xff\xff\xff\xff"
    with pytest.raises(MalformedError):
        decode(Direction.AGENT_TO_EDGE, lie)


def test_an_oversized_payload_is_not_parsed() -> None:
    with pytest.raises(OversizeError) as caught:
        decode(Direction.AGENT_TO_EDGE, b"\xc1" * (MAX_PAYLOAD_BYTES + 1))
    assert caught.value.limit == MAX_PAYLOAD_BYTES


def test_an_oversized_message_is_not_encoded() -> None:
    outcome = m.Outcome(agent="a", status=m.OutcomeStatus.ARRIVED, reason="x" * 400)
    report = m.RoundReport(epoch="0" * 32, outcomes=(outcome,) * 5000)
    with pytest.raises(OversizeError):
        encode(report)
