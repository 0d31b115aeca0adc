"""The trainer adds up what has arrived, and loses none of it for learning."""

from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from msgspec import structs

from fedagent_agent.streams.base import Samples, StreamSchema
from fedagent_agent.trainer.frames import Evaluate, Evaluated, Failed
from fedagent_task.moments import Moments
from fedagent_task.recipe.spec import TaskSpec
from fedagent_task.recipe.text import frozen, task_of
from tests.agent.streams.support import install_stream
from tests.fakes.trainer_bench import TrainerBench, demo

SETS = ("model.features=2", "model.classes=2", "data.scale=1", "data.offset=0",
        "data.standardize=true", "data.dtype='float64'", "evaluation.dataset='none'")  # fmt: skip
TASK = task_of(demo(*SETS))


def rows(count: int) -> tuple[list[tuple[float, float, int]], Moments]:
    rng = np.random.default_rng(count)
    x = rng.normal((101_325, 1e-3), (500, 1e-4), (count, 2))
    table = [(a, b, int(a > 101_325)) for a, b in x.tolist()]
    return table, Moments.of(x.astype(np.float32))


def measured(bench: TrainerBench) -> Evaluated:
    return bench.evaluated(model="", moments=True)


def scaled_by(found: Moments) -> TaskSpec:
    data = frozen(TASK.data, found.means(), found.deviations())
    return structs.replace(TASK, data=data)


def test_a_file_is_added_up_exactly_and_then_learnt(bench: TrainerBench, tmp_path: Path) -> None:
    table, found = rows(120)
    path = tmp_path / "a.csv"
    path.write_text("".join(f"{a},{b},{y}\n" for a, b, y in table))
    bench.opened(TASK, f"csv:{path}")
    for _ in range(2):  # again the same: nothing is used up by it
        reply = measured(bench)
        assert Moments.decode(reply.moments, features=2, most=1000) == found
        assert reply.samples == 120
    bench.opened(scaled_by(found), f"csv:{path}")
    assert bench.trained().stats.num_samples == 120


class Topic:
    """A stream without a past: what it gave once it does not give again."""

    waiting: ClassVar[list[tuple[float, float, int]]] = []

    def __init__(self, text: str) -> None:
        self.text = text

    def open(self, now: float) -> StreamSchema:
        return StreamSchema(2, "float64")

    def take(self, now: float) -> Samples:
        given, Topic.waiting = Topic.waiting, []
        x = np.array(given, np.float64).reshape(len(given), 3)
        return Samples(x[:, :2], x[:, 2].astype(np.int64))


def test_messages_that_come_once_are_not_lost(
    bench: TrainerBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_stream(monkeypatch, "topic", Topic)
    bench.opened(TASK, "topic:x")
    assert measured(bench) == Evaluated(job=3, metric="moments"), "nothing yet"
    Topic.waiting, found = rows(40)
    assert measured(bench).samples == 40
    bench.opened(scaled_by(found), "topic:x")
    more, _ = rows(41)
    Topic.waiting = more[:5]
    assert bench.trained().stats.num_samples == 45
    update = bench.update()
    assert all(abs(tensor).max() < 5 for tensor in update.values()), "scaled when they were kept"


def test_a_number_that_no_sensor_says_is_refused(bench: TrainerBench, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("1,2,0\n1e30,2,1\n")
    bench.opened(TASK, f"csv:{path}")
    reply = bench.trainer.answer(Evaluate(job=2, model="", moments=True))
    assert reply == Failed(job=2, reason="stream", detail="a feature is over 1e+20", offset=0)
