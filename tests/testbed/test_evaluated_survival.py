"""Runs with evaluations survive what others survive: every due model is evaluated once."""

from pathlib import Path

import numpy as np
import pytest

from fedagent_agent.store import OpinionBook
from fedagent_coordinator.books.reader import open_reader
from fedagent_testbed.kernel import Faults
from fedagent_testbed.world import Ending
from tests.fakes.virtual_world import ROUNDS, check, kill_all, world


def evaluated_once(ending: Ending) -> None:
    """The first model and that of every round were evaluated, each once."""
    done = [number for number, state in ending.settled_reports if state == "done"]
    assert [number for number, _ in ending.evaluated] == [0, *done]


@pytest.mark.parametrize(
    "point",
    [
        "",
        "settled",
        "merged",
        "committed",
        "evaluating",
        "evaluate.committed",
        "evaluated",
        "learnt",
    ],
)
def test_the_coordinator_is_killed_around_an_evaluation(
    tmp_path: Path, world_seed: int, point: str
) -> None:
    rng = np.random.default_rng(world_seed)
    here = world("evaluated", tmp_path, world_seed)
    if point:
        here.kill_at("coordinator", {point: int(rng.integers(1, 4))})
    ending = here.run()
    check(here, ending)
    evaluated_once(ending)
    missing = [number for number, answers in ending.evaluated if answers < 4]
    # What was in flight when the coordinator died is booked as nobody's.
    assert len(missing) <= bool(point)
    assert sum(answers for _, answers in ending.evaluated) >= 4 * (len(ending.evaluated) - 1)


def test_everybody_is_killed_and_every_model_is_evaluated(tmp_path: Path, world_seed: int) -> None:
    here = world("evaluated", tmp_path, world_seed)
    kill_all(here, world_seed)
    evaluated_once(here.run(seconds=900))


@pytest.mark.parametrize("point", ["agent.opinions.before-write", "agent.opinions.kept"])
def test_noise_is_drawn_once_whoever_is_killed(tmp_path: Path, world_seed: int, point: str) -> None:
    pytest.importorskip("opendp", reason="opendp is not installed")
    rng = np.random.default_rng(world_seed)
    sets = ("opinions.epsilon=1.0", "opinions.timeout_s=5")
    faults = Faults(loss=0.1, duplicate=0.2, delay_s=0.003, jitter_s=0.02)
    here = world("evaluated", tmp_path, world_seed, *sets, faults=faults)
    for name in here.agents:
        here.kill_at(name, {point: int(rng.integers(1, ROUNDS + 1))})
    ending = here.run(seconds=900)
    check(here, ending)
    evaluated_once(ending)
    assert sum(agent.restarts for agent in here.agents.values()) == 4
    with open_reader(here.coordinator.directory) as read:
        run = read.run().run_id
        rows = read.evaluations.opinions(run)
    assert all(row.epsilon == 1.0 for row in rows)
    for agent in here.agents.values():
        record = OpinionBook(agent.directory / "opinions.json").record
        sent = {row.round: row.score for row in rows if row.agent_id == agent.id}
        (answer,) = record.answers
        last = answer.opinion
        # Edges report to the coordinator in single precision.
        assert sent.get(last.round, last.score) == pytest.approx(last.score, rel=1e-6)
        assert len(sent) <= record.spent[run] <= len(ending.evaluated), "a round was paid twice"
