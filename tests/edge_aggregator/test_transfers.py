"""Updates and models over a bad network: nothing is lost, nothing counts twice."""

from pathlib import Path

import pytest
from msgspec import structs

from fedagent_edge.core import rounds
from fedagent_edge.core.effects import LAN
from fedagent_edge.core.receipts import KEEP_S
from fedagent_node.effects import Received
from fedagent_protocol import messages as m
from fedagent_protocol.tensors import digest_of, encode_tensors
from fedagent_protocol.transfer import PIECE_BYTES, WINDOW_BYTES

from .harness import RUN, Field, ToyAgent, expected_mean, field_of


def test_credit_is_capped_over_all_agents(tmp_path: Path) -> None:
    field = field_of(tmp_path, 12, size=100_000, credit_bytes=256 * 1024)
    for agent in field.agents.values():
        agent.chunk_bytes = 64 * 1024
    pool = field.core.rounds.updates.uploads.pool
    peak = 0

    def watch() -> None:
        nonlocal peak
        peak = max(peak, pool.used_bytes)
        field.later(0.005, watch)

    watch()
    field.order(deadline_ms=60_000, max_wait_ms=90_000, min_updates=12)
    assert field.run_until_report(max_s=100).used == 12
    assert 0 < peak <= 256 * 1024
    assert pool.used_bytes == 0


@pytest.mark.parametrize("credit_bytes", [16 * 1024, 256 * 1024])
def test_agents_that_die_with_an_order_do_not_starve_the_others(
    tmp_path: Path, credit_bytes: int
) -> None:
    field = field_of(tmp_path, 10, size=20_000, credit_bytes=credit_bytes)
    for name in ("a0", "a1", "a2", "a3", "a4"):
        field.agents[name].silent = True
    field.order(deadline_ms=30_000, max_wait_ms=40_000, min_updates=1)
    report = field.run_until_report(max_s=41)
    assert report.used == 5
    assert [(o.status, o.reason) for o in report.outcomes[:5]] == [("missed", m.UNANSWERED)] * 5
    assert not any(o.reason for o in report.outcomes[5:])


@pytest.mark.parametrize(("limit", "together"), [(1 << 20, True), (1000, False)])
def test_models_come_with_orders_as_long_as_all_of_them_fit_a_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int, together: bool
) -> None:
    monkeypatch.setattr(rounds, "ORDERED_BYTES", limit)
    field = field_of(tmp_path, 4)
    field.order()
    assert field.run_until_report().used == 4
    for agent in field.agents.values():
        assert [order.first for order in agent.orders] == [field.model if together else b""]


def test_a_report_brings_no_more_of_the_model_than_the_link_carries_in_a_second(
    tmp_path: Path,
) -> None:
    chunk = 32 * 1024
    field = field_of(tmp_path, 1, size=200_000, chunk_bytes=chunk)
    for number, most, brought in (
        (1, 0, 0),
        (2, chunk // 4, chunk),
        (3, 70 * 1024, 2 * chunk),
        (4, 1 << 20, PIECE_BYTES),
    ):
        field.order(number, want_bytes=most)
        assert len(field.run_until_report(number).first) == brought


def test_an_agent_that_asks_all_the_time_gets_a_window_a_second(tmp_path: Path) -> None:
    field = field_of(tmp_path, 2, size=1_000_000, chunk_bytes=32 * 1024)
    field.agents["a0"].decline = m.DeclineReason.LOAD
    field.order()
    greedy = field.agents["a1"]
    greedy.work_s = 1e6
    field.run_for(5.0)
    greedy.heard.clear()
    for _ in range(1000):
        field.to_edge("a1", m.Need(run=RUN, round=1, digest=field.digest, ranges=((0, 999),)))
        field.run_for(0.01)
    got = sum(len(one.data) for one in greedy.heard if isinstance(one, m.Chunk))
    assert got <= 11 * WINDOW_BYTES


def test_what_waits_for_the_dead_is_bounded_and_keeps_nobody_waiting(tmp_path: Path) -> None:
    field = field_of(tmp_path, 20, size=300_000, chunk_bytes=32 * 1024)
    for agent in field.agents.values():
        agent.silent = True
    field.order(deadline_ms=60_000, max_wait_ms=90_000)
    field.core.exchange._room.limit_bytes = 4 * WINDOW_BYTES
    need = m.Need(run=RUN, round=1, digest=field.digest, ranges=((0, 32),))
    for name in field.agents:
        field.to_edge(name, need)
    outlets = field.core.exchange._out
    for _ in range(2):
        field.run_for(7)
        sent = {name: len(out.sender._sent) for (name, _), out in outlets.items()}
        assert sum(sent.values()) <= 4 * WINDOW_BYTES // (32 * 1024)
    assert not sent["a19"]
    quiet_at, _ = field.core.timers._timers["quiet"]
    assert quiet_at > field.now + 60.0, "nobody wakes for the dead"
    field.to_edge("a19", need)
    field.run_for(1)
    assert len(outlets["a19", field.digest].sender._sent) == 32


def test_after_a_silence_what_is_lost_is_asked_for_as_soon_as_before_it(tmp_path: Path) -> None:
    field = Field(tmp_path, size=20_000, chunk_bytes=2048)
    field.welcome()
    size = len(field.model)
    field.coordinator(m.GlobalModel(run=RUN, digest=field.digest, size=size, chunk_bytes=2048))
    field.run_for(29.0)  # it is patient by now
    field.coordinator(m.Chunk(run=RUN, digest=field.digest, index=0, data=field.model[:2048]))
    asked = len(field.to_coordinator)
    field.run_for(4.5)
    assert any(isinstance(one, m.Need) for one in field.to_coordinator[asked:])


def test_a_sender_that_stalls_holds_up_nobody_and_may_come_back(tmp_path: Path) -> None:
    field = field_of(tmp_path, 4, size=100_000, credit_bytes=128 * 1024)
    for agent in field.agents.values():
        agent.chunk_bytes = 32 * 1024
    stalled = field.agents["a0"]
    field.order(deadline_ms=60_000, max_wait_ms=90_000, min_updates=4)
    while stalled.offer is None:
        field.run_for(0.005)
    stalled.silent = True
    field.run_for(20)
    done = [a for a in field.agents.values() if a.receipts]
    assert len(done) == 3
    stalled.silent = False
    assert stalled.offer is not None
    field.to_edge(stalled.id, stalled.offer)
    assert field.run_until_report(max_s=60).used == 4


@pytest.mark.parametrize(
    "farewell", [m.Decline(run=RUN, round=1, reason=m.DeclineReason.LOAD), m.Bye()]
)
@pytest.mark.parametrize(
    ("size", "job_delay_s"), [(64, 0.0), (100_000, 0.02)], ids=["not yet synced", "under check"]
)
def test_a_whole_update_is_not_taken_back(
    tmp_path: Path, farewell: m.AgentToEdge, size: int, job_delay_s: float
) -> None:
    field = field_of(tmp_path, 2, size=size, job_delay_s=job_delay_s)
    agent = field.agents["a1"]
    agent.work_s, agent.chunk_bytes = 100.0, 512 * 1024
    field.order(min_updates=2)
    field.run_for(1.0)
    said = (agent.make_offer(agent.orders[-1]), farewell)
    field.edge.receive(*(Received("a1", one, LAN, field.now) for one in said))
    report = field.run_until_report()
    assert [(o.status, o.valid, o.used) for o in report.outcomes] == [("arrived", True, True)] * 2
    model = encode_tensors(expected_mean(size, {"a0": 10.0, "a1": 10.0}))
    assert report.model == digest_of(model)
    field.run_for(KEEP_S)
    assert [r.status for r in agent.receipts] == [m.ReceiptStatus.ACCEPTED]


def test_a_round_that_is_given_up_pays_what_is_still_being_checked(tmp_path: Path) -> None:
    field = field_of(tmp_path, 2, size=100_000, job_delay_s=0.5)
    field.agents["a1"].work_s = 100.0
    field.order()
    while not field._job_free_at > field.now:
        field.run_for(0.02)
    field.core.rounds.fail("the edge's disk is full")
    report = field.run_until_report()
    assert (report.failed, report.used) == ("the edge's disk is full", 0)
    assert [(o.status, o.valid) for o in report.outcomes] == [("arrived", True), ("missed", False)]
    field.run_for(KEEP_S)
    assert field.agents["a0"].receipts[0].status is m.ReceiptStatus.ACCEPTED


def test_who_declined_hears_that_of_an_update_also_after_the_close(tmp_path: Path) -> None:
    field = field_of(tmp_path, 2)
    field.agents["a1"].decline = m.DeclineReason.LOAD
    field.agents["a0"].work_s = 1.0
    field.order()
    for _ in range(2):
        field.run_for(0.5)
        field.to_edge("a1", field.agents["a1"].make_offer(field.agents["a1"].orders[-1]))
        field.run_for(0.6)
    assert field.reports[0].outcomes[1].status is m.OutcomeStatus.DECLINED
    heard = [(one.status, one.reason) for one in field.agents["a1"].receipts]
    assert heard == [(m.ReceiptStatus.REJECTED, "declined: load")] * 2


def test_an_update_is_in_time_by_when_it_was_read_not_by_when_it_is_taken_in(
    tmp_path: Path,
) -> None:
    field = field_of(tmp_path, 1)
    agent, began = field.agents["a0"], field.now
    agent.work_s = 100.0
    field.order(deadline_ms=1000, max_wait_ms=3000)
    field.run_for(1.002)
    offer = agent.make_offer(agent.orders[-1])
    field.edge.receive(Received("a0", offer, LAN, began + 0.999))
    outcome = field.run_until_report().outcomes[0]
    assert (outcome.status, outcome.tau_ms) == ("arrived", 999)


def test_declines_and_goodbyes_end_the_wait_at_once(tmp_path: Path) -> None:
    field = field_of(tmp_path, 3)
    field.agents["a1"].decline = m.DeclineReason.SCHEMA
    field.agents["ghost"] = ToyAgent("ghost")
    field.order(deadline_ms=60_000, max_wait_ms=90_000)
    field.agents["a2"].silent = True
    field.to_edge("a2", m.Bye())
    began = field.now
    report = field.run_until_report()
    assert field.now - began < 1.0
    assert [o.status for o in report.outcomes] == ["arrived", "declined", "gone", "gone"]
    assert report.outcomes[1].reason == "schema"


def test_a_second_different_update_is_refused(tmp_path: Path) -> None:
    field = field_of(tmp_path, 2, size=100_000)
    agent = field.agents["a0"]
    agent.chunk_bytes = 32 * 1024
    field.order()
    while agent.offer is None:
        field.run_for(0.005)
    field.run_for(0.03)
    field.to_edge("a0", structs.replace(agent.offer, digest="1" * 64))
    assert field.run_until_report().used == 2
    assert ("1" * 64, "second_update") in {(r.digest, r.reason) for r in agent.receipts}


class Asking(ToyAgent):
    """Asks for the task of an order that comes before the word on it, and forgets the order."""

    knows_task = False

    def receive(self, message: m.AnyMessage, f: Field) -> None:
        self.knows_task |= isinstance(message, m.TaskBody)
        if isinstance(message, m.TrainOrder) and not self.knows_task:
            need = m.TaskNeed(run=message.run, round=message.round, digest=message.task)
            f.to_edge(self.id, need)
            return
        super().receive(message, f)


def test_who_asked_for_the_task_gets_its_order_again(tmp_path: Path) -> None:
    field = field_of(tmp_path, 2)
    field.agents["a1"].__class__ = Asking
    field.order(deadline_ms=20_000, max_wait_ms=25_000)
    outcomes = field.run_until_report(1, 60).outcomes
    assert {one.status for one in outcomes} == {m.OutcomeStatus.ARRIVED}
