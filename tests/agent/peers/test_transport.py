"""Cards and envelopes through edges: met, sealed, refused with a count, and by which edge."""

from collections import Counter
from pathlib import Path

import msgspec
import pytest

from fedagent_agent.peers.core.transport import PeerTransport
from fedagent_agent.peers.seal import PeerSeal
from fedagent_node.data_dir import Identity, load_or_create
from fedagent_node.effects import Effect, Send
from fedagent_protocol.errors import ProtocolError
from fedagent_protocol.messages import PeerDeliver, PeerSend
from fedagent_protocol.peers import Envelope, PeerPacket, decode_relayed, encode_relayed

EDGES = ("hall", "yard")
ENVELOPE = Envelope(run="ab" * 16, slot=3, seq=65_537)


@pytest.fixture
def people(tmp_path: Path) -> tuple[Identity, Identity]:
    return load_or_create(tmp_path / "a"), load_or_create(tmp_path / "b")


def transport_of(me: Identity, *, epoch: int = 1) -> PeerTransport:
    return PeerTransport(PeerSeal(me, epoch), Counter())


def bodies(effects: list[Effect]) -> list[bytes]:
    """What leaves; each is sent by every way."""
    sent = [e.message for e in effects if isinstance(e, Send)]
    return [message.body for message in sent if isinstance(message, PeerSend)]


def hand(to: PeerTransport, sender: Identity, effects: list[Effect], now: float) -> list[Effect]:
    """Deliver what was sent, by the hall; return the answers."""
    answers: list[Effect] = []
    for body in bodies(effects):
        answers += to.receive("hall", PeerDeliver(sender=sender.id, body=body), now)[0]
    return answers


def acquainted(people: tuple[Identity, Identity]) -> tuple[PeerTransport, PeerTransport]:
    a, b = transport_of(people[0]), transport_of(people[1])
    shown = a.admit({people[1].id: EDGES[:1]}, 0.0)
    b.admit({people[0].id: EDGES[:1]}, 0.0)
    assert bodies(hand(b, people[0], shown, 0.0)) == []
    hand(a, people[1], b.send(people[0].id, ENVELOPE, 1.0), 1.0)
    hand(a, people[1], [Send("hall", PeerSend(to=people[0].id, body=card_of(b)))], 2.0)
    return a, b


def card_of(transport: PeerTransport) -> bytes:
    return encode_relayed(transport._seal.card)


def test_a_restarted_neighbour_is_shown_the_card_again(people: tuple[Identity, Identity]) -> None:
    a, b = acquainted(people)
    again = transport_of(people[1], epoch=2)
    again.admit({people[0].id: EDGES[:1]}, 10.0)
    answer = hand(again, people[0], a.send(people[1].id, ENVELOPE, 10.0), 11.0)
    assert again.counters == {"peer_no_card": 1}
    back = hand(a, people[1], answer, 11.1)
    hand(again, people[0], back, 11.2)
    (body,) = bodies(again.send(people[0].id, ENVELOPE, 12.0))
    assert a.receive("hall", PeerDeliver(sender=people[1].id, body=body), 12.1)[1] == ENVELOPE
    old = bodies(b.send(people[0].id, ENVELOPE, 13.0))[0]
    assert a.receive("hall", PeerDeliver(sender=people[1].id, body=old), 13.1)[1] is None
    assert a.counters["peer_epoch"] == 1
    hand(a, people[1], [Send("hall", PeerSend(to=people[0].id, body=card_of(b)))], 14.0)
    assert a.counters["peer_old_card"] == 1


def test_what_is_refused_is_counted_by_reason(people: tuple[Identity, Identity]) -> None:
    a, b = acquainted(people)
    packet = decode_relayed(bodies(a.send(people[1].id, ENVELOPE, 5.0))[0])
    assert isinstance(packet, PeerPacket)
    forged = PeerPacket(data=packet.data[:-1] + bytes([packet.data[-1] ^ 1]))
    card = msgspec.structs.replace(a._seal.card, epoch=99)
    for relayed in (forged, PeerPacket(data=bytes(7)), card):
        body = encode_relayed(relayed)
        assert b.receive("hall", PeerDeliver(sender=people[0].id, body=body), 6.0) == ([], None)
        b.receive("hall", PeerDeliver(sender="stranger", body=body), 6.0)
    assert b.counters == {
        "peer_forged": 1, "peer_packet": 1, "peer_card": 1, "peer_stranger": 3,
    }  # fmt: skip
    with pytest.raises(ProtocolError):
        b.receive("hall", PeerDeliver(sender=people[0].id, body=b"\xc1"), 7.0)
