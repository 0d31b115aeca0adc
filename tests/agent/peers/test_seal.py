"""Envelopes that only two can read: what is changed, repeated, sent back or forged is refused."""

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedagent_agent.peers import seal as sealing
from fedagent_agent.peers.seal import (
    MAX_ENVELOPE_BYTES,
    WINDOW,
    PeerSeal,
    Refusal,
    sealed_bytes,
)
from fedagent_node.data_dir import Identity, load_or_create
from fedagent_protocol.errors import ProtocolError
from fedagent_protocol.peers import MAX_PACKET_BYTES, PeerCard

ENVELOPE = b"belief 0.123456789"


@pytest.fixture(scope="module")
def people(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Identity]:
    return {name: load_or_create(tmp_path_factory.mktemp(name)) for name in ("a", "b", "c")}


@pytest.fixture
def pair(people: dict[str, Identity]) -> tuple[PeerSeal, PeerSeal]:
    return acquainted(people["a"], people["b"])


@contextmanager
def refused(*names: str) -> Iterator[None]:
    with pytest.raises(ProtocolError) as caught:
        yield
    assert caught.value.detail.upper() in names


def seal_of(identity: Identity, *neighbours: Identity, epoch: int = 1) -> PeerSeal:
    return PeerSeal(identity, epoch, frozenset(other.id for other in neighbours))


def acquainted(one: Identity, two: Identity, *, epoch: int = 1) -> tuple[PeerSeal, PeerSeal]:
    a, b = seal_of(one, two, epoch=epoch), seal_of(two, one, epoch=epoch)
    assert b.meet(a.card) == one.id
    assert a.meet(b.card) == two.id
    return a, b


def ids(pair: tuple[PeerSeal, PeerSeal]) -> tuple[str, str]:
    return pair[0].identity.id, pair[1].identity.id


@pytest.mark.parametrize("size", [0, 211, 212, MAX_ENVELOPE_BYTES])
def test_an_envelope_arrives(pair: tuple[PeerSeal, PeerSeal], size: int) -> None:
    (a, b), (ida, idb) = pair, ids(pair)
    packet = a.seal(idb, bytes(size))
    assert len(packet) == sealed_bytes(size) <= MAX_PACKET_BYTES
    assert len(packet) % 256 == 0
    assert b.open(ida, packet) == bytes(size)
    assert a.open(idb, b.seal(ida, b"answer")) == b"answer"
    with refused("TOO_LONG"):
        a.seal(idb, bytes(MAX_ENVELOPE_BYTES + 1))


def test_a_relay_reads_nothing_and_equal_envelopes_look_different(
    pair: tuple[PeerSeal, PeerSeal],
) -> None:
    a, idb = pair[0], ids(pair)[1]
    packets = [a.seal(idb, ENVELOPE) for _ in range(3)]
    assert len(set(packets)) == 3
    assert len({packet[25:] for packet in packets}) == 3
    assert not any(ENVELOPE[i : i + 6] in p for p in packets for i in range(len(ENVELOPE) - 5))
    assert len({len(a.seal(idb, bytes(size))) for size in range(200)}) == 1


def test_every_changed_byte_is_noticed(pair: tuple[PeerSeal, PeerSeal]) -> None:
    (a, b), (ida, idb) = pair, ids(pair)
    packet = a.seal(idb, ENVELOPE)
    for place in range(len(packet)):
        changed = bytearray(packet)
        changed[place] ^= 1
        with refused("FORGED", "EPOCH", "PACKET", "REPLAY"):
            b.open(ida, bytes(changed))
    assert b.open(ida, packet) == ENVELOPE, "forgeries do not move the window"


@given(data=st.binary(max_size=600))
@settings(max_examples=60, deadline=None)
def test_any_bytes_are_refused_with_a_reason(tmp: tuple[PeerSeal, str], data: bytes) -> None:
    b, ida = tmp
    with refused(*Refusal.__members__):
        b.open(ida, data)


@pytest.fixture(scope="module")
def tmp(people: dict[str, Identity]) -> tuple[PeerSeal, str]:
    return acquainted(people["a"], people["b"])[1], people["a"].id


@given(order=st.permutations(range(12)), jump=st.sampled_from([0, 500, WINDOW, 3 * WINDOW]))
@settings(max_examples=15, deadline=None)
def test_the_window_never_opens_twice(
    people: dict[str, Identity], order: list[int], jump: int
) -> None:
    pair = acquainted(people["a"], people["b"])
    (a, b), (ida, idb) = pair, ids(pair)
    packets = []
    for n in range(12):
        if n == 6:
            for _ in range(jump):
                a.seal(idb, b"")
        packets.append(a.seal(idb, bytes([n])))
    opened = []
    for n in [*order, *reversed(order)]:
        try:
            opened.append(b.open(ida, packets[n])[0])
        except ProtocolError as error:
            assert error.reason == "peer_replay"
    assert len(opened) == len(set(opened))
    assert order[0] in opened
    if not jump:
        assert sorted(opened) == list(range(12))


def test_a_card_of_a_new_start_with_the_old_key_brings_another_key_stream(
    people: dict[str, Identity],
) -> None:
    a, b = acquainted(people["a"], people["b"])
    before = a.seal(b.identity.id, ENVELOPE)
    again = msgspec.structs.replace(
        b.card, epoch=2, signature=b.identity.sign(sealing._signed(b.card.agreement, 2))
    )
    a.meet(again)
    after = a.seal(b.identity.id, ENVELOPE)
    there, then = before[25:-16], after[25:-16]
    assert sum(x == y for x, y in zip(there, then, strict=True)) < 20, "counters began again"


def test_only_the_right_neighbour_opens_it(people: dict[str, Identity]) -> None:
    a, b, c = (people[name] for name in "abc")
    seals = {who.id: seal_of(who, a, b, c) for who in (a, b, c)}
    for one in seals.values():
        for two in seals.values():
            if one is not two:
                one.meet(two.card)
    packet = seals[a.id].seal(b.id, ENVELOPE)
    # Not another one, not as another's, and not who sent it.
    for reader, sender in ((c, a), (b, c), (a, b)):
        with refused("FORGED"):
            seals[reader.id].open(sender.id, packet)
    assert seals[b.id].open(a.id, packet) == ENVELOPE


def test_strangers_are_refused_and_no_key_is_printed(people: dict[str, Identity]) -> None:
    a, c = seal_of(people["a"], people["b"]), seal_of(people["c"], people["a"])
    with refused("STRANGER"):
        a.meet(c.card)
    for step in (a.seal, a.open):
        with refused("STRANGER"):
            step(c.identity.id, bytes(256))
    assert "Private" not in repr(a)


def test_a_card_that_its_neighbour_did_not_make_is_refused(people: dict[str, Identity]) -> None:
    a, b, c = (people[name] for name in "abc")
    weak, other = bytes(32), seal_of(c, a, b).card
    # A key that gives everybody the secret, though it is signed.
    signed = a.sign(sealing._signed(weak, 1))
    lies = [
        PeerCard(identity=a.public_bytes, agreement=weak, epoch=1, signature=signed),
        msgspec.structs.replace(other, identity=a.public_bytes),
        msgspec.structs.replace(other, agreement=b"\x01" * 32),
        msgspec.structs.replace(other, epoch=99),
        msgspec.structs.replace(other, signature=bytes(64)),
    ]
    receiver = seal_of(b, a, c)
    for lie in lies:
        with refused("CARD"):
            receiver.meet(lie)
    assert not receiver.epoch_of(a.id)
    receiver.meet(seal_of(a, b).card)
    with refused("TWIN"):  # two keys in one start: a copied device
        receiver.meet(seal_of(a, b).card)


def test_the_same_card_again_does_not_start_counters_anew(
    pair: tuple[PeerSeal, PeerSeal],
) -> None:
    (a, b), (ida, idb) = pair, ids(pair)
    first = a.seal(idb, ENVELOPE)
    b.open(ida, first)
    a.meet(b.card)
    b.meet(a.card)
    assert a.seal(idb, ENVELOPE)[:25] != first[:25]
    with refused("REPLAY"):
        b.open(ida, first)


def test_whoever_an_edge_names_leaves_keys_for_declared_neighbours(
    people: dict[str, Identity], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sealing, "MAX_SESSIONS", 1)
    a, b, c = people.values()
    others = frozenset({b.id, c.id})
    seal = PeerSeal(a, 1, others)
    seal.meet(seal_of(b).card)
    with refused("CROWDED"):
        seal.meet(seal_of(c).card)
    seal = PeerSeal(a, 1, others, reserved=frozenset({c.id}))
    for identity in (b, c):
        assert seal.meet(seal_of(identity).card) == identity.id
