"""What `fedagent status` is told of a running coordinator: who is there, what is waited for."""

from itertools import pairwise
from pathlib import Path

from fedagent_coordinator.picture.status_files import RunStatus, read_devices, read_run_status
from tests.fakes.coordinator_site import Site, recipe, toy_edges
from tests.fakes.toy_edge import declined


def test_edges_are_known_before_the_first_round_and_counted_while_they_live(tmp_path: Path) -> None:
    given = recipe()
    site = Site(tmp_path, given, toy_edges(given, 2))
    for edge in site.edges:
        for agent in edge.agents:
            agent.available = False
    site.run(until=3.0)
    run = site.store.run.run_id
    assert read_run_status(tmp_path) == RunStatus(run=run, edges_live=2, waiting="agents", wanted=6)
    assert set(site.store.database.read.edges(run)) == {"edge-0", "edge-1"}
    site.edges[1].mute = True
    site.kernel.run(until=site.kernel.now + 20.0)
    found = read_run_status(tmp_path)
    assert found is not None
    assert (found.edges_live, found.silent) == (1, ("edge-1",))
    book = read_devices(tmp_path)
    assert book is not None
    here = {agent: one.edges for agent, one in book.devices.items() if one.edges}
    assert here == {agent.id: ["edge-0"] for agent in site.edges[0].agents}
    assert len(book.devices) == 2 * len(here), "those of the other edge are known and away"
    site.close()


def test_those_that_decline_are_named_until_a_round_begins(tmp_path: Path) -> None:
    given = recipe("rounds.count=30")
    site = Site(tmp_path, given, toy_edges(given, agents=1))
    agent = site.edges[0].agents[0]
    agent.outcome = declined(agent.id, "no_data")
    site.run(until=1.0)
    found = read_run_status(tmp_path)
    assert found is not None
    assert (found.waiting, found.detail) == ("declined", "no_data")
    agent.outcome = None
    site.kernel.run(until=site.kernel.now + 6.0)
    found = read_run_status(tmp_path)
    assert found is not None
    assert found.waiting == ""
    site.close()


def test_the_schedule_is_kept_over_a_restart(tmp_path: Path) -> None:
    given = recipe("rounds.count=4", "rounds.every_s=20")
    site = Site(tmp_path, given, toy_edges(given), kill_at="settled", kill_hit=2)
    site.run()
    assert (site.kills, site.done) == (1, "rounds")
    rows = site.store.database.read.rounds(site.store.run.run_id)
    begun = [row.opened_ms for row in rows]
    site.close()
    assert len(begun) == 4
    # Neither at once nor after another whole wait; the clock of the harness has 50 ms.
    assert all(20_000 <= later - one <= 20_300 for one, later in pairwise(begun))
    found = read_run_status(tmp_path)
    assert found is not None
    assert abs(1000 * found.next_at - begun[-1] - 20_000) < 300


def test_what_is_no_such_file_is_nothing(tmp_path: Path) -> None:
    assert read_run_status(tmp_path) is None
    (tmp_path / "run_status.json").write_text("{")
    assert read_run_status(tmp_path) is None
