"""A run in TensorBoard's and MLflow's own words, read back by their own readers."""

import struct
from pathlib import Path

import pytest

from fedagent_cli import extras
from fedagent_cli.errors import MissingError, UsageError
from tests.typed import call, here, last_object

pytest.importorskip("tensorboardX")


def events(folder: Path) -> dict[tuple[str, int], float]:
    """Read the records of event files: length, its check, data, its check."""
    from tensorboardX.proto.event_pb2 import Event

    found = {}
    (file,) = folder.glob("events.out.tfevents.*")
    data, at = file.read_bytes(), 0
    while at < len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        event = Event.FromString(data[at + 12 : at + 12 + length])
        for value in event.summary.value:
            found[value.tag, event.step] = value.simple_value
        at += 16 + length
    return found


def test_tensorboard_reads_every_round_once(home: Path, tmp_path: Path) -> None:
    for _ in range(2):
        told = last_object(call(home, "export", "--tensorboard", str(tmp_path / "tb"), "--json"))
    found = events(Path(str(told["tensorboard"])))
    assert told["rounds"] == 3
    assert found["credits/spent", 3] == 3.0
    assert found["model/accuracy", 3] == pytest.approx(0.8)
    assert {step for _, step in found} >= {1, 2, 3}


def test_mlflow_reads_every_round(home: Path, tmp_path: Path) -> None:
    pytest.importorskip("mlflow")
    told = last_object(call(home, "export", "--mlflow", str(tmp_path / "ml"), "--json"))
    (folder,) = (tmp_path / "ml").glob(f"*/{told['mlflow_run']}")
    rows = [line.split() for line in (folder / "metrics/model/accuracy").read_text().splitlines()]
    assert [(float(value), int(step)) for _, value, step in rows][-1] == (0.8, 3)
    assert (folder / "tags/fedagent.run").read_text() == told["run"]


def test_without_a_place_or_the_package_the_hint_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageError, match="--tensorboard DIR or --mlflow DIR"):
        here("export")
    monkeypatch.setattr(extras, "find_spec", lambda _: None)
    with pytest.raises(MissingError, match=r"tensorboardX package is .*\[tensorboard\]"):
        here("export", tensorboard=tmp_path)
