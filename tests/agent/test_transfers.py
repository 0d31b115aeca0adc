"""Models in and updates out: gaps, resumes, wrong content, credit, and a busy link."""

from pathlib import Path

import pytest
from msgspec import structs

from fedagent_agent.core.uploads import REPEAT_S
from fedagent_agent.trainer.frames import Train
from fedagent_node.effects import LinkDown, LinkUp
from fedagent_protocol import messages as m
from fedagent_protocol.transfer import PIECE_BYTES
from tests.fakes.hand_edge import EDGE, LINK, REAL, RUN, HandEdge, digest_of, joined, model_of

PIECE = PIECE_BYTES // 4
BIG = model_of(20 * PIECE + 1000)
"""Above what is kept in memory, so that it goes through files."""
SMALL = model_of(3 * 1024)


@pytest.fixture
def edge(tmp_path: Path) -> HandEdge:
    return joined(tmp_path, chunk_bytes=PIECE)


def chunk(edge: HandEdge, model: bytes, index: int, **wrong: bytes) -> m.Chunk:
    piece = model[index * edge.chunk_bytes : (index + 1) * edge.chunk_bytes]
    data = wrong.get("data", piece)
    return m.Chunk(run=RUN, round=1, digest=digest_of(model), index=index, data=data)


def ordered(edge: HandEdge, model: bytes) -> None:
    """Order a round, hand out the task, and let the agent ask for the model."""
    edge.serve(edge.order(1, model), model, lacks=(digest_of(model),))


def asked(edge: HandEdge) -> list[int]:
    return [
        i for need in edge.said(m.Need) for start, stop in need.ranges for i in range(start, stop)
    ]


def test_a_model_comes_whole_whatever_the_order_of_its_chunks(edge: HandEdge) -> None:
    model, count = BIG, 21
    ordered(edge, model)
    for index in reversed(range(count)):
        edge.say(chunk(edge, model, index))
        edge.say(chunk(edge, model, index))
    (offer,) = edge.said(m.UpdateOffer)
    assert offer.base == digest_of(model)
    assert edge.core.counters["chunk_twice"] == count - 1, "the last one ended it"


def test_lost_chunks_are_asked_for_again_and_only_those(edge: HandEdge) -> None:
    ordered(edge, BIG)
    for index in (0, 2, 3):
        edge.say(chunk(edge, BIG, index))
    before = len(edge.said(m.Need))
    edge.later(9.0)
    again = edge.said(m.Need)[before]
    wanted = {i for start, stop in again.ranges for i in range(start, stop)}
    assert 1 in wanted
    assert not wanted & {0, 2, 3}


def test_a_model_that_is_not_what_it_is_called_is_declined(edge: HandEdge) -> None:
    ordered(edge, BIG)
    for index in range(21):
        data = bytes(len(BIG) - 20 * PIECE if index == 20 else PIECE)
        edge.say(chunk(edge, BIG, index, data=data))
    assert [d.reason for d in edge.said(m.Decline)] == [m.DeclineReason.ERROR]
    assert edge.core.counters["digest_mismatch"] == 1
    edge.now += 1
    edge.serve(edge.order(2, BIG), BIG)
    assert edge.said(m.UpdateOffer)[-1].round == 2


def test_after_a_reconnect_credit_is_renewed(edge: HandEdge) -> None:
    ordered(edge, BIG)
    edge.say(chunk(edge, BIG, 0))
    edge.take(LinkDown(LINK))
    edge.now += 1
    edge.take(LinkUp(LINK))
    out = edge.say(m.Welcome(edge=EDGE))
    (need,) = edge.said(m.Need, out)
    assert need.ranges[0] == (1, 2)


def test_a_transfer_of_many_chunks_measures_the_download(edge: HandEdge) -> None:
    ordered(edge, BIG)
    sent = 0
    while not edge.said(m.UpdateOffer):
        for index in asked(edge)[sent:]:
            edge.now += 0.01
            edge.say(chunk(edge, BIG, index))
            sent += 1
    rate = edge.core.sessions[EDGE].measured.download_bps
    assert rate == pytest.approx(8 * PIECE / 0.01, rel=0.5)


# ------------------------------------------------------------------------ out


@pytest.fixture
def uploader(tmp_path: Path) -> HandEdge:
    """An agent with an update of twenty chunks that was just offered."""
    edge = joined(tmp_path, chunk_bytes=PIECE, task=REAL)
    edge.serve(edge.order(1, SMALL), SMALL)
    edge.core.sessions[EDGE].measured.up.rate = 1e9
    edge.train(edge.jobs(Train)[0], BODY)
    return edge


BODY = bytes(range(256)) * (20 * PIECE // 256)


def need(offer: m.UpdateOffer, *ranges: tuple[int, int]) -> m.Need:
    return m.Need(run=RUN, round=1, digest=offer.digest, ranges=ranges)


def test_chunks_follow_the_edges_credit_and_are_the_update(uploader: HandEdge) -> None:
    (offer,) = uploader.said(m.UpdateOffer)
    assert offer.first == BODY[: 4 * PIECE]
    for start in range(4, 20, 2):
        uploader.say(need(offer, (start, start + 2)))
    chunks = uploader.said(m.Chunk)
    assert [c.index for c in chunks] == list(range(4, 20, 2))
    assert offer.first + b"".join(c.data for c in chunks) == BODY
    uploader.now += 2.0
    uploader.say(need(offer))
    rate = uploader.core.sessions[EDGE].measured.upload_bps
    assert rate == pytest.approx(8 * len(BODY) / 2.0)


def test_the_link_is_never_handed_more_than_two_messages(uploader: HandEdge) -> None:
    (offer,) = uploader.said(m.UpdateOffer)
    uploader.pending = PIECE_BYTES
    uploader.say(need(offer, (4, 8), (8, 12)))
    assert [c.index for c in uploader.said(m.Chunk)] == [4]
    uploader.pending = 2 * PIECE_BYTES
    uploader.later(0.5)
    assert [c.index for c in uploader.said(m.Chunk)] == [4]
    uploader.pending = 0
    uploader.later(0.2)
    assert [c.index for c in uploader.said(m.Chunk)] == [4, 8]


def test_messages_are_as_long_as_the_link_carries_in_a_second(uploader: HandEdge) -> None:
    (offer,) = uploader.said(m.UpdateOffer)
    uploader.core.sessions[EDGE].measured.up.rate = PIECE
    uploader.say(need(offer, (4, 8)))
    sizes = [len(c.data) for c in uploader.said(m.Chunk)]
    assert sizes == [2 * PIECE, 2 * PIECE], (
        "what went out at once makes it believe in twice as much"
    )


def test_the_offer_is_repeated_until_the_receipt(uploader: HandEdge) -> None:
    def live(seconds: float) -> None:
        for _ in range(int(seconds)):
            uploader.later(1.0)
            uploader.say(m.EdgeBeacon(edge=EDGE))

    live(60)
    offers = uploader.said(m.UpdateOffer)
    assert len(offers) == pytest.approx(60 / REPEAT_S, abs=2)
    assert {offer.digest for offer in offers} == {offers[0].digest}
    # Of another update of the round: that is no receipt for this one.
    uploader.receipt(structs.replace(offers[0], digest="0" * 64))
    live(2 * REPEAT_S)
    offers = uploader.said(m.UpdateOffer)
    assert len(offers) == pytest.approx(60 / REPEAT_S + 2, abs=2)
    assert uploader.core.counters["receipt_unknown"] == 1
    uploader.receipt(offers[0])
    live(2 * REPEAT_S)
    assert len(uploader.said(m.UpdateOffer)) == len(offers)
