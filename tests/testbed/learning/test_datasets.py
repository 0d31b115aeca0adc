"""Datasets are there and scaled, or the error says what to set."""

import os
from pathlib import Path

import numpy as np
import pytest

from fedagent_task.errors import DatasetError
from fedagent_testbed.learning import load

HAS_DATA = bool(os.environ.get("FEDAGENT_DATA"))


def test_digits_are_bundled_scaled_and_split() -> None:
    data = load("digits")
    assert data.x.dtype == np.float32
    assert (data.x.shape, data.test_x.shape) == ((1438, 64), (359, 64))
    assert (data.x.min(), data.x.max(), data.classes) == (0.0, 1.0, 10)
    assert set(np.unique(data.test_y)) == set(range(10))


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
def test_absent_files_say_what_to_set(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("FEDAGENT_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DatasetError) as caught:
        load(name)
    assert caught.value.path == name
    assert "FEDAGENT_DATA" in caught.value.hint
    assert f"{name}/train-images-idx3-ubyte.gz" in caught.value.hint


def test_damaged_files_are_not_called_absent(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "mnist" / "train-images-idx3-ubyte.gz"
    file.parent.mkdir()
    file.write_bytes(b"no images")
    monkeypatch.setenv("FEDAGENT_DATA", str(tmp_path))
    with pytest.raises(DatasetError, match="IDX header"):
        load("mnist")


def test_unknown_names_are_refused() -> None:
    with pytest.raises(DatasetError, match="digits, mnist, fashion-mnist"):
        load("cifar")


@pytest.mark.skipif(not HAS_DATA, reason="FEDAGENT_DATA is not set")
@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
def test_files_are_read(name: str) -> None:
    data = load(name)
    assert (data.x.shape, data.test_x.shape) == ((60_000, 784), (10_000, 784))
    assert (data.x.min(), data.x.max(), data.classes) == (0.0, 1.0, 10)
