"""Packets: what was written is read, in whatever pieces it comes, and bytes make no other error."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fedagent_node.mqtt import (
    MAX_PACKET_BYTES,
    Connect,
    Kind,
    MqttError,
    Packet,
    Packets,
    answer,
    bare,
    publish,
    subscribe,
    unsubscribe,
)

TOPIC = "home/ü"
LONG = bytes(70_000)
OPENING = Connect("me", 15, (TOPIC, b"gone"), "user", "password")
WRITTEN = {
    OPENING.packed(): Connect("me", 15, (TOPIC, b"gone")),
    publish(TOPIC, LONG): Packet(Kind.PUBLISH, 0, TOPIC, LONG),
    publish(TOPIC, b"", 7): Packet(Kind.PUBLISH, 7, TOPIC),
    subscribe(8, TOPIC, "+/#"): Packet(Kind.SUBSCRIBE, 8, filters=(TOPIC, "+/#")),
    unsubscribe(9, TOPIC): Packet(Kind.UNSUBSCRIBE, 9, filters=(TOPIC,)),
    answer(Kind.SUBACK, 8, b"\1\x80"): Packet(Kind.SUBACK, 8, payload=b"\1\x80"),
    bare(Kind.PINGREQ): Packet(Kind.PINGREQ),
}


@given(st.lists(st.integers(0, sum(map(len, WRITTEN))), max_size=20))
def test_packets_come_out_as_they_went_in(cuts: list[int]) -> None:
    reader, whole, at = Packets(), b"".join(WRITTEN), 0
    found: list[Packet | Connect] = []
    for cut in (*sorted(cuts), len(whole)):
        found += reader.feed(whole[at:cut])
        at = cut
    assert found == list(WRITTEN.values())


@given(st.binary(max_size=200), st.sampled_from([0x10, 0x30, 0x32, 0x82, 0xA2, 0x90, 0xF0]))
@example(b"", 0x30)
def test_any_bytes_are_packets_or_refused(body: bytes, first: int) -> None:
    for data in (body, bytes((first, len(body) & 0x7F)) + body):
        try:
            list(Packets().feed(data))
        except MqttError:
            continue


def test_a_large_packet_is_refused_by_its_head() -> None:
    with pytest.raises(MqttError, match="limit"):
        list(Packets().feed(publish("t", bytes(MAX_PACKET_BYTES))[:5]))
