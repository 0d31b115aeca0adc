"""`fedagent models`, on a directory that the real store wrote."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from fedagent_task.models import create
from fedagent_task.models.features import scaled
from fedagent_task.recipe.text import parse_recipe
from tests.fakes.written_runs import RECIPE
from tests.typed import call, last_object


@pytest.mark.parametrize("style", ["safetensors", "npz"])
def test_models_leave_as_files(home: Path, tmp_path: Path, style: str) -> None:
    listed = last_object(call(home, "models", "list", "--json"))["models"]
    assert [row["round"] for row in listed] == [3]
    out = tmp_path / f"m.{style}"
    read = last_object(call(home, "export", "--model", str(out), "--json"))
    assert read["format"] == style
    if style == "npz":
        with np.load(out, allow_pickle=False) as arrays:
            shapes = {name: arrays[name].shape for name in arrays.files}
    else:
        shapes = {name: array.shape for name, array in load_file(out).items()}
    assert shapes == {"weight": (10, 64), "bias": (10,)}


def test_a_model_leaves_as_an_onnx_file(home: Path) -> None:
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    pytest.importorskip("onnx", reason="onnx is not installed")
    read = last_object(call(home, "export", "--model", "m.onnx", "--json"))
    assert (read["format"], read["model"]) == ("onnx", "m.onnx")
    session = runtime.InferenceSession(
        (home / "m.onnx").read_bytes(), providers=["CPUExecutionProvider"]
    )
    call(home, "export", "--model", "m.npz")
    with np.load(home / "m.npz", allow_pickle=False) as arrays:
        weights = dict(arrays.items())
    recipe = parse_recipe(RECIPE)
    x = np.random.default_rng(0).integers(0, 17, size=(20, 64)).astype(np.float32)
    (output,) = session.run(None, {"x": x})
    expected = create(recipe.model).forward(weights, scaled(x, recipe.data))
    np.testing.assert_allclose(output, expected, atol=1e-5)


def test_a_model_that_is_gone_is_named(home: Path) -> None:
    done = call(home, "export", "--model", "m.npz", "--round", "1")
    assert done.returncode == 43
    assert "kept are rounds: 3" in done.stderr


@pytest.mark.parametrize("place", ["none/m.safetensors", "none/m.npz", "."])
def test_a_place_where_no_model_can_be_written_is_named(home: Path, place: str) -> None:
    done = call(home, "export", "--model", place)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert f"cannot write {place}: " in done.stderr
