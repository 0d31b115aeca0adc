"""The edge's side of its session with the coordinator."""

import errno
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest
from msgspec import structs

from fedagent_edge.spool import Journal
from fedagent_protocol import messages as m
from fedagent_protocol.tensors import digest_of, encode_tensors

from .harness import BODY, RUN, TASK, Field, ToyAgent, expected_mean, field_of, model_tensors

OTHER = "2" * 32


def _beacon(field: Field, coordinator: str) -> None:
    field.coordinator(m.CoordinatorBeacon(coordinator=coordinator), sender=coordinator)


def test_a_silent_coordinator_is_lost_and_found_again(tmp_path: Path) -> None:
    field = field_of(tmp_path, 1)
    field.run_for(16.0)
    assert field.events[-1].name == "coordinator_lost"
    _beacon(field, "coord")
    assert isinstance(field.to_coordinator[-1], m.EdgeHello)
    field.welcome()
    assert [e.name for e in field.events if "coord" in e.name][-1] == "coordinator_joined"
    assert field.core.memory.model == field.digest, "the same run keeps its model"


def test_a_second_coordinator_cannot_take_the_edge_from_a_live_one(tmp_path: Path) -> None:
    field = field_of(tmp_path, 1)
    _beacon(field, "rival")
    field.coordinator(m.EdgeWelcome(run=OTHER, coordinator="rival", task=TASK, body=BODY))
    assert field.core.memory.run == RUN
    assert field.core.counters["other_coordinator"] == 2
    field.run_for(20.0)
    _beacon(field, "rival")
    field.coordinator(m.EdgeWelcome(run=OTHER, coordinator="rival", task=TASK, body=BODY))
    assert field.core.memory.run == OTHER


def test_another_run_drops_round_spool_and_model(tmp_path: Path) -> None:
    field = field_of(tmp_path, 2, size=100_000)
    for agent in field.agents.values():
        agent.chunk_bytes = 32 * 1024
    field.order(deadline_ms=60_000, max_wait_ms=90_000)
    while not list((tmp_path / "spool").glob("*.update")):
        field.run_for(0.01)
    field.welcome(run=OTHER)
    field.run_for(0.2)
    memory = field.core.memory
    assert (memory.run, memory.model, memory.last_round) == (OTHER, "", 0)
    assert not list((tmp_path / "spool").glob("*.update"))
    assert all(agent.closed == [1] for agent in field.agents.values())
    assert field.core.rounds.updates.uploads.pool.used_bytes == 0
    field.open()
    assert field.core.memory.run == OTHER
    offer = field.agents["a0"].offer
    assert offer is not None
    field.to_edge("a0", offer)
    field.run_for(0.1)
    assert field.agents["a0"].receipts[-1].status is m.ReceiptStatus.EXPIRED


def test_an_order_that_cannot_be_done_is_reported_at_once(tmp_path: Path) -> None:
    field = Field(tmp_path, {"a0": ToyAgent("a0")})
    field.welcome()
    field.order()
    report = field.run_until_report(max_s=1.0)
    assert "no such model" in report.failed
    assert report.outcomes[0].status is m.OutcomeStatus.GONE
    field.give_model()
    field.agents["a0"].hello(field)
    field.run_for(0.5)
    field.order(2, task="e" * 64)
    assert "another task" in field.run_until_report(2).failed
    field.order(3)
    assert field.run_until_report(3).used == 1


def test_an_order_for_a_model_on_its_way_waits_for_it(tmp_path: Path) -> None:
    field = field_of(tmp_path, 1)
    fresh = encode_tensors({k: v + 1 for k, v in model_tensors().items()})
    digest = digest_of(fresh)
    field.coordinator(m.GlobalModel(run=RUN, digest=digest, size=len(fresh)))
    assert isinstance(field.to_coordinator[-1], m.Need)
    field.order(1, base=digest)
    field.run_for(0.5)
    assert not field.agents["a0"].orders
    field.coordinator(m.Chunk(run=RUN, digest=digest, index=0, data=fresh))
    assert field.run_until_report().used == 1
    assert field.agents["a0"].orders[0].model == digest


@pytest.mark.parametrize("kind", ["digest", "nan", "garbage"])
def test_an_unusable_global_model_is_not_adopted(tmp_path: Path, kind: str) -> None:
    field = field_of(tmp_path, 1)
    bad = {k: v * float("nan") for k, v in model_tensors().items()}
    data = encode_tensors(bad) if kind == "nan" else b"x" * 100
    digest = "d" * 64 if kind == "digest" else digest_of(data)
    field.coordinator(m.GlobalModel(run=RUN, digest=digest, size=len(data), first=data))
    field.run_for(0.5)
    assert field.core.memory.model == field.digest
    assert field.core.counters["model_unusable"] == 1
    field.order()
    assert field.run_until_report().used == 1


def test_the_coordinator_s_word_on_a_task_goes_with_it_to_devices_also_before_the_next_welcome(
    tmp_path: Path,
) -> None:
    field = field_of(tmp_path, 1)
    welcome = m.EdgeWelcome(run=RUN, coordinator="coord", task=digest_of(BODY), body=BODY)
    words = [m.TaskClaim(certificate=b"der", until_s=n, signature=bytes(64)) for n in (1, 2)]
    for word in words:
        field.coordinator(structs.replace(welcome, claim=word))
        field.to_edge("a0", m.TaskNeed(digest=TASK))
        field.run_for(0.1)
    field.open()
    field.to_edge("a0", m.TaskNeed(digest=TASK))
    field.run_for(0.1)
    got = [said.claim for said in field.agents["a0"].heard if isinstance(said, m.TaskBody)]
    assert got == [*words, words[1]]
    field.welcome(run=OTHER)
    assert field.core.memory.claim is None, "it was a word on another run"


@pytest.mark.parametrize("how", ["open", "order"])
def test_a_newer_round_ends_an_older_one(tmp_path: Path, how: str) -> None:
    field = field_of(tmp_path, 2)
    field.agents["a1"].work_s = 50.0
    field.order(deadline_ms=60_000, max_wait_ms=90_000)
    field.run_for(1.0)
    if how == "open":
        field.coordinator(m.RoundOpen(run=RUN, round=2))
        assert field.core.state.live is None
    field.agents["a1"].work_s = 0.1
    field.order(2)
    field.run_for(0.05)
    assert field.agents["a1"].closed == [1]
    report = field.run_until_report(2)
    assert report.used == 2
    assert [r.round for r in field.reports] == [2]
    weights = dict.fromkeys(field.agents, 10.0)
    assert report.model == digest_of(encode_tensors(expected_mean(64, weights)))


@pytest.mark.parametrize("away", [False, True])
def test_an_agent_hears_that_accepted_work_is_not_paid_also_when_it_comes_back(
    tmp_path: Path, away: bool
) -> None:
    field = field_of(tmp_path, 2)
    field.order()
    field.run_until_report()
    field.run_for(1.5)
    agent = field.agents["a1"]
    if away:
        field.to_edge("a1", m.Bye())
        field.run_for(0.1)
    # As after a kill on a full disk: the coordinator settled a report in which it was not.
    field.coordinator(m.ReportReceipt(run=RUN, round=1, unpaid=("a1",)))
    field.run_for(0.1)
    assert len(agent.receipts) == 2 - away
    agent.hello(field)
    field.run_for(0.1)
    told = [(one.round, one.status) for one in agent.receipts]
    assert told == [(1, m.ReceiptStatus.ACCEPTED), (1, m.ReceiptStatus.VOID)]
    assert [one.status for one in field.agents["a0"].receipts] == [m.ReceiptStatus.ACCEPTED]


def of_the_round_before(field: Field) -> str:
    field.order(2)
    field.run_until_report(2)
    field.coordinator(m.ReportReceipt(run=RUN, round=1, too_late=True))
    field.coordinator(m.ReportReceipt(run=RUN, round=2))
    return "1 accepted, 1 void, 2 accepted"


def at_the_end(field: Field) -> str:
    field.coordinator(m.RunEnded(run=RUN, reason="rounds"))
    assert [one.round for one in field.reports] == [1, 1], "its receipt says whether it is paid"
    field.coordinator(m.ReportReceipt(run=RUN, round=1, too_late=True))
    return "1 accepted, 1 void"


def of_another_run(field: Field) -> str:
    field.order(2)
    field.run_until_report(2)
    field.reports.clear()
    run = "2" * 32
    field.welcome(run)
    field.give_model(run)
    field.order(1, run=run)
    field.run_until_report(1)
    field.coordinator(m.ReportReceipt(run=run, round=1, unpaid=("a1",)))
    return "1 accepted, 2 accepted, 1 void"


def on_a_full_disk(field: Field) -> str:
    full = mock.Mock(side_effect=OSError(errno.ENOSPC, "full"))
    with mock.patch.object(Journal, "sync", full):
        welcome = m.EdgeWelcome(run=RUN, coordinator="coord", task=TASK, body=BODY)
        field.coordinator(structs.replace(welcome, recipe="another"))
        field.run_for(0.5)
    field.run_for(10.0)
    return "1 accepted"


@pytest.mark.parametrize("when", [of_the_round_before, at_the_end, of_another_run, on_a_full_disk])
def test_each_update_has_its_own_word(tmp_path: Path, when: Callable[[Field], str]) -> None:
    field = field_of(tmp_path, 2)
    field.receipt_reports = False
    field.order()
    field.run_until_report()
    said = when(field)
    field.run_for(1.5)
    told = [f"{one.round} {one.status}" for one in field.agents["a1"].receipts]
    assert ", ".join(told) == said
