"""Neural networks live: devices learn them, score them on their own samples, and say so."""

import json
from pathlib import Path

import numpy as np
import pytest

from fedagent_coordinator.books.reader import open_reader
from tests.typed import fedagent

from .support import check_books, new_field, start_small

MLP = ("model.kind=mlp", "model.hidden=[16]", "model.l2=0.0", "evaluation.on_device=true")


def _call(*arguments: str) -> str:
    done = fedagent(*arguments, env={"COLUMNS": "140"})
    assert done.returncode == 0, done.stderr
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
    listed = json.loads(_call("status", "--rounds", "20", *place, "--json"))["rounds"]
    assert [row["metrics"].get("device_score") for row in listed] == said
    assert "on devices" in _call("status", "--rounds", "20", *place)
    out = tmp_path / "report"
    out.mkdir()
    _call("report", str(folder), "--out", str(out))
    assert "on devices" in (out / "report.html").read_text()
    record = json.loads((out / "report.json").read_text())
    assert record["device_score"] == pytest.approx(scored[-1]["device_score"])


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
