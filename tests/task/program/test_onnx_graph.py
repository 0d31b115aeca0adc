"""The ONNX graph of a task gives what torch gives, with tensors that have moved since."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import nn

from fedagent_task.errors import TaskFormatError
from fedagent_task.program.codec import elements
from fedagent_task.program.export import Made, make_task
from fedagent_task.program.source import TaskSource
from fedagent_task.program.spec import Program
from fedagent_task.program.torch_program import TorchProgram
from fedagent_task.scoring.graph import WEIGHT
from tests.fakes.torch_models import FAMILIES
from tests.task.program.test_families import made as built_family

onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")


def rows(
    program: Program, rng: np.random.Generator, count: int
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Return samples as a stream has them, and labels."""
    parts = []
    for one in program.inputs:
        shape = (count, elements(one.shape))
        kind = one.dtype
        parts.append(rng.integers(0, 5, shape) if kind == "int64" else rng.normal(size=shape))
    x = np.concatenate(parts, axis=1).astype(np.float32)
    return x, np.zeros(count, np.float32)


def compared(made: Made) -> float:
    """Return the largest difference between onnxruntime and torch, for 5 samples and for 1."""
    task = made.task
    assert task.onnx, made.notes
    program = TorchProgram(task.program)
    rng = np.random.default_rng(0)
    tensors = {
        name: np.abs(value + rng.normal(scale=0.01, size=value.shape)).astype(np.float32)
        if "var" in name
        else (value + rng.normal(scale=0.01, size=value.shape)).astype(np.float32)
        for name, value in {**task.first, **task.once}.items()
    }
    program.load(tensors)
    session = onnxruntime.InferenceSession(task.onnx, providers=["CPUExecutionProvider"])
    weights = [one.name for one in session.get_inputs() if one.name != "x"]
    feeds = {name: tensors[name.removeprefix(WEIGHT)] for name in weights}
    worst = 0.0
    for count in (5, 1):
        x, y = rows(program.program, rng, count)
        output, _ = program.evaluate(program.inputs_of(x, y))
        expected = output.reshape(count, -1).numpy()
        (given,) = session.run(None, {**feeds, "x": x})
        assert given.shape == expected.shape
        worst = max(worst, float(np.abs(given - expected).max()))
    return worst


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in ("mlp", "two-inputs") else pytest.mark.nightly)
        for name in FAMILIES
    ],
)
def test_onnxruntime_gives_what_torch_gives(name: str) -> None:
    source, built = built_family(name)
    assert compared(made := make_task(source, built)) < 1e-4
    # A note of where the author's modules are would tell more than the task.
    assert str(Path(__file__).parent).encode() not in made.task.onnx


class Along(nn.Linear):
    """Takes numbers by places that torch's exporter can follow for one size of a batch only."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        seen = super().forward(x)
        return torch.take_along_dim(seen, seen.long().clamp(0, 1), 1)


def test_what_has_no_form_is_said_and_the_task_is_made() -> None:
    example = (torch.randn(4, 3), torch.zeros(4).long())
    made = make_task(TaskSource(Along(3, 2), nn.functional.cross_entropy, example))
    assert made.task.onnx == b""
    (note,) = made.notes
    assert note.startswith("no ONNX graph, so scoring needs torch: ")
    assert "\n" not in note


def test_a_graph_that_loops_for_ever_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    from onnx import TensorProto, helper

    from fedagent_task.scoring import onnx_session

    monkeypatch.setattr(onnx_session, "LONGEST_S", 0.2)
    numbers = {"shape": ["n", 4], "elem_type": TensorProto.FLOAT}
    goes_on = {"shape": [], "elem_type": TensorProto.BOOL}
    same = [helper.make_node("Identity", [a], [b]) for a, b in (("go", "on"), ("v", "w"))]
    body = helper.make_graph(
        same,
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", **goes_on),
            helper.make_tensor_value_info("v", **numbers),
        ],
        [
            helper.make_tensor_value_info("on", **goes_on),
            helper.make_tensor_value_info("w", **numbers),
        ],
    )
    graph = helper.make_graph(
        [helper.make_node("Loop", ["times", "yes", "x"], ["output"], body=body)],
        "graph",
        [helper.make_tensor_value_info("x", **numbers)],
        [helper.make_tensor_value_info("output", **numbers)],
        [
            helper.make_tensor("times", TensorProto.INT64, [], [2**62]),
            helper.make_tensor("yes", TensorProto.BOOL, [], [True]),
        ],
    )
    opsets = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    session = onnx_session.GraphSession(model.SerializeToString(), set())
    with pytest.raises(TaskFormatError, match="does not run"):
        session.forward({}, np.ones((2, 4), np.float32))
