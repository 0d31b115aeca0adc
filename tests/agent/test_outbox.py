"""Kills at every checkpoint of the disk, and what the next process does about it."""

from pathlib import Path

import pytest

from fedagent_agent.core.effects import Key, PendingUpdate
from fedagent_agent.errors import OutboxError
from fedagent_agent.outbox import INLINE_BYTES, Outbox
from fedagent_agent.trainer.frames import Open, Train
from fedagent_protocol.messages import (
    Chunk,
    Decline,
    Need,
    Receipt,
    ReceiptStatus,
    TrainStats,
    UpdateOffer,
)
from tests.fakes.hand_edge import (
    CHUNK,
    EDGE,
    OTHER,
    REAL,
    RUN,
    HandEdge,
    digest_of,
    joined,
    model_of,
)

SMALL = model_of(3000)
BIG = model_of(3 * CHUNK // 2)
BODY = b"an update of a training"


class KilledError(BaseException):
    """Not an Exception: nothing may catch a kill."""


class Killer:
    """A checkpoint hook that counts, and kills at one hit."""

    def __init__(self) -> None:
        self.hits: list[str] = []
        self.at = -1

    def __call__(self, name: str) -> None:
        self.hits.append(name)
        if len(self.hits) - 1 == self.at:
            raise KilledError(name)


def offer_of(number: int, body: bytes) -> UpdateOffer:
    return UpdateOffer(
        run=RUN,
        round=number,
        digest=digest_of(body),
        size=len(body),
        chunk_bytes=CHUNK,
        base="0" * 64,
        task="0" * 64,
        stats=TrainStats(num_samples=1),
    )


def play(edge: HandEdge, model: bytes) -> None:
    """Two rounds, the first with a receipt."""
    edge.join()
    edge.receipt(edge.round(1, model))
    edge.round(2, model)


@pytest.mark.parametrize("model", [SMALL, BIG], ids=["inline", "file"])
def test_killed_anywhere_the_agent_goes_on_and_answers_each_round_once(
    tmp_path: Path, model: bytes
) -> None:
    counted = Killer()
    play(HandEdge(tmp_path / "whole", checkpoint=counted), model)
    assert {"agent.outbox.before-put", "agent.outbox.after-put"} <= set(counted.hits)
    for at in range(len(counted.hits)):
        killer = Killer()
        killer.at = at
        edge = HandEdge(tmp_path / f"{at}", checkpoint=killer)
        with pytest.raises(KilledError):
            play(edge, model)
        told = [offer.round for offer in edge.said(UpdateOffer)]
        edge.restart(EDGE)
        kept = [offer.round for offer in edge.said(UpdateOffer)]
        assert len(kept) <= 2
        # What the old process had offered and had no receipt for is offered again.
        assert not told or 1 in told
        for number in (1, 2):
            edge.serve(edge.order(number, model), model)
        offers = {offer.round: offer for offer in edge.said(UpdateOffer)}
        assert 2 in offers
        edge.receipt(offers[2])
        assert not edge.core.uploads.by_key
        edge.store.close()
        left = list((tmp_path / f"{at}" / "outbox").glob("*.update*"))
        assert left == []


def test_an_update_that_was_trained_but_not_offered_is_offered_after_the_restart(
    tmp_path: Path,
) -> None:
    killer = Killer()
    edge = joined(tmp_path, task=REAL, checkpoint=killer)
    edge.serve(edge.order(1, SMALL), SMALL)
    start = edge.jobs(Train)[0]
    edge.checkpoint = killer
    killer.at = len(killer.hits) + 2
    with pytest.raises(KilledError, match="before-offer"):
        edge.train(start, BODY)
    assert not edge.said(UpdateOffer)
    edge.restart(EDGE)
    (offer,) = edge.said(UpdateOffer)
    assert (offer.digest, offer.first) == (digest_of(BODY), BODY)
    edge.receipt(offer)
    edge.restart(EDGE)
    assert len(edge.said(UpdateOffer)) <= 1, "the deletion may wait for the next commit"


def test_a_receipt_is_on_disk_after_the_idle_commit(tmp_path: Path) -> None:
    edge = joined(tmp_path)
    edge.receipt(edge.round(1, SMALL))
    edge.later(3.0)
    edge.restart(EDGE)
    assert not edge.said(UpdateOffer)


def test_a_round_that_was_answered_is_not_trained_again_after_a_restart(tmp_path: Path) -> None:
    edge = joined(tmp_path)
    edge.receipt(edge.round(1, SMALL))
    edge.later(3.0)
    edge.restart(EDGE)
    edge.serve(edge.order(1, SMALL), SMALL)
    assert not edge.events("ordered")
    assert not edge.said(UpdateOffer)


def test_a_stream_goes_on_where_the_last_kept_training_left_it(tmp_path: Path) -> None:
    edge = joined(tmp_path, task=REAL)
    edge.serve(edge.order(1, SMALL), SMALL)
    assert edge.jobs(Open)[0].offset == 0
    edge.train(edge.jobs(Train)[0], BODY)
    edge.restart(EDGE)
    edge.serve(edge.order(2, SMALL), SMALL)
    assert edge.jobs(Open)[0].offset == 42


def test_needs_after_a_restart_are_served_from_disk(tmp_path: Path) -> None:
    edge = joined(tmp_path)
    offer = edge.round(1, BIG)
    edge.restart(EDGE)
    edge.say(Need(run=RUN, round=1, digest=offer.digest, ranges=((0, 2),)))
    chunks = edge.said(Chunk)
    assert len(chunks) == 2


def test_an_update_whose_file_is_gone_is_forgotten(tmp_path: Path) -> None:
    edge = joined(tmp_path)
    edge.round(1, BIG)
    edge.store.abandon()
    for path in (tmp_path / "outbox").glob("*.update"):
        path.unlink()
    edge.boot()
    edge.out.clear()
    edge.join()
    assert not edge.said(UpdateOffer)


def test_files_of_no_update_are_removed_at_the_start(tmp_path: Path) -> None:
    Outbox(tmp_path).close()
    (tmp_path / "orphan.update").write_bytes(b"x")
    (tmp_path / "orphan.update.part").write_bytes(b"x")
    box = Outbox(tmp_path)
    box.load()
    assert not list(tmp_path.glob("*.update*"))
    box.close()


def test_boots_are_counted(tmp_path: Path) -> None:
    for expected in (1, 2, 3):
        box = Outbox(tmp_path)
        assert box.boots == expected
        box.abandon()


def test_the_oldest_updates_make_room(tmp_path: Path) -> None:
    box = Outbox(tmp_path, max_bytes=3 * INLINE_BYTES)
    bodies = [bytes([n]) * (INLINE_BYTES - 1) for n in range(5)]
    for number, body in enumerate(bodies, 1):
        box.put(PendingUpdate(Key(f"edge-{number}", RUN, number), offer_of(number, body), 1), body)
        for key in box.over_limit():
            box.drop(key)
    box.close()
    again = Outbox(tmp_path, max_bytes=3 * INLINE_BYTES)
    assert [kept.key.round for kept in again.load()] == [3, 4, 5]
    assert {key.round for key in again.answered()} == {1, 2, 3, 4, 5}
    again.close()


def test_a_dropped_update_is_told_to_the_core(tmp_path: Path) -> None:
    edge = HandEdge(tmp_path)
    edge.store.outbox._max_bytes = 5000
    edge.join()
    edge.join(edge=OTHER)
    edge.round(1, SMALL)
    edge.serve(edge.order(2, SMALL, edge=OTHER), SMALL)
    assert [key.edge for key in edge.core.uploads.by_key] == [OTHER]
    assert edge.core.counters["outbox_full"] == 1


def test_a_disk_that_refuses_is_a_decline_not_a_crash(tmp_path: Path) -> None:
    edge = joined(tmp_path)
    edge.store.outbox._db.execute("PRAGMA query_only = ON")
    edge.serve(edge.order(1, SMALL), SMALL)
    declines = edge.said(Decline)
    assert len(declines) == 1
    assert not edge.said(UpdateOffer)


@pytest.mark.parametrize(("version", "age"), [(99, "newer"), (1, "older")])
def test_an_outbox_of_other_software_is_refused_with_the_hint(
    tmp_path: Path, version: int, age: str
) -> None:
    box = Outbox(tmp_path)
    box._db.execute(f"PRAGMA user_version = {version}")
    box.close()
    with pytest.raises(OutboxError, match=f"{age} software"):
        Outbox(tmp_path)


def test_an_outbox_that_is_no_database_is_refused_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "outbox.sqlite").write_bytes(b"garbage" * 1000)
    with pytest.raises(OutboxError, match=r"outbox\.sqlite"):
        Outbox(tmp_path)


def test_a_receipt_for_an_edge_it_was_not_sent_to_ends_nothing(tmp_path: Path) -> None:
    edge = joined(tmp_path, OTHER)
    offer = edge.round(1, SMALL)
    stray = Receipt(run=RUN, round=1, digest=offer.digest, status=ReceiptStatus.ACCEPTED)
    edge.say(stray, edge=OTHER)
    assert [key.edge for key in edge.core.uploads.by_key] == [EDGE]
