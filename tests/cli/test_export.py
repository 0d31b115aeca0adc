"""A run's models and rounds as files that other tools read, read back by these tools."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from fedagent_cli import extras
from fedagent_cli.errors import MissingError, UsageError
from tests.typed import call, here, last_object


@pytest.mark.nightly
def test_tensorboard_reads_every_round_once(home: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    for _ in range(2):
        told = last_object(call(home, "export", "--tensorboard", str(tmp_path / "tb"), "--json"))
    assert told["rounds"] == 3
    (file,) = Path(str(told["tensorboard"])).glob("events.out.tfevents.*")
    assert file.read_bytes().count(b"credits/spent") == 3


@pytest.mark.nightly
def test_mlflow_reads_every_round(home: Path, tmp_path: Path) -> None:
    pytest.importorskip("mlflow")
    told = last_object(call(home, "export", "--mlflow", str(tmp_path / "ml"), "--json"))
    (folder,) = (tmp_path / "ml").glob(f"*/{told['mlflow_run']}")
    rows = [line.split() for line in (folder / "metrics/model/accuracy").read_text().splitlines()]
    assert [(float(value), int(step)) for _, value, step in rows][-1] == (0.8, 3)


def test_without_a_place_or_the_package_the_hint_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageError, match="--tensorboard DIR or --mlflow DIR"):
        here("export")
    monkeypatch.setattr(extras, "find_spec", lambda _: None)
    with pytest.raises(MissingError, match=r"tensorboardX package is .*\[tensorboard\]"):
        here("export", tensorboard=tmp_path)


@pytest.mark.parametrize("style", ["safetensors", "npz", "onnx"])
def test_models_leave_as_files(home: Path, tmp_path: Path, style: str) -> None:
    listed = last_object(call(home, "models", "list", "--json"))["models"]
    assert [row["round"] for row in listed] == [3]
    out = tmp_path / f"m.{style}"
    if style == "onnx":
        pytest.importorskip("onnx")
    read = last_object(call(home, "export", "--model", str(out), "--json"))
    assert read["format"] == style
    if style == "safetensors":
        weights = load_file(out)
    elif style == "npz":
        with np.load(out, allow_pickle=False) as arrays:
            weights = dict(arrays.items())
    else:
        assert out.stat().st_size > 650 * 4, "as many numbers as the others have"
        return
    shapes = {name: array.shape for name, array in weights.items()}
    assert shapes == {"weight": (10, 64), "bias": (10,)}


def test_a_model_that_is_gone_or_cannot_be_written_is_named(home: Path) -> None:
    done = call(home, "export", "--model", "m.npz", "--round", "1")
    assert (done.returncode, "kept are rounds: 3" in done.stderr) == (43, True)
    for option, name in (("--model", "m.foo"), ("--ledger", "m.txt"), ("--model", "m")):
        done = call(home, "export", option, name)
        assert (done.returncode, "does not end in ." in done.stderr) == (2, True)
        assert not (home / name).exists()
    done = call(home, "export", "--model", "none/m.npz")
    assert (done.returncode, "cannot write none/m.npz: " in done.stderr) == (2, True)
