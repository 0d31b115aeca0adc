"""Runs in which neighbours decide who trains: `pytest --seeds 20`.

Real keys, sealed envelopes, real agents and edges, in virtual time. Whatever dies or is
lost, the run ends, and nobody is paid who has not volunteered after the last model.
"""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from fedagent_agent.peers.store import read_slots
from fedagent_protocol import topics
from fedagent_testbed.world import VirtualFederation
from tests.fakes.virtual_world import BEST, ROUGH, ROUNDS, check, volunteers, world


@pytest.mark.parametrize("edges", [1, 2])
def test_in_a_calm_run_as_many_volunteer_as_are_wanted(
    tmp_path: Path, world_seed: int, edges: int
) -> None:
    here = world("peers", tmp_path, world_seed, edges=edges)
    ending = here.run()
    check(here, ending)
    calls = volunteers(here, ending)
    assert list(calls) == list(range(ROUNDS))
    assert {len(who) for who in calls.values()} == {BEST}
    assert len(ending.paid) == BEST * ROUNDS
    for name, agent in here.agents.items():
        slots = [slot for slot in read_slots(agent.directory) if slot.chosen is not None]
        assert [slot.round for slot in slots] == list(range(ROUNDS))
        volunteered = [call for call, who in calls.items() if agent.id in who]
        assert [slot.round for slot in slots if slot.chosen] == volunteered
        trained = [number for number, who in ending.paid if who == name]
        assert trained == [call + 1 for call in volunteered]


def test_what_the_budget_cannot_pay_is_not_ordered(tmp_path: Path, world_seed: int) -> None:
    here = world("peers", tmp_path, world_seed, "peers.best=4", "budget.per_edge=0.25")
    ending = here.run()
    check(here, ending)
    assert {len(who) for who in volunteers(here, ending).values()} == {4}
    assert len(ending.paid) == 2 * ROUNDS


@pytest.mark.parametrize("kind", ["peer-send", "volunteer", "opinion-call", "neighbours"])
@pytest.mark.parametrize("victim", ["edge-0", "agent-1"])
def test_somebody_is_killed_in_the_middle_of_a_call(
    tmp_path: Path, world_seed: int, victim: str, kind: str
) -> None:
    rng = np.random.default_rng(world_seed)
    here = world("peers", tmp_path, world_seed, faults=ROUGH, edges=2)
    kill_on(here, victim, kind, {int(visit) for visit in rng.integers(1, 13, size=2)})
    check(here, here.run(seconds=900))
    assert here.nodes[victim].restarts >= 1


def kill_on(here: VirtualFederation, victim: str, kind: str, visits: set[int]) -> None:
    """Kill a node when the n-th messages of a kind arrive anywhere."""
    heard = 0

    def hear(_port: str, topic: str) -> None:
        nonlocal heard
        if topics.parse(topic).kind == kind:
            heard += 1
            if heard in visits:
                here.kernel.after(0.0, here.nodes[victim].kill)

    here.network.heard = hear


def test_those_who_cannot_hear_each_other_choose_apart(tmp_path: Path, world_seed: int) -> None:
    sees = {f"agent-{i}": (f"edge-{i // 3}",) for i in range(6)}
    here = world("peers", tmp_path, world_seed, edges=2, sees=sees)
    ending = here.run()
    check(here, ending)
    calls = volunteers(here, ending)
    sides = [{here.agents[f"agent-{i}"].id for i in side} for side in (range(3), range(3, 6))]
    for who in calls.values():
        assert who
        assert all(len(who & side) <= BEST for side in sides)
    assert max(len(who) for who in calls.values()) > BEST


def test_others_step_in_for_volunteers_out_of_reach(tmp_path: Path, world_seed: int) -> None:
    calm = world("peers", tmp_path / "calm", world_seed, train_s=0.05)
    usual = Counter(agent for who in volunteers(calm, calm.run()).values() for agent in who)
    best = [agent for agent, _ in usual.most_common(BEST)]
    here = world("peers", tmp_path / "parted", world_seed, "rounds.count=25", train_s=0.05)
    here.part([here.names[agent] for agent in best], at=4.0, seconds=12.0)
    ending = here.run(seconds=900)
    check(here, ending)
    calls = volunteers(here, ending)
    others = [call for call, who in calls.items() if who and not who & set(best)]
    assert others, "nobody has stepped in"
    back = [call for call, who in calls.items() if call > others[-1] and who & set(best)]
    assert back, "nobody came back"
