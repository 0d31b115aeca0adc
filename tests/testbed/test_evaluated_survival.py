"""Runs with evaluations survive what others survive: every due model is evaluated once."""

from pathlib import Path

import numpy as np
import pytest

from fedagent_agent.opinion_book import OpinionBook
from fedagent_coordinator.reader import open_reader
from fedagent_testbed.kernel import Faults
from fedagent_testbed.world import Ending

from .test_survival import ROUNDS, check, world

POINTS = [
    "settled",
    "merged",
    "committed",
    "evaluating",
    "evaluate.committed",
    "evaluated",
    "learnt",
]
REPORT = (
    "opinions.mode=report",
    "opinions.timeout_s=1",
    "policy.name=quick-init-ucb",
    "policy.params.clients_per_round=3",
    "rounds.merge_every=1",
)
PEERS = (
    "opinions.mode=peers",
    "opinions.timeout_s=1",
    "policy.name=volunteers",
    "rounds.merge_every=1",
)


def evaluated_once(ending: Ending, *, last: bool) -> None:
    """Assert that the first model and that of every round, or but the last, was evaluated once."""
    done = [number for number, state in ending.settled_reports if state == "done"]
    rounds = [number for number, _ in ending.evaluated]
    assert rounds == [0, *(done if last else done[:-1])]


@pytest.mark.parametrize("point", ["", *POINTS])
def test_the_coordinator_is_killed_around_an_evaluation(
    tmp_path: Path, world_seed: int, point: str
) -> None:
    rng = np.random.default_rng(world_seed)
    here = world(tmp_path, world_seed, sets=REPORT, edges=2, agents=4)
    if point:
        here.kill_at("coordinator", {point: int(rng.integers(1, 4))})
    ending = here.run()
    check(ending)
    evaluated_once(ending, last=True)
    missing = [number for number, answers in ending.evaluated if answers < 4]
    # What was in flight when the coordinator died is booked as nobody's.
    assert len(missing) <= bool(point)
    assert sum(answers for _, answers in ending.evaluated) >= 4 * (len(ending.evaluated) - 1)


@pytest.mark.parametrize("point", ["agent.opinions.before-write", "agent.opinions.kept"])
def test_noise_is_drawn_once_whoever_is_killed(tmp_path: Path, world_seed: int, point: str) -> None:
    pytest.importorskip("opendp", reason="opendp is not installed")
    rng = np.random.default_rng(world_seed)
    sets = (*REPORT, "opinions.epsilon=1.0", "opinions.timeout_s=5")
    faults = Faults(loss=0.1, duplicate=0.2, delay_s=0.003, jitter_s=0.02)
    here = world(tmp_path, world_seed, sets=sets, faults=faults, edges=2, agents=4)
    for name in here.agents:
        here.kill_at(name, {point: int(rng.integers(1, ROUNDS + 1))})
    ending = here.run(seconds=900)
    check(ending)
    evaluated_once(ending, last=True)
    assert sum(here.nodes[name].restarts for name in here.agents) == 4
    with open_reader(here.coordinator.directory) as read:
        run = read.run().run_id
        rows = read.evaluations.opinions(run)
    for agent in here.agents.values():
        said = OpinionBook(agent.directory / "opinions.json").record
        told = {row.round: row.score for row in rows if row.agent_id == agent.id}
        (answer,) = said.answers
        last = answer.opinion
        # Edges tell the coordinator in single precision.
        assert told.get(last.round, last.score) == pytest.approx(last.score, rel=1e-6)
        assert len(told) <= said.spent[run] <= len(ending.evaluated), "a round was paid twice"
        assert all(row.epsilon == 1.0 for row in rows if row.agent_id == agent.id)


def test_opinions_follow_from_the_seed(tmp_path: Path) -> None:
    faults = Faults(loss=0.1, duplicate=0.1, delay_s=0.003, jitter_s=0.02)
    runs = []
    for name in ("a", "b"):
        here = world(tmp_path / name, 5, sets=REPORT, faults=faults, edges=2, agents=4)
        runs.append(here.run())
        with open_reader(tmp_path / name / "coordinator") as read:
            rows = read.evaluations.opinions(read.run().run_id)
        assert len(rows) == sum(answers for _, answers in runs[-1].evaluated)
        for agent in range(4):
            scores = [row.score for row in rows if row.client == agent]
            assert len(scores) > ROUNDS / 2
            assert 0 < np.std(scores) < 0.2
    assert runs[0] == runs[1]


@pytest.mark.parametrize("sets", [REPORT, PEERS])
def test_everybody_is_killed_at_random_times_in_an_evaluated_run(
    tmp_path: Path, world_seed: int, sets: tuple[str, ...]
) -> None:
    rng = np.random.default_rng(world_seed)
    faults = Faults(loss=0.05, duplicate=0.1, delay_s=0.003, jitter_s=0.02)
    here = world(tmp_path, world_seed, sets=sets, faults=faults, edges=2, agents=4)
    for name in here.nodes:
        for when in rng.uniform(0.1, 15.0, size=2):
            here.kill_after(name, float(when))
    ending = here.run(seconds=900)
    assert ending.reason == "rounds"
    assert ending.rounds_done == ROUNDS
    assert ending.balanced, ending.problems
    rounds = [number for number, _ in ending.evaluated]
    assert len(set(rounds)) == len(rounds)
    if sets is REPORT:
        evaluated_once(ending, last=True)
