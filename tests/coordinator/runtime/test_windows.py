"""What an edge has learnt since the last merge weighs the same before and after a restart."""

from pathlib import Path

import pytest

from fedagent_protocol import messages as m
from tests.coordinator.toy_edge import ToyEdge

from .harness import Site, recipe, toy_edges

SETS = ("rounds.count=9", "rounds.merge_every=9")


def until_round(site: Site, number: int) -> None:
    """Run until the books have settled a round."""

    def settled() -> bool:
        events = [e.fields["round"] for e in site.events if e.name == "round"]
        return bool(events) and int(str(events[-1])) >= number

    site._alive(site._start)
    for edge in site.edges:
        site._up(edge, edge.hello())
    site._beat()
    site.kernel.run(until=site.kernel.now + 60.0, stop=settled)
    assert settled()


def lived(site: Site) -> dict[str, tuple[str, float]]:
    """Return model and weight of each edge that has learnt, as the engine has it."""
    return {
        edge.id: (edge.expected, edge.window_weight)
        for edge in site.engine.edges.by_id.values()
        if edge.window_weight > 0
    }


def read_back(site: Site) -> dict[str, tuple[str, float]]:
    """Return the same by the books, as another process finds it."""
    site.close()
    windows = site.open().run.progress.windows
    site.close()
    return {window.edge: (window.model, window.weight) for window in windows if window.weight}


def test_what_was_learnt_is_read_back(tmp_path: Path) -> None:
    given = recipe(*SETS)
    site = Site(tmp_path, given, toy_edges(given, 2))
    until_round(site, 3)
    before = lived(site)
    assert len(before) == 2
    assert read_back(site) == before


def test_the_limit_of_a_round_holds_after_a_restart(tmp_path: Path) -> None:
    given = recipe(*SETS, "limits.max_samples=4")
    site = Site(tmp_path, given, toy_edges(given))
    until_round(site, 2)
    before = lived(site)
    assert before["edge-0"][1] == 2 * 3 * 4
    assert read_back(site) == before


def test_what_an_edge_lost_with_its_model_stays_given_up(tmp_path: Path) -> None:
    given = recipe(*SETS)
    site = Site(tmp_path, given, toy_edges(given, 2))
    lost = site.edges[1]
    original = lost.receive

    def forget(message: m.CoordinatorToEdge, now: float) -> list[m.EdgeToCoordinator]:
        if isinstance(message, m.ReportReceipt) and message.round == 2:
            original(message, now)
            lost.restart(forget_model=True)
            return [lost.hello()]
        return original(message, now)

    lost.receive = forget  # type: ignore[method-assign] # the test's forgetful edge
    until_round(site, 4)
    before = lived(site)
    assert before["edge-1"][1] < before["edge-0"][1]
    assert read_back(site) == before


@pytest.mark.parametrize("merge_every", [1, 2])
def test_what_a_failed_merge_did_not_take_stays_given_up(
    tmp_path: Path, merge_every: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sets = ("rounds.count=9", f"rounds.merge_every={merge_every}", "rounds.merge_timeout_s=1")
    given = recipe(*sets)
    site = Site(tmp_path, given, toy_edges(given))
    monkeypatch.setattr(ToyEdge, "_serve", lambda _edge, _need: [])
    until_round(site, 2)
    assert site.store.database.read.models.last(site.store.run.run_id).round == 0  # type: ignore[union-attr] # there is one
    assert lived(site) == {}
    assert read_back(site) == {}
