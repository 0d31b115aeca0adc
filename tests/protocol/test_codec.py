"""Round trips, and the rule: a message or a ProtocolError, whatever the bytes."""

import functools
import math
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedagent_protocol import messages as m
from fedagent_protocol import peers as p
from fedagent_protocol.codec import MAX_PAYLOAD_BYTES, Direction, decode, encode
from fedagent_protocol.errors import ProtocolError

from .samples import FLAT

_IDS = [f"{direction.value}.{m.kind(message)}" for direction, message in FLAT]


RUN = "0123456789abcdef" * 2
BELIEF = p.BeliefMessage(degree=4, ratio=-0.25, typical=0.5, distance=0.75)
GOSSIP = p.GossipMessage(
    best=((0.75, "a" * 32), (0.5, "b" * 32)),
    known=(1, 2**32 - 1),
    spoken=(1,),
    turns=((2, 1), (3, p.MAX_TURN)),
    parent=True,
    next=0.25,
)
ENVELOPE = p.Envelope(run=RUN, slot=7, seq=3, ack=2, belief=BELIEF, gossip=GOSSIP, stage=1)
CARD = p.PeerCard(identity=b"i" * 32, agreement=b"a" * 32, epoch=4, signature=b"s" * 64)
PACKET = p.PeerPacket(data=b"\x00\x01" * 128)

Decode = Callable[[bytes], object]
DECODERS: list[Decode] = [
    *(functools.partial(decode, direction) for direction in Direction),
    p.decode_envelope,
    p.decode_relayed,
]
VALID: list[tuple[Decode, bytes]] = [
    *((functools.partial(decode, direction), encode(message)) for direction, message in FLAT),
    (p.decode_envelope, p.encode_envelope(ENVELOPE)),
    (p.decode_relayed, p.encode_relayed(CARD)),
    (p.decode_relayed, p.encode_relayed(PACKET)),
]


@pytest.mark.parametrize(("direction", "message"), FLAT, ids=_IDS)
def test_a_message_survives_the_wire_and_what_a_newer_peer_adds(
    direction: Direction, message: m.AnyMessage
) -> None:
    payload = encode(message)
    assert decode(direction, payload) == message
    raw = {**msgspec.msgpack.decode(payload), "from_the_future": [1, {"a": b"x"}]}
    assert decode(direction, msgspec.msgpack.encode(raw)) == message


def test_an_unknown_word_is_refused() -> None:
    raw = {"t": "receipt", "digest": "a" * 64, "status": "sealed-in-amber"}
    with pytest.raises(ProtocolError, match="sealed-in-amber"):
        decode(Direction.EDGE_TO_AGENT, msgspec.msgpack.encode(raw))


@given(st.sampled_from(DECODERS), st.binary(max_size=400))
@settings(max_examples=300, deadline=None)
def test_any_bytes_are_a_message_or_a_protocol_error(decoder: Decode, data: bytes) -> None:
    try:
        decoder(data)
    except ProtocolError as error:
        assert error.reason in {"malformed", "oversize"}


@given(st.sampled_from(VALID), st.data())
@settings(max_examples=300, deadline=None)
def test_a_damaged_message_is_a_message_or_a_protocol_error(
    sample: tuple[Decode, bytes], data: st.DataObject
) -> None:
    decoder, valid = sample
    payload = bytearray(valid)
    for _ in range(data.draw(st.integers(1, 4))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    try:
        decoder(bytes(payload[: data.draw(st.integers(0, len(payload)))]))
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
        {"t": "peer-send", "to": "../../etc", "body": b"x"},
        {"t": "hello", "run": "xyz"},
        {"t": "no-such-kind"},
        {},
    ],
)
def test_bad_values_are_refused(raw: dict[str, object]) -> None:
    with pytest.raises(ProtocolError):
        decode(Direction.AGENT_TO_EDGE, msgspec.msgpack.encode(raw))


@pytest.mark.parametrize(
    "fields",
    [
        [-1],
        [1, -1],
        [1, 1, 0, [0]],
        [1, 1, 0, [4, float("nan")]],
        [1, 1, 0, [4, float("inf")]],
        [1, 1, 0, [4, 0.0, float("nan")]],
        [1, 1, 0, []],
        [1, 1, 0, None, [[[float("nan"), "a"]]]],
        [1, 1, 0, None, [[[0.5, "../etc"]]]],
        [1, 1, 0, None, [[[0.5, "a"]] * (p.MAX_BEST + 1)]],
        [1, 1, 0, None, [[], [1] * (p.MAX_SKETCH + 1)]],
        [1, 1, 0, None, [[], [-1]]],
        [1, 1, 0, None, [[], [2**32]]],
        [1, 1, 0, None, [[], [], [], [[1, 0]]]],
        [1, 1, 0, None, [[], [], [], [[1, p.MAX_TURN + 1]]]],
        [1, 1, 0, None, [[], [], [], [[1, 1]] * (p.MAX_SKETCH + 1)]],
        [1, 1, 0, None, [[], [], [], [], False, float("nan")]],
        [1, 1, 0, None, None, -1],
        [1, 1, 0, None, None, p.MAX_STAGE + 1],
        ["no slot"],
    ],
)
def test_bad_values_between_neighbours_are_refused(fields: list[object]) -> None:
    assert p.decode_envelope(msgspec.msgpack.encode(["", 1, 1, 0, [4], [[[0.5, "a"]]]]))
    with pytest.raises(ProtocolError):
        p.decode_envelope(msgspec.msgpack.encode(["", *fields]))


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
    with pytest.raises(ProtocolError):
        decode(Direction.EDGE_TO_COORDINATOR, msgspec.msgpack.encode(raw))


def test_array_headers_that_lie_cost_no_memory() -> None:
    lie = b"\x83\xa1t\xa4need\xa6digest\xd9\x40" + b"a" * 64 + b"\xa6ranges\xdd\xff\xff\xff\xff"
    with pytest.raises(ProtocolError):
        decode(Direction.AGENT_TO_EDGE, lie)


def test_an_oversized_payload_is_not_parsed() -> None:
    with pytest.raises(ProtocolError, match=f"the limit is {MAX_PAYLOAD_BYTES}"):
        decode(Direction.AGENT_TO_EDGE, b"\xc1" * (MAX_PAYLOAD_BYTES + 1))


def test_an_oversized_message_is_not_encoded() -> None:
    outcome = m.Outcome(agent="a", status=m.OutcomeStatus.ARRIVED, reason="x" * 400)
    report = m.RoundReport(epoch="0" * 32, outcomes=(outcome,) * 5000)
    with pytest.raises(ProtocolError, match="the limit is"):
        encode(report)
