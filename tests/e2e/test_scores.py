"""Neural networks live: devices learn them, score them on their own samples, and say so."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fedagent_coordinator.reader import open_reader
from fedagent_task.features import scaled
from fedagent_task.models import create
from fedagent_task.recipe import parse_recipe

from .support import DEMO, check_books, new_field, start_small

MLP = ("model.kind=mlp", "model.hidden=[16]", "model.l2=0.0", "evaluation.on_device=true")


def _call(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "fedagent_cli.main", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={**os.environ, "COLUMNS": "140"},
    )
    return done.stdout


def test_devices_score_a_perceptron_while_they_learn_it(tmp_path: Path) -> None:
    with new_field(tmp_path) as field:
        coordinator = start_small(field, rounds=5, agents=2, sets=MLP)
        end = coordinator.wait("end", timeout_s=90)
        assert end["rounds_done"] == 5
        assert coordinator.wait_exit() == 0
        said = [event["device_score"] for event in coordinator.all("round")]
    check_books(coordinator)
    folder = Path(str(coordinator.config["data_dir"]))
    with open_reader(folder) as read:
        rows = read.rounds(read.run().run_id)
    scored = [row.metrics for row in rows if "device_score" in row.metrics]
    assert len(scored) >= 3
    assert all(0 <= metrics["device_score"] <= 1 for metrics in scored)
    assert all(metrics["device_samples"] >= 1 for metrics in scored)
    assert said == [row.metrics.get("device_score") for row in rows]
    # Two labels each, ten classes: the last model knows them, the first one does not.
    assert scored[-1]["device_score"] > scored[0]["device_score"]

    place = ("--data-dir", str(folder))
    listed = json.loads(_call("rounds", *place, "--json"))["rounds"]
    assert [row["metrics"].get("device_score") for row in listed] == said
    assert "on devices" in _call("rounds", *place)
    out = tmp_path / "report"
    out.mkdir()
    _call("report", str(folder), "--out", str(out))
    assert "on devices" in (out / "report.html").read_text()
    record = json.loads((out / "report.json").read_text())
    assert record["device_score"] == pytest.approx(scored[-1]["device_score"])


def test_the_exported_file_says_what_the_run_learnt(tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    with new_field(tmp_path) as field:
        coordinator = start_small(field, rounds=2, agents=1, sets=MLP)
        coordinator.wait("end", timeout_s=60)
        assert coordinator.wait_exit() == 0
    place = ("--data-dir", str(coordinator.config["data_dir"]))
    _call("models", "export", *place, "--onnx", str(tmp_path / "m.onnx"))
    _call("models", "export", *place, "--out", str(tmp_path / "m.npz"))
    recipe = parse_recipe(DEMO.read_text(), MLP)
    model = create(recipe.model)
    x = np.random.default_rng(0).integers(0, 17, size=(20, 64)).astype(np.float32)
    session = runtime.InferenceSession(
        (tmp_path / "m.onnx").read_bytes(), providers=["CPUExecutionProvider"]
    )
    (output,) = session.run(None, {"x": x})
    with np.load(tmp_path / "m.npz", allow_pickle=False) as arrays:
        weights = {name: arrays[name] for name in arrays.files}
    np.testing.assert_allclose(output, model.forward(weights, scaled(x, recipe.data)), atol=1e-5)


@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_a_convolutional_network_is_learnt_and_scored_live(tmp_path: Path, backend: str) -> None:
    if backend == "torch":
        pytest.importorskip("torch", reason="torch is not installed")
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 200)
    x = rng.integers(0, 60, (200, 16, 16)).astype(np.uint8)
    x[y == 0, :8] += 190  # bright above, or bright below
    x[y == 1, 8:] += 190
    np.savez(tmp_path / "halves.npz", x=x.reshape(200, -1), y=y)
    recipe = tmp_path / "halves.toml"
    recipe.write_text(
        'name = "halves"\n[model]\nkind = "cnn"\nlayout = "fashion"\nimage = [16, 16, 1]\n'
        "features = 256\nclasses = 2\n"
        '[data]\ndtype = "uint8"\nscale = 0.00392157\n'
        f'[learner]\nrate = 0.05\nbatch = 20\npasses = 2\nbuffer = 100\nbackend = "{backend}"\n'
        "[rounds]\ncount = 3\ndeadline_s = 20.0\nmin_updates = 1\n"
        "[budget]\nper_edge = 10.0\n"
        f'[evaluation]\ndataset = "{tmp_path}/halves.npz"\non_device = true\n'
    )
    with new_field(tmp_path) as field:
        coordinator = field.coordinator(recipe, broker="embedded")
        field.edge("edge-0", broker="embedded")
        agent = field.agent("agent-0", f"replay:{tmp_path}/halves.npz,rate=200,start=50")
        end = coordinator.wait("end", timeout_s=120)
        assert coordinator.wait_exit() == 0
        assert end["rounds_done"] == 3
        assert float(str(end["accuracy"])) > 0.9
        scores = [event["device_score"] for event in coordinator.all("round")]
        assert not agent.all("declined")
    assert float(str(scores[-1])) > 0.8
    check_books(coordinator)
