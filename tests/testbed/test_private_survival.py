"""What updates cost in privacy survives what runs survive: never less than what left."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from fedagent_coordinator.books.reader import open_reader
from fedagent_testbed.world import VirtualFederation
from tests.fakes.virtual_world import ROUGH, ROUNDS, check, world

PRIVATE = (
    "privacy.mode=central",
    "rounds.weighting=uniform",
    "rounds.min_updates=1",
    "rounds.merge_every=1",
)
pytest.importorskip("opendp", reason="opendp is not installed")


def released(here: VirtualFederation) -> tuple[Counter[str], dict[str, int]]:
    """Return how many updates of each agent edges had, and how many it has counted."""
    with open_reader(here.coordinator.directory) as read:
        run = read.run().run_id
        rows = read.outcomes(run)
    left = Counter(row.agent for row in rows if row.status in ("arrived", "late"))
    counted = {
        agent.id: json.loads(book.read_bytes())["releases"][run]
        for agent in here.agents.values()
        if (book := agent.directory / "privacy.json").exists()
    }
    return left, counted


@pytest.mark.parametrize("point", ["", "agent.privacy.before-charge", "agent.privacy.charged"])
def test_epsilon_is_charged_before_an_update_leaves_whoever_is_killed(
    tmp_path: Path, world_seed: int, point: str
) -> None:
    rng = np.random.default_rng(world_seed)
    # A kill behind the charge costs a release: with none to spare the last round has nobody.
    releases = ROUNDS + 1
    sets = (*PRIVATE, f"privacy.releases={releases}")
    here = world("plain", tmp_path, world_seed, *sets, faults=ROUGH)
    for name in here.agents if point else ():
        here.kill_at(name, {point: int(rng.integers(1, 3))})
    check(here, here.run(seconds=900))
    restarts = sum(agent.restarts for agent in here.agents.values())
    assert restarts == (len(here.agents) if point else 0)
    left, counted = released(here)
    assert left
    assert all(left[agent] <= counted[agent] <= releases for agent in left)


def test_who_has_used_its_epsilon_up_declines_and_is_selected_no_more(
    tmp_path: Path, world_seed: int
) -> None:
    here = world("plain", tmp_path, world_seed, *PRIVATE, "privacy.releases=2")
    here.run(seconds=900)
    left, counted = released(here)
    assert left
    assert set(left.values()) == set(counted.values()) == {2}
    with open_reader(here.coordinator.directory) as read:
        rows = read.outcomes(read.run().run_id)
    assert Counter(row.agent for row in rows if row.status != "declined") == left
    # The next report says so: hardly anybody is ordered in vain, and then once.
    vain = [row for row in rows if row.status == "declined"]
    assert all(row.reason.startswith("privacy: epsilon 8 of this run") for row in vain)
    assert max(Counter(row.agent for row in vain).values(), default=0) <= 1
