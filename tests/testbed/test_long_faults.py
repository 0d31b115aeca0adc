"""Faults that last, in virtual time: crash loops, flapping devices, edges that are all gone."""

from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pytest

from fedagent_coordinator.books.reader import open_reader
from fedagent_testbed.kernel import lan
from tests.fakes.virtual_world import check, world

SCHEDULED = ("rounds.count=20", "rounds.every_s=3")


def test_a_coordinator_in_a_crash_loop_loses_nothing_and_goes_on_when_it_ends(
    tmp_path: Path, world_seed: int
) -> None:
    here = world("plain", tmp_path, world_seed, *SCHEDULED)
    rng, at = np.random.default_rng(world_seed), 0.0
    while at < 60.0:
        at += 0.4 + float(rng.uniform(0.1, 3.0))
        here.kill_after("coordinator", at)
    began = here.kernel.now
    check(here, here.run(seconds=900))
    assert here.coordinator.restarts >= 20
    assert here.kernel.now - began < 60.0 + 20 * 8.0
    size = sum(path.stat().st_size for path in here.coordinator.directory.glob("*.db*"))
    assert size < 4 << 20, "it grows with rounds, not with starts"


def test_a_flapping_device_is_paid_at_most_once_a_round_and_holds_nobody_up(
    tmp_path: Path, world_seed: int
) -> None:
    here = world("plain", tmp_path, world_seed, *SCHEDULED, "rounds.min_updates=1", agents=4)
    here.agents["agent-0"].stay_down_s = 5.0
    for at in range(2, 200, 10):
        here.kill_after("agent-0", float(at))
    ending = here.run(seconds=900)
    check(here, ending)
    paid = Counter(agent for _, agent in ending.paid)
    assert here.agents["agent-0"].restarts >= 5
    assert paid["agent-0"] < 20
    assert [paid[f"agent-{i}"] for i in (1, 2, 3)] == [20, 20, 20]


def test_devices_of_an_edge_that_is_cut_off_go_on_at_another_one(
    tmp_path: Path, world_seed: int
) -> None:
    here = world("plain", tmp_path, world_seed, *SCHEDULED, edges=2, agents=4)
    here.cut(lan("edge-0"), at=12.0, seconds=25.0)
    check(here, here.run(seconds=900))
    with open_reader(here.coordinator.directory) as read:
        rows = [row for row in read.outcomes(read.run().run_id) if row.paid_micro]
    edges: dict[str, set[str]] = defaultdict(set)
    for row in rows:
        edges[row.agent].add(row.edge_id)
    assert len({(row.round, row.agent) for row in rows}) == len(rows)
    assert sum(len(found) == 2 for found in edges.values()) >= 2, "somebody has moved"


def test_all_edges_die_in_a_round_and_it_is_void_once(tmp_path: Path, world_seed: int) -> None:
    here = world("plain", tmp_path, world_seed, *SCHEDULED, edges=2, agents=4, train_s=1.0)
    for name in here.edges:
        here.nodes[name].stay_down_s = 20.0
        here.kill_after(name, 6.4)
    ending = here.run(seconds=900)
    check(here, ending)
    with open_reader(here.coordinator.directory) as read:
        run = read.run().run_id
        silent = Counter(row.round for row in read.outcomes(run) if row.reason == "silent")
        spent = [row.opened_ms for row in read.rounds(run)]
    assert len(silent) == 1, "the one round in which they died"
    assert set(silent.values()) == {4}
    assert max(np.diff(spent)) < 40_000


@pytest.mark.parametrize("whose", ["agent-0", "edge-0"])
def test_a_role_that_dies_at_every_start_harms_no_other(
    tmp_path: Path, world_seed: int, whose: str
) -> None:
    here = world("plain", tmp_path, world_seed, "rounds.min_updates=1", edges=2, agents=4)
    for at in range(1, 40):
        here.kill_after(whose, at * 0.5)
    check(here, here.run(seconds=900))
