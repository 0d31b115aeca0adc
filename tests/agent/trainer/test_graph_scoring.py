"""Scores of models that travel as graphs, on the device and with either engine."""

from typing import Any

import numpy as np
import pytest

from fedagent_agent.trainer.frames import Open, Opened
from fedagent_task.errors import ProgramError
from fedagent_task.models import create
from fedagent_task.models.graph import Graph
from fedagent_task.recipe.spec import ModelSpec, TaskSpec
from fedagent_task.recipe.text import task_bytes
from fedagent_task.scoring.graph import WEIGHT, scored
from tests.fakes.graph_tasks import dense_task
from tests.fakes.trainer_bench import TrainerBench

pytest.importorskip("torch")
RNG = np.random.default_rng(2)
X, Y = RNG.normal(size=(600, 64)).astype(np.float32), RNG.integers(0, 10, 600)


def softmax(tensors: Any) -> np.ndarray:
    logits = (X @ tensors["weight"].T + tensors["bias"]).astype(np.float64)
    shifted = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(shifted / shifted.sum(axis=1, keepdims=True))


def onnx_of(spec: ModelSpec) -> bytes:
    """Return the ONNX graph of a dense task, as torch's exporter names its inputs."""
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    shapes = {"x": ["n", spec.features], "output": ["n", spec.classes]}
    shapes |= {WEIGHT + one.name: list(one.shape) for one in Graph(spec).program.tensors}
    known = {
        name: onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)
        for name, shape in shapes.items()
    }
    output = known.pop("output")
    inputs = ["x", WEIGHT + "weight", WEIGHT + "bias"]
    node = onnx.helper.make_node("Gemm", inputs, ["output"], transB=1)
    graph = onnx.helper.make_graph([node], "dense", list(known.values()), [output])
    opset = onnx.helper.make_opsetid("", 18)
    made = onnx.helper.make_model(graph, opset_imports=[opset], ir_version=10)
    return bytes(made.SerializeToString())


@pytest.mark.parametrize("by", ["torch", "onnx"])
@pytest.mark.parametrize("frozen", [False, True])
def test_both_engines_give_what_numpy_does(by: str, *, frozen: bool) -> None:
    task = dense_task(frozen=frozen)
    tensors = {**task.first, **task.once}
    graph = scored(Graph(task.model), task.once, onnx_of(task.model) if by == "onnx" else b"")
    assert graph is not None
    np.testing.assert_allclose(graph.forward(task.first, X), softmax(tensors), atol=1e-6)
    found = graph.evaluate(task.first, X, Y)
    expected = softmax(tensors)
    assert found.accuracy == pytest.approx((expected.argmax(axis=1) == Y).mean())
    loss = -np.log(expected[np.arange(len(Y)), Y]).mean()
    assert found.loss == pytest.approx(loss, rel=1e-5)
    assert graph.forward(task.first, X[:0]).shape == (0, 10)


def test_an_onnx_graph_of_another_model_is_refused() -> None:
    task = dense_task()
    other = onnx_of(dense_task(3, 4).model)
    found = scored(Graph(task.model), {}, other)
    assert found is not None
    with pytest.raises(ProgramError, match="does not run"):
        found.forward(task.first, X)


def test_the_trainer_tells_the_score_of_a_graph(tmp_path: Any) -> None:
    task = dense_task()
    spec = TaskSpec(model=task.model, on_device=True)
    bench = TrainerBench(tmp_path)
    bench.task = spec
    bench.base(dict(task.first))

    opened = bench.trainer.answer(
        Open(job=1, task=task_bytes(spec), stream="digits:start=300", seed=1)
    )
    assert isinstance(opened, Opened), opened
    stats = bench.trained().stats
    assert stats.score_n >= 300
    assert 0 < stats.score < 1
    assert isinstance(create(task.model), Graph)
