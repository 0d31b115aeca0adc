"""CIFAR-10 in its standard binary form: one label byte, then 3 planes of 32 x 32 bytes."""

from pathlib import Path

import numpy as np

from fedagent_task.errors import DatasetError

from .base import MAX_BYTES, Dataset, expect_size, read_bytes

_PIXELS = 3 * 32 * 32
_CLASSES = 10
_HINT = "give data_batch_1.bin or the like of cifar-10-binary.tar.gz"


def is_cifar(file: str) -> bool:
    """Tell whether a file is one of CIFAR-10's by its name, without ``.gz``."""
    return file.endswith(".bin") and file.startswith(("data_batch", "test_batch"))


def read_cifar(path: Path, limit: int = MAX_BYTES) -> Dataset:
    """Return samples uint8 [n, 3072] (red, green, blue plane) and labels int64 [n].

    Raises:
        DatasetError: It is no whole number of records, or a label is over 9.
    """
    data = read_bytes(path, limit)
    count, rest = divmod(len(data), 1 + _PIXELS)
    if rest or not count:
        raise DatasetError(
            str(path), f"has {len(data)} bytes, which are no records of {1 + _PIXELS}", _HINT
        )
    expect_size(path, count * (_PIXELS + 8), limit)
    records = np.frombuffer(data, np.uint8).reshape(count, 1 + _PIXELS)
    labels = records[:, 0].astype(np.int64)
    if labels.max() >= _CLASSES:
        raise DatasetError(str(path), f"has the label {labels.max()}, over 9", _HINT)
    return Dataset(records[:, 1:].copy(), labels)
