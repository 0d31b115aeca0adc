"""Who is rented after a restart is who would have been: it follows from what the books keep."""

from pathlib import Path

import pytest

from fedagent_coordinator.books.store import Store
from fedagent_protocol import messages as m
from tests.fakes.coordinator_site import Site, recipe, toy_edges

ROUNDS = 14
SETS = (f"rounds.count={ROUNDS}", "rounds.merge_every=1", "budget.total=1000")


def played(folder: Path, name: str, *, kill_at: str = "") -> Site:
    """Run with an edge that asks least and brings nothing, and two others."""
    given = recipe(*SETS, f"placement.name={name}")
    edges = toy_edges(given, 3)
    for edge, rent in zip(edges, (1, 300_000, 200_000), strict=True):
        edge.rent = rent
    for agent in edges[0].agents:
        status = m.OutcomeStatus.MISSED
        agent.outcome = m.Outcome(agent=agent.id, status=status, censored=True, tau_ms=1)
    site = Site(folder, given, edges, kill_at=kill_at, kill_hit=5)
    site.run()
    assert site.done == "rounds"
    assert site.kills == bool(kill_at)
    site.close()
    return site


def rented(folder: Path) -> list[tuple[str, int]]:
    with Store(folder) as store:
        run = store.read.run().run_id
        assert store.read.ledger.verify(full=True).problems == ()
        return [(r.rented, r.rent_micro) for r in store.read.rounds(run) if r.state == "done"]


@pytest.mark.parametrize("name", ["min-cost", "budgeted-ucb"])
def test_who_brings_nothing_is_passed_over_after_a_kill_too(tmp_path: Path, name: str) -> None:
    played(tmp_path / "calm", name)
    played(tmp_path / "killed", name, kill_at="learnt")
    calm = rented(tmp_path / "calm")
    assert rented(tmp_path / "killed") == calm
    assert [micro for edge, micro in calm if edge == "edge-0"] == [0] * 5
