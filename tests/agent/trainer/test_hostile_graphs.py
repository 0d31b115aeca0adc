"""Models that travel as graphs: hostile ones are refused, and scores are those of numpy."""

import zlib
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from fedagent_agent.trainer.frames import Failed, Open, Opened
from fedagent_task.models.graph import Graph
from fedagent_task.recipe.spec import TaskSpec
from fedagent_task.recipe.text import task_bytes
from fedagent_task.scoring.graph import scored
from tests.fakes.graph_tasks import dense_task
from tests.fakes.trainer_bench import TrainerBench

pytest.importorskip("torch", reason="torch is not installed")


GOOD = TaskSpec(model=dense_task().model)


def told(program: bytes) -> TaskSpec:
    return structs.replace(GOOD, model=structs.replace(GOOD.model, program=program))


def answered(bench: TrainerBench, task: TaskSpec) -> Any:
    ask = Open(job=1, task=task_bytes(task), stream="digits:start=100", seed=1)
    return bench.trainer.answer(ask)


def test_a_hostile_program_is_refused_and_the_next_task_trains(bench: TrainerBench) -> None:
    bench.task = GOOD
    bench.base(dict(dense_task().first))
    for program in (zlib.compress(bytes(1 << 26)), dense_task(5, 10).model.program):
        assert isinstance(answered(bench, told(program)), Failed)
    assert isinstance(answered(bench, GOOD), Opened)
    assert bench.trained().stats.num_samples >= 100


RNG = np.random.default_rng(2)
X, Y = RNG.normal(size=(600, 64)).astype(np.float32), RNG.integers(0, 10, 600)


def softmax(tensors: Any) -> np.ndarray:
    logits = (X @ tensors["weight"].T + tensors["bias"]).astype(np.float64)
    shifted = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(shifted / shifted.sum(axis=1, keepdims=True))


@pytest.mark.parametrize("frozen", [False, True])
def test_torch_gives_what_numpy_does(*, frozen: bool) -> None:
    task = dense_task(frozen=frozen)
    tensors = {**task.first, **task.once}
    graph = scored(Graph(task.model), task.once)
    assert graph is not None
    np.testing.assert_allclose(graph.forward(task.first, X), softmax(tensors), atol=1e-6)
    found = graph.evaluate(task.first, X, Y)
    expected = softmax(tensors)
    assert found.accuracy == pytest.approx((expected.argmax(axis=1) == Y).mean())
    loss = -np.log(expected[np.arange(len(Y)), Y]).mean()
    assert found.loss == pytest.approx(loss, rel=1e-5)
    assert graph.forward(task.first, X[:0]).shape == (0, 10)
