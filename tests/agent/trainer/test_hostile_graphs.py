"""A device keeps its other tasks whatever it is told to train, and says what it lacks."""

import os
import pickle
import zlib
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from fedagent_agent.trainer.frames import Failed, Open, Opened
from fedagent_task.recipe.spec import TaskSpec
from fedagent_task.recipe.text import task_bytes
from tests.fakes.graph_tasks import dense_task
from tests.fakes.trainer_bench import TrainerBench

pytest.importorskip("torch", reason="torch is not installed")


class Bomb:
    """Leaves a file where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.path}",)


GOOD = TaskSpec(model=dense_task().model)


def told(program: bytes) -> TaskSpec:
    return structs.replace(GOOD, model=structs.replace(GOOD.model, program=program))


def answered(bench: TrainerBench, task: TaskSpec) -> Any:
    ask = Open(job=1, task=task_bytes(task), stream="digits:start=100", seed=1)
    return bench.trainer.answer(ask)


@pytest.mark.parametrize("kind", ["pickle", "zeros", "columns"])
def test_a_hostile_program_is_refused_and_the_next_task_trains(tmp_path: Path, kind: str) -> None:
    mark = tmp_path / "executed"
    bomb = pickle.dumps(Bomb(mark))
    program = {
        "pickle": zlib.compress(bomb),
        "zeros": zlib.compress(bytes(1 << 26)),
        "columns": dense_task(5, 10).model.program,
    }[kind]
    bench = TrainerBench(tmp_path)
    bench.task = GOOD
    bench.base(dict(dense_task().first))
    reply = answered(bench, told(program))
    assert isinstance(reply, Failed), reply
    assert isinstance(answered(bench, GOOD), Opened)
    assert bench.trained().stats.num_samples >= 100
    assert not mark.exists()
