"""Runs whose models are judged survive what others survive: every due model is judged once."""

from pathlib import Path

import numpy as np
import pytest

from fedagent_coordinator.reader import open_reader
from fedagent_testbed.kernel import Faults
from fedagent_testbed.world import Ending

from .test_survival import ROUNDS, check, world

POINTS = ["settled", "merged", "committed", "judging", "judge.committed", "judged", "learnt"]
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


def judged_once(ending: Ending, *, last: bool) -> None:
    """Assert that the first model and that of every round, or but the last, was judged once."""
    done = [number for number, state in ending.fates if state == "done"]
    rounds = [number for number, _ in ending.judged]
    assert rounds == [0, *(done if last else done[:-1])]


@pytest.mark.parametrize("point", ["", *POINTS])
def test_the_coordinator_is_killed_around_a_judgement(
    tmp_path: Path, world_seed: int, point: str
) -> None:
    rng = np.random.default_rng(world_seed)
    here = world(tmp_path, world_seed, sets=REPORT, edges=2, agents=4)
    if point:
        here.kill_at("coordinator", {point: int(rng.integers(1, 4))})
    ending = here.run()
    check(ending)
    judged_once(ending, last=True)
    missing = [number for number, answers in ending.judged if answers < 4]
    # What was in flight when the coordinator died is booked as nobody's.
    assert len(missing) <= bool(point)
    assert sum(answers for _, answers in ending.judged) >= 4 * (len(ending.judged) - 1)


def test_opinions_follow_from_the_seed(tmp_path: Path) -> None:
    faults = Faults(loss=0.1, duplicate=0.1, delay_s=0.003, jitter_s=0.02)
    runs = []
    for name in ("a", "b"):
        here = world(tmp_path / name, 5, sets=REPORT, faults=faults, edges=2, agents=4)
        runs.append(here.run())
        with open_reader(tmp_path / name / "coordinator") as read:
            rows = read.opinions(read.run().run_id)
        assert len(rows) == sum(answers for _, answers in runs[-1].judged)
        for agent in range(4):
            scores = [row.score for row in rows if row.client == agent]
            assert len(scores) > ROUNDS / 2
            assert 0 < np.std(scores) < 0.2
    assert runs[0] == runs[1]


@pytest.mark.parametrize("sets", [REPORT, PEERS])
def test_everybody_is_killed_at_random_times_in_a_judged_run(
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
    rounds = [number for number, _ in ending.judged]
    assert len(set(rounds)) == len(rounds)
    if sets is REPORT:
        judged_once(ending, last=True)
