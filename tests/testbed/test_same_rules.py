"""The same round by the live core and by a study: who trains where an edge is rented."""

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from fedagent_coordinator.books.reader import open_reader
from fedagent_coordinator.iterations.fixed import FixedControl
from fedagent_coordinator.policies import Feedback
from fedagent_testbed.study import History
from fedagent_testbed.study.streams import StreamStudy
from tests.fakes.stream_files import small
from tests.world.kinds import world

EVERYWHERE = ("edge-0", "edge-1", "edge-2")
RENTED = 1
CHEAPEST = "edge-0"


class Noting(FixedControl):
    """Remembers who trained."""

    def __init__(self) -> None:
        super().__init__(iterations=2)
        self.trained: list[set[int]] = []

    def learn(self, feedback: Feedback, **rest: Any) -> None:
        self.trained.append(set(feedback.view.pair_client[feedback.pairs].tolist()))


def live_rounds(
    directory: Path, seed: int, sees: dict[str, tuple[str, ...]]
) -> list[tuple[set[int], set[str]]]:
    """Return the agents that were ordered in each round, and at which edges."""
    sets = ("placement.name=min-cost", "placement.params={}", "budget.total=60")
    here = world("placed", directory, seed, *sets, agents=4, sees=sees)
    ending = here.run(seconds=3000)
    assert ending.balanced
    assert ending.rounds_done == 12
    with open_reader(here.coordinator.directory) as read:
        run = read.run()
        outcomes = read.outcomes(run.run_id)
    rounds: dict[int, tuple[set[int], set[str]]] = defaultdict(lambda: (set(), set()))
    for row in outcomes:
        rounds[row.round][0].add(int(here.names[row.agent].removeprefix("agent-")))
        rounds[row.round][1].add(row.edge_id)
    return [rounds[number] for number in sorted(rounds)]


def studied_rounds(seed: int) -> list[set[int]]:
    """Return the devices that trained in each round of a study at the same edge."""
    recipe = small("world.streaming.budget=1000", "rounds.count=3", "world.clients=4")
    study, control = StreamStudy(recipe, f"fixed-2+fixed-{RENTED}", seed), Noting()
    study._iterations = control
    history = History("", seed)
    for t in (1, 2, 3):
        assert study.play_round(t, history)
    assert [int(row["edge"]) for row in history.rows] == [RENTED] * 3
    return control.trained


@pytest.mark.usefixtures("stream_data")
def test_everybody_who_sees_the_rented_edge_trains_there(tmp_path: Path, world_seed: int) -> None:
    """In a study's world every device sees every edge, as in the paper: all of them train."""
    everybody = {0, 1, 2, 3}
    assert studied_rounds(world_seed) == [everybody] * 3
    live = live_rounds(tmp_path / "all", world_seed, {})
    assert live == [(everybody, {CHEAPEST})] * 12


def test_who_does_not_see_the_rented_edge_sits_the_round_out(
    tmp_path: Path, world_seed: int
) -> None:
    sees = {"agent-0": ("edge-1", "edge-2"), "agent-3": EVERYWHERE}
    assert live_rounds(tmp_path, world_seed, sees) == [({1, 2, 3}, {CHEAPEST})] * 12
