"""`fedagent models`, on a directory that the real store wrote."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from fedagent_task.features import scaled
from fedagent_task.models import create
from fedagent_task.recipe import parse_recipe
from tests.fakes.written_runs import RECIPE
from tests.typed import call, last_object


@pytest.mark.parametrize("style", ["safetensors", "npz"])
def test_models_leave_as_files(home: Path, tmp_path: Path, style: str) -> None:
    listed = last_object(call(home, "models", "list", "--json"))["models"]
    assert [row["round"] for row in listed] == [3]
    out = tmp_path / f"m.{style}"
    read = last_object(call(home, "models", "export", "--out", str(out), "--json"))
    assert read["format"] == style
    if style == "npz":
        with np.load(out, allow_pickle=False) as arrays:
            shapes = {name: arrays[name].shape for name in arrays.files}
    else:
        shapes = {name: array.shape for name, array in load_file(out).items()}
    assert shapes == {"weight": (10, 64), "bias": (10,)}


@pytest.mark.parametrize(
    "arguments", [("--onnx", "m.onnx"), ("--out", "m.onnx"), ("--out", "m", "--format", "onnx")]
)
def test_a_model_leaves_as_an_onnx_file(home: Path, arguments: tuple[str, ...]) -> None:
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    pytest.importorskip("onnx", reason="onnx is not installed")
    read = last_object(call(home, "models", "export", *arguments, "--json"))
    assert (read["format"], read["out"]) == ("onnx", arguments[1])
    session = runtime.InferenceSession(
        (home / arguments[1]).read_bytes(), providers=["CPUExecutionProvider"]
    )
    call(home, "models", "export", "--out", "m.npz")
    with np.load(home / "m.npz", allow_pickle=False) as arrays:
        weights = dict(arrays.items())
    recipe = parse_recipe(RECIPE)
    x = np.random.default_rng(0).integers(0, 17, size=(20, 64)).astype(np.float32)
    (output,) = session.run(None, {"x": x})
    expected = create(recipe.model).forward(weights, scaled(x, recipe.data))
    np.testing.assert_allclose(output, expected, atol=1e-5)


def test_a_model_that_is_gone_is_named(home: Path) -> None:
    done = call(home, "models", "export", "--round", "1")
    assert done.returncode == 43
    assert "kept are rounds: 3" in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("--out", "none/m.safetensors"),
        ("--out", "none/m.npz"),
        ("--out", ".", "--format", "npz"),
        ("--onnx", "none/m.onnx"),
    ],
)
def test_a_place_where_no_model_can_be_written_is_named(
    home: Path, arguments: tuple[str, ...]
) -> None:
    if "--onnx" in arguments:
        pytest.importorskip("onnx", reason="onnx is not installed")
    done = call(home, "models", "export", *arguments)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert f"cannot write {arguments[1]}: " in done.stderr
