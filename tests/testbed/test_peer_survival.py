"""Runs in which neighbours decide who trains survive what others survive: `pytest --seeds 20`.

Real keys, sealed envelopes, real agents and edges, in virtual time. Whatever dies or is
lost, the run ends, and nobody is paid who has not volunteered after the last model.
"""

from bisect import bisect_left
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pytest

from fedagent_agent.peers.store import read_slots
from fedagent_coordinator.reader import open_reader
from fedagent_protocol import topics
from fedagent_testbed.kernel import WAN, Faults, lan
from fedagent_testbed.roles import AGENT_PRICE_MICRO
from fedagent_testbed.world import Ending, VirtualFederation

from .test_survival import ROUNDS, world

BEST = 2
PEERS = (
    "opinions.mode=peers",
    "opinions.timeout_s=3",
    f"peers.best={BEST}",
    "policy.name=volunteers",
    "rounds.merge_every=1",
    "rounds.min_updates=1",
)
TIGHT = ("peers.best=4", "budget.per_edge=0.25")
"""Four volunteer, and an edge can pay two."""
ROUGH = Faults(loss=0.05, duplicate=0.1, delay_s=0.003, jitter_s=0.02)


def peers(directory: Path, seed: int, *sets: str, **options: object) -> VirtualFederation:
    return world(directory, seed, sets=(*PEERS, *sets), **{"agents": 6, **options})


def check(
    here: VirtualFederation, ending: Ending, *, rounds: int = ROUNDS
) -> dict[int, frozenset[str]]:
    """Check the books; return who volunteered in each call."""
    assert ending.reason == "rounds"
    assert ending.rounds_done == rounds
    assert ending.balanced, ending.problems
    assert {state for _, state in ending.settled_reports} <= {"done", "void"}
    assert len(set(ending.paid)) == len(ending.paid), "somebody was paid twice for a round"
    assert ending.spent_micro == AGENT_PRICE_MICRO * len(ending.paid)
    calls = [number for number, _ in ending.evaluated]
    assert len(set(calls)) == len(calls)
    with open_reader(here.coordinator.directory) as read:
        run = read.run()
        ordered = read.outcomes(run.run_id)
        said: dict[int, set[str]] = {number: set() for number in calls}
        for row in read.evaluations.volunteers(run.run_id):
            said[row.round].add(row.agent_id)
    reserved: dict[tuple[int, str], int] = defaultdict(int)
    for order in ordered:
        reserved[order.round, order.edge_id] += order.price_micro
        call = calls[bisect_left(calls, order.round) - 1]
        assert call < order.round
        assert order.agent in said[call], "somebody was told to train who has not volunteered"
    limit = here.coordinator.recipe.budget.per_edge_micro
    assert limit is not None
    assert max(reserved.values()) <= limit
    assert ordered, "nobody has ever trained"
    return {call: frozenset(who) for call, who in said.items()}


@pytest.mark.parametrize("edges", [1, 2])
def test_in_a_calm_run_as_many_volunteer_as_are_wanted(
    tmp_path: Path, world_seed: int, edges: int
) -> None:
    here = peers(tmp_path, world_seed, edges=edges)
    ending = here.run()
    calls = check(here, ending)
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


def test_the_same_seed_is_the_same_run(tmp_path: Path) -> None:
    runs = [
        peers(tmp_path / name, seed, faults=ROUGH, edges=2, agents=4).run()
        for name, seed in (("a", 5), ("b", 5), ("c", 6))
    ]
    assert runs[0] == runs[1] != runs[2]


def test_what_the_budget_cannot_pay_is_not_ordered(tmp_path: Path, world_seed: int) -> None:
    here = peers(tmp_path, world_seed, *TIGHT)
    ending = here.run()
    calls = check(here, ending)
    assert {len(who) for who in calls.values()} == {4}
    assert len(ending.paid) == 2 * ROUNDS


@pytest.mark.parametrize(("loss", "sets"), [(0.0, ()), (0.1, TIGHT), (0.3, ())])
def test_lost_repeated_and_reordered_envelopes(
    tmp_path: Path, world_seed: int, loss: float, sets: tuple[str, ...]
) -> None:
    faults = Faults(loss=loss, duplicate=0.2, delay_s=0.005, jitter_s=0.05)
    here = peers(tmp_path, world_seed, *sets, faults=faults, edges=2)
    check(here, here.run(seconds=900))


@pytest.mark.parametrize(
    "point", ["agent.outbox.before-put", "agent.outbox.after-put", "agent.before-offer"]
)
def test_volunteers_are_killed_in_their_training(
    tmp_path: Path, world_seed: int, point: str
) -> None:
    rng = np.random.default_rng(world_seed)
    here = peers(tmp_path, world_seed)
    for name in here.agents:
        here.kill_at(name, {point: int(rng.integers(1, 3))})
    check(here, here.run(seconds=900))
    assert sum(here.nodes[name].restarts for name in here.agents) >= BEST


@pytest.mark.parametrize("kind", ["peer-send", "volunteer", "opinion-call", "neighbours"])
@pytest.mark.parametrize("victim", ["edge-0", "agent-1"])
def test_somebody_is_killed_in_the_middle_of_a_call(
    tmp_path: Path, world_seed: int, victim: str, kind: str
) -> None:
    rng = np.random.default_rng(world_seed)
    here = peers(tmp_path, world_seed, faults=ROUGH, edges=2)
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


@pytest.mark.parametrize("broker", [WAN, lan("edge-0")])
def test_a_broker_is_killed_in_a_call(tmp_path: Path, world_seed: int, broker: str) -> None:
    rng = np.random.default_rng(world_seed)
    here = peers(tmp_path, world_seed)
    for at in rng.uniform(0.05, 8.0, size=3):
        here.cut(broker, at=float(at), seconds=float(rng.uniform(0.1, 1.5)))
    check(here, here.run(seconds=900))


def test_those_who_cannot_hear_each_other_choose_apart(tmp_path: Path, world_seed: int) -> None:
    sees = {f"agent-{i}": (f"edge-{i // 3}",) for i in range(6)}
    here = peers(tmp_path, world_seed, edges=2, sees=sees)
    calls = check(here, here.run())
    sides = [{here.agents[f"agent-{i}"].id for i in side} for side in (range(3), range(3, 6))]
    for who in calls.values():
        assert who
        assert all(len(who & side) <= BEST for side in sides)
    assert max(len(who) for who in calls.values()) > BEST


def test_others_step_in_for_volunteers_out_of_reach(tmp_path: Path, world_seed: int) -> None:
    rounds, sets = 25, ("rounds.count=25",)
    calm = peers(tmp_path / "calm", world_seed, *sets, train_s=0.05)
    calls = check(calm, calm.run(), rounds=rounds)
    usual = Counter(agent for who in calls.values() for agent in who)
    best = [agent for agent, _ in usual.most_common(BEST)]
    here = peers(tmp_path / "parted", world_seed, *sets, train_s=0.05)
    here.part([here.names[agent] for agent in best], at=4.0, seconds=12.0)
    calls = check(here, here.run(seconds=900), rounds=rounds)
    others = [call for call, who in calls.items() if who and not who & set(best)]
    assert others, "nobody has stepped in"
    back = [call for call, who in calls.items() if call > others[-1] and who & set(best)]
    assert back, "nobody came back"


def test_everybody_is_killed_at_random_times(tmp_path: Path, world_seed: int) -> None:
    rng = np.random.default_rng(world_seed)
    here = peers(tmp_path, world_seed, faults=ROUGH, edges=2)
    for name in here.nodes:
        for when in rng.uniform(0.1, 15.0, size=3):
            here.kill_after(name, float(when))
    check(here, here.run(seconds=900))
