"""The agent's books: kills at every checkpoint, what a restart finds, and what privacy has cost."""

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from fedagent_agent import books
from fedagent_agent.books import FILE, Books, BooksError
from fedagent_agent.core.effects import Key, OpinionAnswer, PendingUpdate
from fedagent_agent.peers.core.records import ArmStats, SlotRecord, StoreSlot
from fedagent_agent.trainer.frames import Open, Train
from fedagent_protocol import messages as m
from fedagent_task.recipe.spec import ModelSpec, PrivacySpec, TaskSpec
from tests.fakes.hand_edge import CHUNK, EDGE, REAL, RUN, HandEdge, digest_of, joined, model_of
from tests.fakes.peer_network import read_slots

SMALL = model_of(3000)
BIG = model_of(3 * CHUNK // 2)
BODY = b"an update of a training"
PRIVATE = TaskSpec(
    model=ModelSpec(kind="softmax", features=64, classes=10),
    privacy=PrivacySpec(mode="local", releases=2),
)


def update_of(number: int, body: bytes, edge: str = EDGE) -> PendingUpdate:
    offer = m.UpdateOffer(
        run=RUN,
        round=number,
        digest=digest_of(body),
        size=len(body),
        chunk_bytes=CHUNK,
        base="0" * 64,
        task="0" * 64,
        stats=m.TrainStats(num_samples=1),
    )
    return PendingUpdate(Key(edge, RUN, number), offer, 1)


def put(made: Books, update: PendingUpdate, body: bytes = BODY, **fields: Any) -> list[Key]:
    path = made.path(update.key.file_name)
    path.write_bytes(body)
    return made.put(update, path, **fields)


def trained(edge: HandEdge, number: int, **fields: Any) -> None:
    edge.serve(edge.order(number, SMALL, **fields), SMALL)
    edge.train(edge.jobs(Train)[-1], BODY)


def test_an_update_that_was_not_offered_yet_is_offered_after_the_restart(tmp_path: Path) -> None:
    edge = joined(tmp_path, task=REAL)
    edge.serve(edge.order(1, SMALL), SMALL)
    assert edge.jobs(Open)[0].offset == 0
    killed = [None, KeyboardInterrupt("agent.books.put")]
    edge.store.books._checkpoint = Mock(side_effect=killed)
    with pytest.raises(KeyboardInterrupt):
        edge.train(edge.jobs(Train)[0], BODY)
    assert not edge.said(m.UpdateOffer)
    edge.restart(EDGE)
    (offer,) = edge.said(m.UpdateOffer)
    assert (offer.digest, offer.first) == (digest_of(BODY), BODY)
    edge.receipt(offer)
    edge.restart(EDGE)
    edge.order(1, SMALL)
    assert not edge.said(m.UpdateOffer), "the receipt is on the disk"
    assert not edge.events("ordered"), "and the round is not trained again"
    edge.serve(edge.order(2, SMALL), SMALL)
    assert edge.jobs(Open)[0].offset == 42, "the stream goes on where it was"
    assert edge.jobs(Open)[0].mark == "of what is before it"


def test_needs_after_a_restart_are_served_from_disk_and_a_lost_file_is_forgotten(
    tmp_path: Path,
) -> None:
    edge = joined(tmp_path)
    offer = edge.round(1, BIG)
    edge.restart(EDGE)
    edge.say(m.Need(run=RUN, round=1, digest=offer.digest, ranges=((0, 2),)))
    edge.later(1.0)
    assert digest_of(b"".join(chunk.data for chunk in edge.said(m.Chunk))) == offer.digest
    for path in (tmp_path / "outbox").glob("*.update"):
        path.unlink()
    edge.restart(EDGE)
    assert not edge.said(m.UpdateOffer)


def test_the_oldest_updates_make_room_and_stray_files_go(tmp_path: Path) -> None:
    made = Books(tmp_path, max_bytes=3000)
    expired = []
    for number in range(1, 6):
        body = bytes([number]) * 999
        expired += put(made, update_of(number, body, f"edge-{number}"), body)
    assert [key.round for key in expired] == [1, 2]
    made.close()
    (tmp_path / "outbox" / "orphan.update.part").write_bytes(b"x")
    damaged = made.path(Key("edge-3", RUN, 3).file_name)
    again = Books(tmp_path)
    assert [kept.key.round for kept in again.load()] == [3, 4, 5]
    damaged.write_bytes(bytes(999))
    assert [kept.key.round for kept in again.load()] == [4, 5], "a power cut has damaged it"
    assert {key.round for key in again.survived().answered} == {1, 2, 3, 4, 5}
    assert again.boots == 2
    assert len(list((tmp_path / "outbox").iterdir())) == 2
    again.close()


def test_a_disk_that_refuses_is_a_decline_not_a_crash(tmp_path: Path) -> None:
    edge = joined(tmp_path)
    edge.store.books._db.execute("PRAGMA query_only = ON")
    edge.serve(edge.order(1, SMALL), SMALL)
    assert len(edge.said(m.Decline)) == 1
    assert not edge.said(m.UpdateOffer)


def test_books_that_cannot_be_used_are_named_with_a_hint(tmp_path: Path) -> None:
    made = Books(tmp_path)
    assert (tmp_path / FILE).stat().st_mode & 0o077 == 0
    made._db.execute("PRAGMA user_version = 99")
    made.close()
    with pytest.raises(BooksError, match="another version of fedagent wrote it"):
        Books(tmp_path)
    (tmp_path / FILE).write_bytes(b"garbage" * 1000)
    with pytest.raises(BooksError, match=FILE) as caught:
        Books(tmp_path)
    assert "have cost of its privacy" in str(caught.value.hint)


# ----------------------------------------------------------- what privacy costs


def test_a_used_up_epsilon_declines_tells_the_edge_and_stays_so(tmp_path: Path) -> None:
    edge = joined(tmp_path, task=PRIVATE)
    trained(edge, 1)
    trained(edge, 2)
    first, last = (offer.context for offer in edge.said(m.UpdateOffer))
    assert isinstance(first, m.ContextReport)
    assert isinstance(last, m.ContextReport)
    assert (first.available, last.available) == (True, False)
    assert last.reason == "epsilon 8 of this run is used up by 2 updates"
    edge.restart(EDGE)
    edge.serve(edge.order(3, SMALL), SMALL)
    decline = edge.said(m.Decline)[-1]
    assert (decline.reason, decline.detail) == (m.DeclineReason.PRIVACY, last.reason)
    assert edge.jobs(Train) == []


def test_a_device_restored_from_a_backup_goes_on_with_what_the_coordinator_knows(
    tmp_path: Path,
) -> None:
    edge = joined(tmp_path, task=PRIVATE)
    trained(edge, 1, releases=0)
    edge.store.close()
    (tmp_path / FILE).unlink()  # the backup is of the day before
    edge.restart(EDGE)
    trained(edge, 2, releases=1)
    edge.serve(edge.order(3, SMALL, releases=2), SMALL)
    decline = edge.said(m.Decline)[-1]
    assert decline.reason == m.DeclineReason.PRIVACY
    assert decline.detail == "epsilon 8 of this run is used up by 2 updates"
    assert len(edge.jobs(Train)) == 1
    assert edge.said(m.ContextReport)[-1].available, "for others it goes on"
    trained(edge, 4, releases=1)
    assert edge.store.books.survived().releases == {RUN: 2}, "what it was told is not kept"


def test_what_was_charged_never_falls_and_no_run_is_forgotten_but_opinions_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(books, "MAX_CHARGED", 2)
    monkeypatch.setattr(books, "MAX_OPINIONS", 2)
    made = Books(tmp_path)
    for number, releases in enumerate((3, 1, 4), 1):
        put(made, update_of(number, BODY), releases=releases)
        opinion = m.Opinion(run=f"{number:032x}", round=1, model="0" * 64, epsilon=0.5, samples=1)
        made.keep(OpinionAnswer(opinion, m.OpinionMode.REPORT), 0.5)
    made.close()
    again = Books(tmp_path)
    assert again.survived().releases == {RUN: 4}
    record = again.opinions()
    assert [answer.opinion.run for answer in record.answers] == [f"{n:032x}" for n in (2, 3)]
    assert record.ever == 1.5
    for run, refused in (("2" * 32, False), ("3" * 32, True)):
        update = PendingUpdate(Key(EDGE, run, 9), update_of(9, BODY).offer, 1)
        if refused:
            with pytest.raises(BooksError, match="2 runs"):
                put(again, update, releases=1)
        else:
            put(again, update, releases=1)
    again.close()


# ------------------------------------------------------------- among neighbours


def test_starts_among_neighbours_are_numbered_upwards_also_over_lost_books(tmp_path: Path) -> None:
    made = Books(tmp_path)
    assert [made.begin_peers(now) for now in (1000, 5, 9000)] == [1000, 1001, 9000]
    made.keep_slot(slot(2, RUN, incarnation=9007))
    made.close()
    again = Books(tmp_path)
    assert again.begin_peers(0) == 9008
    assert again.arms() == {RUN: ArmStats(0.25, 2, 2, 3, 2)}
    again.close()


def slot(number: int, run: str, incarnation: int = 1) -> StoreSlot:
    record = SlotRecord(run=run, round=number, slot=number, opinion=0.5, trained=False)
    return StoreSlot(incarnation, ArmStats(0.25, number, number, 3, number), record)


def test_the_newest_slots_and_arms_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(books, "MAX_SLOTS", 5)
    monkeypatch.setattr(books, "MAX_ARMS", 2)
    made = Books(tmp_path)
    runs = [f"{n:032x}" for n in range(4)]
    for number in range(2, 6):
        for run in runs:
            made.keep_slot(slot(number, run))
    assert list(made.arms()) == runs[-2:]
    kept = [(one.run, one.slot) for one in read_slots(tmp_path)]
    assert kept == [(runs[3], 4), *((run, 5) for run in runs)]
    made.close()
