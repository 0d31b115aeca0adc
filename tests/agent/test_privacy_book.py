"""An update is charged before it can leave, whatever ends the process and whenever."""

import json
from itertools import count
from pathlib import Path

import pytest

from fedagent_agent.errors import PrivacyBookError
from fedagent_agent.privacy_book import PrivacyBook
from fedagent_agent.trainer.frames import Failed, Train
from fedagent_protocol.messages import (
    ContextReport,
    Decline,
    DeclineReason,
    UpdateOffer,
)
from fedagent_task.recipe.spec import ModelSpec, PrivacySpec, TaskSpec
from tests.fakes.hand_edge import RUN, HandEdge, Outward, joined, model_of

PRIVATE = TaskSpec(
    model=ModelSpec(kind="softmax", features=64, classes=10),
    privacy=PrivacySpec(mode="local", releases=2),
)
MODEL, UPDATE = model_of(2000), model_of(2000, 3)


class _KilledError(BaseException):
    pass


def ordered(edge: HandEdge, number: int, releases: int) -> list[Outward]:
    """Order a round of a run that has had so many updates."""
    return edge.order(number, MODEL, releases=releases)


def counted(folder: Path) -> int:
    book = folder / "privacy.json"
    return int(json.loads(book.read_bytes())["releases"][RUN]) if book.exists() else 0


def test_no_kill_leaves_an_update_that_is_not_charged(tmp_path: Path) -> None:
    """At every failpoint between noise and offer, in turn."""
    for kill_at in count(1):
        passed: list[str] = []

        def checkpoint(name: str, passed: list[str] = passed, kill_at: int = kill_at) -> None:
            passed.append(name)
            if len(passed) == kill_at:
                raise _KilledError

        folder = tmp_path / str(kill_at)
        edge = joined(folder, task=PRIVATE, checkpoint=checkpoint)
        try:
            edge.serve(edge.order(1, MODEL), MODEL)
            edge.train(edge.jobs(Train)[-1], UPDATE)
        except _KilledError:
            pass
        else:
            break
        edge.checkpoint = lambda _: None
        edge.restart()
        assert counted(folder) >= len(edge.store.outbox.load()), f"killed at {passed[-1]}"
    assert {"agent.privacy.before-charge", "agent.privacy.charged"} <= set(passed)
    assert passed.index("agent.privacy.charged") < passed.index("agent.outbox.before-put")


def test_a_used_up_epsilon_declines_tells_the_edge_and_stays_so(tmp_path: Path) -> None:
    edge = joined(tmp_path, task=PRIVATE)
    for number in (1, 2):
        edge.serve(edge.order(number, MODEL), MODEL)
        edge.train(edge.jobs(Train)[-1], UPDATE)
    first, last = (offer.context for offer in edge.said(UpdateOffer))
    assert isinstance(first, ContextReport)
    assert first.available
    report = last
    assert isinstance(report, ContextReport)
    assert not report.available
    assert report.reason == "epsilon 8 of this run is used up by 2 updates"
    edge.restart("e" * 32)
    edge.serve(edge.order(3, MODEL), MODEL)
    decline = edge.said(Decline)[-1]
    assert (decline.reason, decline.detail) == (DeclineReason.PRIVACY, report.reason)
    assert edge.jobs(Train) == []


def test_a_device_restored_from_a_backup_goes_on_with_what_the_coordinator_knows(
    tmp_path: Path,
) -> None:
    edge = joined(tmp_path, task=PRIVATE)
    edge.serve(ordered(edge, 1, 0), MODEL)
    edge.train(edge.jobs(Train)[-1], UPDATE)
    edge.store.close()
    (tmp_path / "privacy.json").unlink()  # the backup is of the day before
    edge.restart("e" * 32)
    edge.serve(ordered(edge, 2, 1), MODEL)
    edge.train(edge.jobs(Train)[-1], UPDATE)
    assert counted(tmp_path) == 1
    trained = len(edge.jobs(Train))
    edge.serve(ordered(edge, 3, 2), MODEL)
    decline = edge.said(Decline)[-1]
    assert decline.reason == DeclineReason.PRIVACY
    assert decline.detail == "epsilon 8 of this run is used up by 2 updates"
    assert len(edge.jobs(Train)) == trained


def test_whoever_orders_makes_no_device_count_without_its_work(tmp_path: Path) -> None:
    edge = joined(tmp_path, task=PRIVATE)
    edge.serve(ordered(edge, 1, 2**53 - 1), MODEL)
    assert edge.said(Decline)[-1].reason == DeclineReason.PRIVACY
    assert edge.jobs(Train) == []
    assert edge.said(ContextReport)[-1].available, "for others it goes on"
    edge.serve(ordered(edge, 2, 1), MODEL)
    edge.train(edge.jobs(Train)[-1], UPDATE)
    assert counted(tmp_path) == 1, "what it was told is not kept"
    edge.serve(edge.order(3, MODEL), MODEL)
    edge.train(edge.jobs(Train)[-1], UPDATE)
    assert counted(tmp_path) == 2


def test_without_the_accountant_the_device_declines_with_the_mend(tmp_path: Path) -> None:
    edge = joined(tmp_path, task=PRIVATE)
    edge.serve(edge.order(1, MODEL), MODEL)
    job = edge.jobs(Train)[-1].job
    edge.driver.receive(Failed(job=job, reason="privacy", detail="opendp is missing: install it"))
    decline = edge.said(Decline)[-1]
    assert (decline.reason, decline.detail) == (
        DeclineReason.PRIVACY,
        "opendp is missing: install it",
    )
    assert counted(tmp_path) == 0


def test_the_count_never_falls_and_damage_is_named(tmp_path: Path) -> None:
    path = tmp_path / "privacy.json"
    book = PrivacyBook(path)
    for releases in (3, 1, 4):
        book.charge(RUN, releases)
    assert PrivacyBook(path).releases == {RUN: 4}
    path.write_bytes(b'{"releases": {"x": -1}}')
    with pytest.raises(PrivacyBookError, match="is damaged") as caught:
        PrivacyBook(path)
    assert "forgets what its updates have cost" in str(caught.value.hint)
