"""Work that a round's end interrupts: a later order of the edge is answered with the rest."""

from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from fedagent_agent.core.effects import EdgesFound
from fedagent_agent.trainer.frames import Train
from fedagent_node.data_dir import Identity
from fedagent_node.effects import LinkDown
from fedagent_protocol import messages as m
from fedagent_protocol.signed import WorkClaim, is_claim
from tests.fakes.hand_edge import EDGE, LINK, REAL, RUN, HandEdge, digest_of, joined, model_of
from tests.fakes.voices import identity

PIECE = 64 * 1024
OLD, NEW = model_of(5 * PIECE), model_of(5 * PIECE, 1)
BODY = bytes(range(250)) * 1000


BEGUN: dict[str, Any] = {"made_in": 1, "made_from": digest_of(OLD)}


def closed(number: int, *, kept: bool = True) -> m.EdgeToAgent:
    return m.RoundClosed(run=RUN, round=number, kept=kept)


def chunk(model: bytes, index: int, number: int) -> m.Chunk:
    data = model[index * PIECE : (index + 1) * PIECE]
    return m.Chunk(run=RUN, round=number, digest=digest_of(model), index=index, data=data)


@pytest.fixture
def me() -> Identity:
    return identity("agent")


@pytest.fixture
def edge(tmp_path: Path, me: Identity) -> HandEdge:
    return joined(tmp_path, chunk_bytes=PIECE, task=REAL, identity=me)


def downloading(edge: HandEdge) -> None:
    """Bring an order to where two chunks of five are here."""
    edge.serve(edge.order(1, OLD, give_up_ms=200_000), NEW, lacks=(digest_of(OLD),))
    for index in (0, 1):
        edge.say(chunk(OLD, index, 1))


def uploading(edge: HandEdge) -> m.UpdateOffer:
    """Bring an order to where two chunks of the update were sent."""
    edge.serve(edge.order(1, OLD, credit=0), OLD)
    edge.train(edge.jobs(Train)[-1], BODY)
    offer = edge.said(m.UpdateOffer)[-1]
    edge.say(m.Need(run=RUN, round=1, digest=offer.digest, ranges=((0, 2),)))
    return offer


def test_a_download_goes_on_with_what_is_here(edge: HandEdge) -> None:
    downloading(edge)
    edge.say(closed(1))
    assert not edge.events("abandoned")
    edge.order(2, NEW, **BEGUN)
    needs = [need for need in edge.said(m.Need) if need.digest == digest_of(OLD)]
    asked = [i for need in needs for start, stop in need.ranges for i in range(start, stop)]
    assert asked == [0, 1, 2, 3, 4], "what is under way is not asked for again"
    for index in (2, 3, 4):
        edge.say(chunk(OLD, index, 2))
    edge.train(edge.jobs(Train)[-1], BODY)
    (offer,) = edge.said(m.UpdateOffer)
    assert (offer.round, offer.made_in, offer.base) == (2, 1, digest_of(OLD))


def test_an_upload_goes_on_under_a_claim_of_the_round_that_pays(
    edge: HandEdge, me: Identity
) -> None:
    first = uploading(edge)
    assert edge.core.urgent()
    edge.say(closed(1))
    assert not edge.core.urgent(), "nobody waits for it, so its link is dialled at leisure"
    edge.out.clear()
    for _ in range(4):
        assert not edge.said(m.UpdateOffer, edge.later(8.0)), "nothing is sent without an order"
        edge.say(m.EdgeBeacon(edge=EDGE))
    edge.order(2, NEW, **BEGUN)
    (offer,) = edge.said(m.UpdateOffer)
    kept = (offer.digest, offer.base, offer.stats)
    assert kept == (first.digest, first.base, first.stats)
    assert (offer.round, offer.made_in, offer.first) == (2, 1, b"")
    mine = structs.replace(offer, context=None)
    assert is_claim(mine.claim, me.id, WorkClaim.offered(mine, EDGE, me.id).statement)
    other = structs.replace(mine, round=1, made_in=0)
    assert not is_claim(mine.claim, me.id, WorkClaim.offered(other, EDGE, me.id).statement)
    edge.say(m.Need(run=RUN, round=2, digest=offer.digest, ranges=((2, 4),)))
    edge.later(1.0)
    assert [c.index for c in edge.said(m.Chunk)] == [2, 3]
    edge.receipt(offer)
    assert not edge.core.uploads.by_key


def test_an_update_hurries_the_link_only_while_its_edge_is_in_sight(edge: HandEdge) -> None:
    uploading(edge)
    edge.take(LinkDown(LINK))
    assert edge.core.urgent(), "it may be back at once"
    edge.later(60.0)
    assert edge.events("edge_lost")
    assert not edge.core.urgent(), "it may never return"
    edge.take(EdgesFound(LINK, (EDGE,)))
    assert edge.core.urgent()


@pytest.mark.parametrize("begin", [downloading, uploading])
def test_who_is_not_asked_for_the_rest_begins_anew(edge: HandEdge, begin: object) -> None:
    assert callable(begin)
    begin(edge)
    edge.say(closed(1))
    edge.out.clear()
    edge.serve(edge.order(2, NEW, made_in=4, made_from=digest_of(OLD)), NEW)
    assert edge.jobs(Train)[-1].model.endswith(digest_of(NEW)), "it trains from the new model"
    assert all(offer.made_in == 0 for offer in edge.said(m.UpdateOffer))
    assert not edge.core.uploads.by_key
