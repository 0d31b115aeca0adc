"""The federation in virtual time with real learning: scores from the devices to the books."""

import functools
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from msgspec.structs import replace

from fedagent_agent.store import TrainerRequest
from fedagent_agent.trainer.frames import Cancel, Job, Open
from fedagent_agent.trainer.training import Trainer
from fedagent_coordinator.books.reader import open_reader
from fedagent_task.recipe.text import parse_recipe
from fedagent_testbed import world as worlds
from fedagent_testbed.roles import AgentNode
from fedagent_testbed.world import VirtualFederation

RECIPE = """
name = "scored"
seed = 3
model = { kind = "mlp", hidden = [16], features = 64, classes = 10 }
data = { dtype = "uint8", scale = 0.125, offset = -0.6 }
learner = { rate = 0.2, batch = 50, passes = 8 }
rounds = { count = 5, deadline_s = 3, max_wait_s = 5, min_updates = 2 }
budget = { per_edge = 1.0 }
evaluation = { on_device = true, dataset = "digits-test" }
"""


@dataclass
class _Learning(AgentNode):
    """A device whose trainer works here and now, and is done after a virtual while."""

    trainer: Trainer = field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.trainer = Trainer(
            lambda _job, _wait: False,
            wall=lambda: self.kernel.now,
            processor=lambda: self.kernel.now,
        )

    def _submit(self, request: TrainerRequest) -> None:
        if not isinstance(request, Cancel):
            self.kernel.after(self.slow_s, functools.partial(self._work, request))

    def _work(self, job: Job) -> None:
        if isinstance(job, Open):
            job = replace(job, stream="digits:rate=200")
        self.receive(self.trainer.answer(job))


def test_a_network_learns_and_every_round_has_the_devices_score(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worlds, "AgentNode", _Learning)
    world = VirtualFederation(tmp_path, parse_recipe(RECIPE), seed=1)
    ending = world.run()
    assert (ending.reason, ending.rounds_done, ending.balanced) == ("rounds", 5, True)
    with open_reader(world.coordinator.directory) as read:
        run = read.run().run_id
        rows = [row.metrics for row in read.rounds(run)]
        arrivals = [
            sum(o.arrivals for o in read.outcomes(run, t) if o.in_time) for t in range(1, 6)
        ]
    scores = [row["device_score"] for row in rows]
    assert scores[0] < 0.4
    assert scores[-1] > 0.8
    for row, arrived in zip(rows, arrivals, strict=True):
        assert row["device_samples"] == arrived > 0
    # What the devices say of a model and what the coordinator measured of it agree.
    for before, score in zip(rows, scores[1:], strict=False):
        assert score == pytest.approx(before["accuracy"], abs=0.12)


def test_a_network_learns_and_its_clients_say_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worlds, "AgentNode", _Learning)
    sets = ("policy.name=quick-init-ucb", "policy.params.clients_per_round=2")
    world = VirtualFederation(tmp_path, parse_recipe(RECIPE, sets), seed=1)
    ending = world.run()
    assert (ending.reason, ending.rounds_done, ending.balanced) == ("rounds", 5, True)
    with open_reader(world.coordinator.directory) as read:
        run = read.run().run_id
        accuracy = {row.round: row.metrics["accuracy"] for row in read.rounds(run)}
        evaluated = read.evaluations.rows(run)
    assert [(one.round, one.answered) for one in evaluated] == [(t, 3) for t in range(6)]
    means = [one.mean for one in evaluated if one.mean is not None]
    assert len(means) == len(evaluated)
    assert means[0] < 0.4
    assert means[-1] > 0.7
    for one in evaluated[1:]:
        assert one.mean == pytest.approx(accuracy[one.round], abs=0.15)
