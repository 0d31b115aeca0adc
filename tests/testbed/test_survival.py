"""What must survive, with many seeds in virtual time: `pytest --seeds 20`.

The three roles run as they are, on real disks; a kill is any place between two disk
effects. Whatever dies, the run ends, the ledger balances, every round ends exactly
once, and nobody is paid twice for a round.
"""

from pathlib import Path

import numpy as np
import pytest

from fedagent_task.recipe import parse_recipe
from fedagent_testbed.kernel import WAN, Faults, lan
from fedagent_testbed.world import Ending, VirtualFederation

RECIPE = """
name = "survival"
seed = 3
[model]
kind = "softmax"
features = 64
classes = 10
[learner]
name = "none"
[rounds]
count = 6
deadline_s = 3
max_wait_s = 5
min_updates = 2
merge_every = 2
merge_timeout_s = 3
[budget]
per_edge = 1.0
total = 50
"""
ROUNDS = 6

AGENT_POINTS = [
    "agent.model.chunk-written",
    "agent.model.whole",
    "agent.outbox.before-put",
    "agent.outbox.after-put",
    "agent.before-offer",
]
EDGE_POINTS = [
    "edge.round_saved",
    "edge.chunk_written",
    "edge.complete",
    "edge.spooled",
    "edge.receipted",
    "edge.aggregated",
    "edge.reported",
    "edge.spool_cleared",
]
COORDINATOR_POINTS = [
    "decided",
    "reserve.entries",
    "reserved",
    "orders.half",
    "reported",
    "settling",
    "settle.first-entry",
    "settled",
    "learnt",
    "merged",
    "committed",
]


LARGE = ("model.features=27000",)
"""A model that agents keep in files: smaller ones stay in memory."""


def world(
    directory: Path, seed: int, *, sets: tuple[str, ...] = (), **options: object
) -> VirtualFederation:
    recipe = parse_recipe(RECIPE, sets)
    return VirtualFederation(directory, recipe, seed=seed, **options)  # type: ignore[arg-type] # keyword-only


def check(ending: Ending) -> None:
    assert ending.reason == "rounds"
    assert ending.rounds_done == ROUNDS
    assert ending.balanced, ending.problems
    numbers = [number for number, _ in ending.settled_reports]
    assert len(set(numbers)) == len(numbers)
    assert {state for _, state in ending.settled_reports} <= {"done", "void"}
    assert len(set(ending.paid)) == len(ending.paid), "somebody was paid twice for a round"
    assert ending.spent_micro == 100_000 * len(ending.paid)


def test_a_calm_run_pays_everybody_every_round(tmp_path: Path, world_seed: int) -> None:
    ending = world(tmp_path, world_seed).run()
    check(ending)
    assert len(ending.paid) == 3 * ROUNDS


def test_the_same_seed_is_the_same_run(tmp_path: Path) -> None:
    faults = Faults(loss=0.05, duplicate=0.1, delay_s=0.003, jitter_s=0.02)
    one = world(tmp_path / "a", 5, faults=faults, edges=2, agents=4).run()
    two = world(tmp_path / "b", 5, faults=faults, edges=2, agents=4).run()
    assert one == two


@pytest.mark.parametrize("loss", [0.0, 0.1, 0.3])
def test_lost_repeated_and_reordered_messages(tmp_path: Path, world_seed: int, loss: float) -> None:
    faults = Faults(loss=loss, duplicate=0.2, delay_s=0.005, jitter_s=0.05)
    check(world(tmp_path, world_seed, faults=faults, edges=2, agents=4).run(seconds=900))


@pytest.mark.parametrize("point", AGENT_POINTS)
def test_an_agent_is_killed(tmp_path: Path, world_seed: int, point: str) -> None:
    rng = np.random.default_rng(world_seed)
    large = point.startswith("agent.model")
    options: dict[str, object] = {"sets": LARGE, "chunk_bytes": 64 * 1024} if large else {}
    here = world(tmp_path, world_seed, **options)  # type: ignore[arg-type] # keyword-only
    for agent in ("agent-0", "agent-1"):
        here.kill_at(agent, {point: int(rng.integers(1, 6))})
    check(here.run())
    assert sum(here.nodes[f"agent-{i}"].restarts for i in range(3)) > 0


@pytest.mark.parametrize("point", EDGE_POINTS)
def test_an_edge_is_killed(tmp_path: Path, world_seed: int, point: str) -> None:
    rng = np.random.default_rng(world_seed)
    here = world(tmp_path, world_seed)
    here.kill_at("edge-0", {point: int(rng.integers(1, 6))})
    check(here.run())
    assert here.nodes["edge-0"].restarts == 1


@pytest.mark.parametrize("point", COORDINATOR_POINTS)
def test_the_coordinator_is_killed(tmp_path: Path, world_seed: int, point: str) -> None:
    rng = np.random.default_rng(world_seed)
    here = world(tmp_path, world_seed, edges=2, agents=4)
    here.kill_at("coordinator", {point: int(rng.integers(1, 3))})
    check(here.run())
    assert here.nodes["coordinator"].restarts == 1


def test_everybody_is_killed_at_random_times(tmp_path: Path, world_seed: int) -> None:
    rng = np.random.default_rng(world_seed)
    faults = Faults(loss=0.02, duplicate=0.05, delay_s=0.003, jitter_s=0.02)
    here = world(tmp_path, world_seed, faults=faults, edges=2, agents=5)
    for name in here.nodes:
        for when in rng.uniform(0.1, 12.0, size=3):
            here.kill_after(name, float(when))
    check(here.run(seconds=900))


@pytest.mark.parametrize("broker", [WAN, lan("edge-0")])
def test_a_broker_is_killed_in_mid_upload(tmp_path: Path, world_seed: int, broker: str) -> None:
    rng = np.random.default_rng(world_seed)
    here = world(tmp_path, world_seed, train_s=0.05)
    here.cut(broker, at=float(rng.uniform(0.05, 0.6)), seconds=float(rng.uniform(0.1, 1.5)))
    check(here.run())
