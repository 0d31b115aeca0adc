"""Updates and models over a bad network: nothing is lost, nothing counts twice."""

from pathlib import Path

import pytest
from msgspec import structs

from fedagent_edge.core.effects import LAN
from fedagent_node.effects import Received
from fedagent_protocol import messages as m
from fedagent_protocol.tensors import digest_of, encode_tensors
from fedagent_protocol.transfer import CREDIT_WINDOW

from .harness import RUN, Field, ToyAgent, expected_mean, field_of


def test_credit_is_capped_over_all_agents(tmp_path: Path) -> None:
    field = field_of(tmp_path, 12, size=100_000, credit_bytes=256 * 1024)
    for agent in field.agents.values():
        agent.chunk_bytes = 64 * 1024
    pool = field.core.rounds.updates.pool
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


def test_the_model_goes_out_once_and_only_to_those_who_need_it(tmp_path: Path) -> None:
    field = field_of(tmp_path, 5, size=100_000)
    field.order(assignments=tuple(m.Assignment(agent=f"a{i}") for i in range(4)))
    field.run_until_report()
    chunks = -(-len(field.model) // field.chunk_bytes)
    assert field.broadcasts == chunks
    before = field.broadcasts
    field.order(2)
    field.run_until_report(2)
    assert field.broadcasts == 2 * chunks, "a new round has a new model"
    assert before == chunks


@pytest.mark.parametrize("behind", [False, True], ids=["broadcast", "alone"])
def test_an_agent_that_authorises_the_whole_model_gets_one_window_at_a_time(
    tmp_path: Path, *, behind: bool
) -> None:
    field = field_of(tmp_path, 2, size=100_000, chunk_bytes=8 * 1024)
    greedy, slow = field.agents["a0"], field.agents["a1"]
    greedy.silent, slow.silent = True, not behind
    field.order(deadline_ms=20_000, max_wait_ms=30_000)
    field.run_for(5.0)
    published = field.broadcasts
    assert published == (-(-len(field.model) // field.chunk_bytes) if behind else 0)
    heard: list[m.AnyMessage] = greedy.heard
    greedy.silent = False
    need = m.Need(run=RUN, round=1, digest=digest_of(field.model), ranges=((0, 65_536),))
    for step in range(1, 4):
        at = field.now
        field.run_for(0.05)
        heard.clear()
        field.edge.receive(*(Received("a0", need, LAN, at) for _ in range(20)))
        field.run_for(0.05)
        assert sum(isinstance(one, m.Chunk) for one in heard) == CREDIT_WINDOW
        assert field.broadcasts <= published + step * CREDIT_WINDOW


FAREWELLS: dict[str, m.AgentToEdge] = {
    "decline": m.Decline(run=RUN, round=1, reason=m.DeclineReason.LOAD),
    "bye": m.Bye(),
}


def _offer_and_leave(field: Field, farewell: str, *, after_s: float) -> ToyAgent:
    """Let a1 offer its whole update in one message, and regret it; 0 is in the same batch."""
    agent = field.agents["a1"]
    agent.work_s, agent.chunk_bytes = 100.0, 512 * 1024
    field.order(min_updates=2)
    field.run_for(1.0)
    offer = Received("a1", agent.make_offer(agent.orders[-1]), LAN, field.now)
    bye = Received("a1", FAREWELLS[farewell], LAN, field.now + after_s)
    if after_s:
        field.edge.receive(offer)
        field.run_for(after_s)
        field.edge.receive(bye)
    else:
        field.edge.receive(offer, bye)
    return agent


@pytest.mark.parametrize("farewell", FAREWELLS)
@pytest.mark.parametrize(
    ("size", "job_delay_s", "after_s"),
    [(64, 0.0, 0.0), (100_000, 0.02, 0.0), (100_000, 0.02, 0.03)],
    ids=["small, not yet synced", "large, under check", "large, not yet durable"],
)
def test_a_whole_update_is_not_taken_back(
    tmp_path: Path, farewell: str, size: int, job_delay_s: float, after_s: float
) -> None:
    field = field_of(tmp_path, 2, size=size, job_delay_s=job_delay_s)
    agent = _offer_and_leave(field, farewell, after_s=after_s)
    report = field.run_until_report()
    assert [(o.status, o.valid, o.used) for o in report.outcomes] == [("arrived", True, True)] * 2
    assert report.weight == 20.0
    model = encode_tensors(expected_mean(size, {"a0": 10.0, "a1": 10.0}))
    assert report.model == digest_of(model)
    assert [r.status for r in agent.receipts] == [m.ReceiptStatus.ACCEPTED]
    assert len(field.reports) == 1


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


def test_who_is_complete_between_max_wait_and_the_close_is_too_late_and_is_told_why(
    tmp_path: Path,
) -> None:
    field = field_of(tmp_path, 2)
    slow, began = field.agents["a1"], field.now
    slow.work_s = 100.0
    field.order(deadline_ms=1000, max_wait_ms=3000, min_updates=2)
    field.run_for(3.002)
    field.edge.receive(Received("a1", slow.make_offer(slow.orders[-1]), LAN, began + 3.002))
    outcome = field.run_until_report().outcomes[1]
    assert (outcome.status, outcome.valid, outcome.used) == ("missed", False, False)
    assert outcome.reason == "complete after max_wait"
    slow.make_offer(slow.orders[-1])
    assert slow.offer is not None
    field.to_edge("a1", slow.offer)
    field.run_for(0.05)
    assert [(one.status, one.reason) for one in slow.receipts] == [
        (m.ReceiptStatus.TOO_LATE, "complete after max_wait")
    ] * 2


def test_the_closing_round_answers_while_the_edge_commits_it(tmp_path: Path) -> None:
    field = field_of(tmp_path, 3)
    paid, slow, unfit = (field.agents[name] for name in ("a0", "a1", "a2"))
    slow.work_s, unfit.work_s, unfit.overrides = 1.3, 1.4, {"base": "e" * 64}
    field.order(deadline_ms=1000, max_wait_ms=20_000)
    field.run_for(0.9)
    field.job_delay_s = 2.0
    offer = paid.make_offer(paid.orders[-1])
    field.run_for(0.2)
    field.to_edge("a0", offer)
    field.run_for(0.7)
    assert not field.reports, "the edge still commits"
    assert [agent.receipts[-1].status for agent in field.agents.values()] == [
        m.ReceiptStatus.ACCEPTED,
        m.ReceiptStatus.TOO_LATE,
        m.ReceiptStatus.TOO_LATE,
    ]
    assert len(paid.receipts) == 2
    field.run_for(2.0)
    assert [o.valid for o in field.reports[0].outcomes] == [True, False, False]
    # The next order is there: the round is forgotten.
    field.order(2, assignments=(m.Assignment(agent="a1"),))
    field.to_edge("a0", offer)
    field.run_for(0.05)
    assert paid.receipts[-1].status is m.ReceiptStatus.EXPIRED


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
    assert field.core.counters["ordered_absent"] == 1


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
