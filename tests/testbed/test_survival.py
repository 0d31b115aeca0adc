"""What must survive, with many seeds in virtual time: `pytest --seeds 20`.

The three roles run as they are, on real disks; a kill is any place between two disk
effects. Whatever dies, the run ends, the ledger balances, every round ends exactly
once, and nobody is paid twice for a round.
"""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from fedagent_coordinator.books.reader import open_reader
from fedagent_task.recipe import parse_recipe
from fedagent_testbed.kernel import WAN, Faults, lan
from fedagent_testbed.world import VirtualFederation
from tests.edge_aggregator.test_restart import POINTS as EDGE_POINTS
from tests.fakes.virtual_world import ROUGH, ROUNDS, SETS, check, digest_of, kill_all, world

TIGHT = ("peers.best=4", "budget.per_edge=0.25")
"""Four volunteer, and an edge can pay two."""
DIGITS = Path(__file__).parents[2] / "deploy" / "recipes" / "digits.toml"


def test_a_calm_run_pays_everybody_every_round(tmp_path: Path, world_seed: int) -> None:
    here = world("plain", tmp_path, world_seed)
    ending = here.run()
    check(here, ending)
    assert len(ending.paid) == 3 * ROUNDS


@pytest.mark.parametrize("kind", SETS)
def test_a_seed_is_a_run_in_every_message(tmp_path: Path, kind: str) -> None:
    runs, placed = [], kind == "placed"
    for name, seed in (("a", 5), ("b", 5), ("c", 6)):
        # Of a placed run the other seed is the recipe's, by which edges are drawn.
        sets = ("placement.name=random", f"seed={seed}") if placed else ()
        directory, of_network = tmp_path / name, 5 if placed else seed
        here = world(kind, directory, of_network, *sets, faults=ROUGH, edges=2, agents=4)
        messages = digest_of(here)
        runs.append((here.run(seconds=900), messages.hexdigest()))
    assert runs[0] == runs[1]
    assert runs[0][1] != runs[2][1]
    assert not placed or runs[0][0].rents != runs[2][0].rents


@pytest.mark.parametrize(
    ("kind", "loss", "sets"),
    [
        ("plain", 0.0, ()),
        ("plain", 0.1, ()),
        ("plain", 0.3, ()),
        ("placed", 0.0, ()),
        ("placed", 0.1, ()),
        ("placed", 0.3, ()),
        ("peers", 0.0, ()),
        ("peers", 0.1, TIGHT),
        ("peers", 0.3, ()),
    ],
)
def test_lost_repeated_and_reordered_messages(
    tmp_path: Path, world_seed: int, kind: str, loss: float, sets: tuple[str, ...]
) -> None:
    duplicate = 0.3 if kind == "placed" else 0.2
    faults = Faults(loss=loss, duplicate=duplicate, delay_s=0.005, jitter_s=0.05)
    here = world(kind, tmp_path, world_seed, *sets, faults=faults, edges=2)
    check(here, here.run(seconds=2000))


@pytest.mark.parametrize("point", ["outbox.before-put", "outbox.after-put", "before-offer"])
def test_neighbours_are_killed(tmp_path: Path, world_seed: int, point: str) -> None:
    rng = np.random.default_rng(world_seed)
    here = world("peers", tmp_path, world_seed)
    for name in here.agents:
        here.kill_at(name, {f"agent.{point}": int(rng.integers(1, 3))})
    check(here, here.run(seconds=900))
    assert sum(agent.restarts for agent in here.agents.values()) > 1


@pytest.mark.parametrize("point", EDGE_POINTS)
def test_a_rented_edge_is_killed(tmp_path: Path, world_seed: int, point: str) -> None:
    rng = np.random.default_rng(world_seed)
    here = world("placed", tmp_path, world_seed, "placement.name=min-cost")
    here.kill_at("edge-0", {point: int(rng.integers(1, 6))})
    check(here, here.run(seconds=900))
    assert here.nodes["edge-0"].restarts == 1


@pytest.mark.parametrize("kind", SETS)
def test_everybody_is_killed_at_random_times(tmp_path: Path, world_seed: int, kind: str) -> None:
    here = world(kind, tmp_path, world_seed, faults=ROUGH, edges=2, agents=5)
    kill_all(here, world_seed)
    check(here, here.run(seconds=2000))


@pytest.mark.parametrize(("kind", "until"), [("plain", 0.6), ("placed", 3.0), ("peers", 8.0)])
@pytest.mark.parametrize("broker", [WAN, lan("edge-0")])
def test_a_broker_is_killed_in_mid_round(
    tmp_path: Path, world_seed: int, kind: str, until: float, broker: str
) -> None:
    rng = np.random.default_rng(world_seed)
    here = world(kind, tmp_path, world_seed, train_s=0.05)
    began, cuts = here.kernel.now, rng.uniform(0.05, until, size=3)
    for at in cuts:
        here.cut(broker, at=float(at), seconds=float(rng.uniform(0.1, 1.5)))
    check(here, here.run(seconds=900))
    assert cuts.min() < here.kernel.now - began, "no broker was killed before the run was over"


def until_done(here: VirtualFederation, *, seconds: float = 300.0) -> None:
    here.kernel.run(until=here.kernel.now + seconds, stop=lambda: bool(here.coordinator.done))


def close(here: VirtualFederation) -> None:
    for node in here.nodes.values():
        node.drop()


def test_edges_and_agents_that_heard_the_end_take_part_again(tmp_path: Path) -> None:
    here = world("plain", tmp_path, 3, edges=2, agents=4)
    for node in here.nodes.values():
        node.boot()
    until_done(here)
    assert here.coordinator.done == "rounds"
    here.kernel.run(until=here.kernel.now + 20)
    here.coordinator.more_rounds, here.coordinator.done = 4, ""
    here.coordinator.kill()
    until_done(here)
    ending = here._ending()
    assert (ending.reason, ending.rounds_done) == ("rounds", ROUNDS + 4)
    assert ending.balanced, ending.problems
    # One agent may miss a round that began before it was heard again.
    assert len({agent for round_, agent in ending.paid if round_ > ROUNDS}) == 4
    close(here)


@pytest.mark.parametrize(("wait_agents", "least"), [(1, 30), (8, 60)])
def test_eight_devices_that_start_over_two_minutes_all_take_part(
    tmp_path: Path, wait_agents: int, least: int
) -> None:
    given = parse_recipe(DIGITS.read_text(), ("learner.name=none", "evaluation.dataset=none"))
    here = VirtualFederation(tmp_path, given, seed=1, agents=8)
    here.coordinator.wait_agents = wait_agents
    began, late = here.kernel.now, list(here.agents)
    for name, node in here.nodes.items():
        here.kernel.after(120.0 * late.index(name) / 7 if name in late else 0.0, node.boot)
    until_done(here, seconds=3600)
    seconds, ending = here.kernel.now - began, here._ending()
    close(here)
    assert (ending.reason, ending.rounds_done, ending.balanced) == ("rounds", 60, True)
    trained = Counter(agent for _, agent in ending.paid)
    assert set(trained) == set(late)
    # Who comes last has missed what the schedule gives two minutes, and no more.
    assert min(trained.values()) >= least
    assert seconds > 59 * given.rounds.every_s


def test_a_policy_sees_who_started_anew_also_after_the_coordinator_did(tmp_path: Path) -> None:
    here = world("plain", tmp_path, 3, "rounds.count=30", "rounds.every_s=1")
    here.kill_after("agent-1", 6.3)
    here.kill_after("coordinator", 12.2)
    # At the end it is away: what is known of it stays.
    here.kill_after("agent-1", 20.5)
    here.agents["agent-1"].stay_down_s = 3.0
    check(here, here.run(seconds=900))
    with open_reader(here.coordinator.directory) as read:
        run = read.run().run_id
        rows = [row.round for row in read.rounds(run) if row.state == "done"]
        names = [here.names[row.agent] for row in read.devices(run)]
        seen = [read.plan(run, number)[0].client_starts for number in rows]
        starts = read.client_starts(run)
    assert starts is not None
    assert dict(zip(names, starts.tolist(), strict=True)) == {
        "agent-0": 1,
        "agent-1": 3,
        "agent-2": 1,
    }
    told = np.array([found[names.index("agent-1")] for found in seen if found is not None])
    assert len(told) == 30
    assert (np.diff(told) >= 0).all()
    assert set(told.tolist()) == {1, 2, 3}


def test_one_that_has_everything_and_trains_long_is_not_taken_for_dead(tmp_path: Path) -> None:
    here = world("plain", tmp_path, 3, "rounds.min_updates=1", agents=1, train_s=40.0)
    check(here, here.run(seconds=900))
    with open_reader(here.coordinator.directory) as read:
        run = read.run().run_id
        rows = read.outcomes(run)
        seconds = np.diff([row.opened_ms for row in read.rounds(run)]) / 1000
    assert [(row.status, row.reason) for row in rows] == [("missed", "")] * ROUNDS
    # Each lasts its 5 s; the pauses after empty rounds are shorter than that.
    assert (seconds < 6.0).all()
