"""Peer messages: round trips, and a message or a ProtocolError for any bytes."""

from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedagent_protocol import peers as p
from fedagent_protocol.errors import MalformedError, ProtocolError

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
RELAYED: list[p.Relayed] = [CARD, PACKET]


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
def test_bad_values_are_refused(fields: list[object]) -> None:
    assert p.decode_envelope(msgspec.msgpack.encode(["", 1, 1, 0, [4], [[[0.5, "a"]]]]))
    with pytest.raises(MalformedError):
        p.decode_envelope(msgspec.msgpack.encode(["", *fields]))


@pytest.mark.parametrize("decode", [p.decode_envelope, p.decode_relayed])
@given(data=st.binary(max_size=300))
@settings(max_examples=200, deadline=None)
def test_any_bytes_are_a_message_or_a_protocol_error(
    decode: Callable[[bytes], object], data: bytes
) -> None:
    try:
        decode(data)
    except ProtocolError as error:
        assert error.reason in {"malformed", "oversize"}


@pytest.mark.parametrize(
    ("decode", "valid"),
    [
        (p.decode_envelope, p.encode_envelope(ENVELOPE)),
        *((p.decode_relayed, p.encode_relayed(message)) for message in RELAYED),
    ],
    ids=["envelope", "card", "sealed"],
)
@given(data=st.data())
@settings(max_examples=200, deadline=None)
def test_a_damaged_message_is_one_or_a_protocol_error(
    decode: Callable[[bytes], object], valid: bytes, data: st.DataObject
) -> None:
    payload = bytearray(valid)
    for _ in range(data.draw(st.integers(1, 4))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    try:
        decode(bytes(payload[: data.draw(st.none() | st.integers(0, len(payload)))]))
    except ProtocolError as error:
        assert error.reason in {"malformed", "oversize"}
