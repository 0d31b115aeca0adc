"""Every way for an update to be too late, and what the ledger does (ADR 12)."""

import sqlite3
from contextlib import closing
from pathlib import Path

from fedagent_coordinator.runs import VOID_REASON
from fedagent_protocol import messages as m
from tests.edge_aggregator.harness import Field, field_of
from tests.fakes.coordinator_site import Site, recipe, toy_edges
from tests.fakes.toy_edge import ToyEdge

LATE = m.Outcome(
    agent="agent-0-1",
    status=m.OutcomeStatus.LATE,
    valid=True,
    tau_ms=2500,
    stats=m.TrainStats(num_samples=10),
)
MISSED = m.Outcome(agent="agent-0-1", status=m.OutcomeStatus.MISSED, tau_ms=3000, censored=True)


def closed(directory: Path, *, work_s: float, min_updates: int = 1) -> tuple[Field, m.Outcome]:
    """Run a round of two agents, one of them slow; return how the slow one ended."""
    field = field_of(directory, 2)
    field.agents["a1"].work_s = work_s
    field.order(deadline_ms=1000, max_wait_ms=3000, min_updates=min_updates)
    report = field.run_until_report()
    return field, report.outcomes[1]


def receipt(field: Field) -> m.ReceiptStatus:
    return field.agents["a1"].receipts[-1].status


def test_in_time_is_by_the_deadline(tmp_path: Path) -> None:
    field, outcome = closed(tmp_path, work_s=0.5)
    assert receipt(field) is m.ReceiptStatus.ACCEPTED
    assert (outcome.status, outcome.valid, outcome.used) == ("arrived", True, True)


def test_late_is_after_the_deadline_and_before_the_close_and_promised_to_be_paid(
    tmp_path: Path,
) -> None:
    field, outcome = closed(tmp_path, work_s=2.0, min_updates=2)
    assert receipt(field) is m.ReceiptStatus.LATE
    assert (outcome.status, outcome.valid, outcome.used) == ("late", True, True)


def test_too_late_is_after_the_close_whatever_max_wait_is(tmp_path: Path) -> None:
    for name, work_s in (("before max_wait", 2.0), ("after max_wait", 4.0)):
        field, outcome = closed(tmp_path / name, work_s=work_s)
        assert (outcome.status, outcome.valid, outcome.used) == ("missed", False, False)
        assert field.agents["a1"].closed == [1], "it may stop at once"
        field.run_for(5.0)
        assert receipt(field) is m.ReceiptStatus.TOO_LATE


def test_expired_is_what_the_edge_never_ordered(tmp_path: Path) -> None:
    field = field_of(tmp_path, 2)
    field.agents["a1"].overrides = {"round": 7}
    field.order(deadline_ms=1000, max_wait_ms=1500)
    assert field.run_until_report().outcomes[1].status is m.OutcomeStatus.MISSED
    assert receipt(field) is m.ReceiptStatus.EXPIRED


# ------------------------------------------------------------------- the ledger


def played(directory: Path, edge: ToyEdge, **facts: str) -> Site:
    site = Site(directory, recipe("rounds.count=1"), [edge], **facts)  # type: ignore[arg-type]
    site.run()
    return site


def entries(site: Site, round_: int = 1) -> dict[str, str]:
    """Return how the reservation of each agent ended, ``settle`` or ``void``."""
    (run,) = site.store.database.read.runs()
    names = {row.client: row.agent for row in site.store.database.read.devices(run.run_id)}
    site.close()
    with closing(sqlite3.connect(site.folder / "coordinator.db")) as db:
        found = db.execute(
            "SELECT client, kind FROM entries WHERE round = ? AND client IS NOT NULL "
            "AND kind IN ('settle', 'void')",
            (round_,),
        )
        return {names[client]: kind for client, kind in found}


def one_edge(outcome: m.Outcome | None = None) -> ToyEdge:
    (edge,) = toy_edges(recipe(), agents=2)
    edge.agents[1].outcome = outcome
    return edge


def test_the_ledger_settles_late_and_voids_too_late(tmp_path: Path) -> None:
    assert entries(played(tmp_path / "late", one_edge(LATE))) == {
        "agent-0-0": "settle",
        "agent-0-1": "settle",
    }
    assert entries(played(tmp_path / "too late", one_edge(MISSED))) == {
        "agent-0-0": "settle",
        "agent-0-1": "void",
    }


def test_the_ledger_voids_a_round_whose_report_is_too_late(tmp_path: Path) -> None:
    edge = one_edge()
    site = Site(tmp_path, recipe("rounds.count=2"), [edge])
    answer = edge._order

    def silent(order: m.RoundOrder, now: float) -> list[m.EdgeToCoordinator]:
        out = answer(order, now)
        if order.round > 1:
            return out
        late, edge.pending = edge.pending, None
        if late is not None:
            site.kernel.after(5.5, lambda: site._up(edge, late))
        return []

    edge._order = silent  # type: ignore[method-assign] # the edge of this test
    site.run()
    assert (1, True) in edge.receipts
    assert entries(site) == {"agent-0-0": "void", "agent-0-1": "void"}


def test_the_ledger_voids_what_a_restart_of_the_coordinator_interrupted(tmp_path: Path) -> None:
    site = played(tmp_path, one_edge(), kill_at="reserve.committed")
    assert site.kills == 1
    (run,) = site.store.database.read.runs()
    assert site.store.database.read.rounds(run.run_id)[0].reason == VOID_REASON
    assert entries(site) == {"agent-0-0": "void", "agent-0-1": "void"}
