"""CIFAR-10's binary form, on files that the tests make."""

import gzip
from pathlib import Path

import numpy as np
import pytest

from fedagent_task.errors import DatasetError
from fedagent_task.readers import load
from fedagent_task.readers.images import read_cifar


def _file(
    path: Path, labels: list[int], seed: int = 0
) -> np.ndarray[tuple[int, int], np.dtype[np.uint8]]:
    pixels = np.random.default_rng(seed).integers(0, 256, (len(labels), 3072), np.uint8)
    body = b"".join(
        bytes([label]) + row.tobytes() for label, row in zip(labels, pixels, strict=True)
    )
    path.write_bytes(gzip.compress(body) if path.suffix == ".gz" else body)
    return pixels


@pytest.mark.parametrize("name", ["data_batch_1.bin", "test_batch.bin", "data_batch_3.bin.gz"])
def test_records_come_back_by_the_standard_names(tmp_path: Path, name: str) -> None:
    pixels = _file(tmp_path / name, [3, 0, 9, 9])
    data = load(str(tmp_path / name))
    assert data.x.dtype == np.uint8
    assert data.y.dtype == np.int64
    np.testing.assert_array_equal(data.x, pixels)
    assert data.y.tolist() == [3, 0, 9, 9]


def test_what_is_not_cifar_is_one_error(tmp_path: Path) -> None:
    path = tmp_path / "data_batch_1.bin"
    for body, says in (
        (b"", "no records of 3073"),
        (b"\0" * 3072, "no records of 3073"),
        (b"\0" * 3074, "no records of 3073"),
        (b"\x0a" + b"\0" * 3072, "label 10"),
    ):
        path.write_bytes(body)
        with pytest.raises(DatasetError, match=says):
            load(str(path))


def test_a_file_over_the_limit_is_refused_before_it_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "data_batch_1.bin.gz"
    path.write_bytes(gzip.compress(b"\0" * 3073 * 100))
    with pytest.raises(DatasetError, match="larger than"):
        read_cifar(path, limit=3073 * 50)
    assert len(read_cifar(path)) == 100
