"""Models that travel as graphs, exported and used: a whole state, ONNX, predictions."""

import json
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

import fedagent
from fedagent_cli.errors import MissingError
from fedagent_coordinator.runs import read_first_model
from fedagent_task.models.graph import Graph
from fedagent_task.recipe.files import open_recipe
from fedagent_task.recipe.spec import ModelSpec
from fedagent_task.scoring import graph as graph_scoring
from fedagent_task.scoring.graph import WEIGHT
from tests.fakes.coordinator_site import Site, toy_edges
from tests.fakes.graph_tasks import dense_task, written
from tests.typed import here

pytest.importorskip("torch")


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


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Return the data directory of a run that has ended."""
    onnx = onnx_of(dense_task(frozen=True).model)
    path = written(tmp_path, dense_task(frozen=True, onnx=onnx))
    sets = ("rounds.count=1", "rounds.deadline_s=2", "data.scale=0.5")
    file = open_recipe(path, sets)
    site = Site(tmp_path / "data", file.recipe, toy_edges(file.recipe), task=file.task)
    site.run()
    site.close()
    return site.folder


def test_safetensors_are_the_whole_state_of_the_module(data: Path, tmp_path: Path) -> None:
    here("export", model=(out := tmp_path / "m.safetensors"), data_dir=data)
    state = safetensors.numpy.load_file(out)
    assert {name: t.shape for name, t in state.items()} == {"weight": (10, 64), "bias": (10,)}
    np.testing.assert_array_equal(state["weight"], dense_task(frozen=True).once["weight"])
    recipe = open_recipe(next(tmp_path.glob("*.fedtask"))).recipe
    first = safetensors.numpy.load(read_first_model(str(out), tmp_path, recipe))
    assert first.keys() == {"bias"}
    np.testing.assert_array_equal(first["bias"], state["bias"])


def test_both_files_predict_the_same(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = []
    for name in ("m.safetensors", "m.onnx"):
        here("export", model=tmp_path / name, data_dir=data)
        capsys.readouterr()
        here("predict", tmp_path / name, stream="digits:start=20", count=20, json=True)
        said.append([json.loads(line) for line in capsys.readouterr().out.splitlines()])
    one, other = said
    assert [line.get("prediction") for line in one] == [line.get("prediction") for line in other]
    for a, b in zip(one[:-1], other[:-1], strict=True):
        assert a["probabilities"] == pytest.approx(b["probabilities"], abs=1e-5)
        assert sum(a["probabilities"]) == pytest.approx(1)


def test_what_cannot_be_says_so_in_one_line(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here("export", model=(out := tmp_path / "m.safetensors"), data_dir=data)
    for graph in (data / "graphs").iterdir():
        graph.unlink()
    with pytest.raises(MissingError, match="has no ONNX graph; export as safetensors"):
        here("export", model=tmp_path / "m.onnx", data_dir=data)
    monkeypatch.setattr(graph_scoring, "find_spec", lambda _name: None)
    with pytest.raises(MissingError, match=r"torch package is not installed.*as \.onnx"):
        here("predict", out, stream="digits", count=1)


def test_what_devices_got_once_is_used_only_as_it_was(data: Path, tmp_path: Path) -> None:
    once = data / "models" / dense_task(frozen=True).model.once
    once.write_bytes(once.read_bytes()[:-1])
    with pytest.raises(MissingError, match="has changed; restore it"):
        here("export", model=tmp_path / "n.safetensors", data_dir=data)
    once.unlink()
    with pytest.raises(MissingError, match="cannot read"):
        fedagent.load_model(data)
