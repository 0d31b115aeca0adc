"""Images: IDX files (MNIST and its kin) and CIFAR-10 in binary, plain or gzip."""

import math
from pathlib import Path

import numpy as np

from fedagent_task.errors import DatasetError

from .base import MAX_BYTES, Dataset, Raw, expect_size, read_bytes

_DTYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
# What to do about a file that is none.
_IDX = "give an IDX file as MNIST has them"
_CIFAR_PIXELS = 3 * 32 * 32
_CIFAR_CLASSES = 10
_CIFAR = "give data_batch_1.bin or the like of cifar-10-binary.tar.gz"


def read_idx_array(path: Path, limit: int = MAX_BYTES) -> Raw:
    """Return the one array of an IDX file, in native byte order."""
    data = read_bytes(path, limit)
    if len(data) < 4 or data[:2] != b"\0\0" or data[2] not in _DTYPES or not 1 <= data[3] <= 8:
        raise DatasetError(str(path), "has no IDX header", _IDX)
    dtype, rank = np.dtype(_DTYPES[data[2]]), data[3]
    start = 4 + 4 * rank
    if len(data) < start:
        raise DatasetError(str(path), "the header is cut off", _IDX)
    shape = tuple(int.from_bytes(data[4 + 4 * i : 8 + 4 * i], "big") for i in range(rank))
    size = math.prod(shape) * dtype.itemsize
    expect_size(path, size, limit)
    if len(data) - start != size:
        raise DatasetError(str(path), f"has {len(data) - start} bytes of data, not {size}", _IDX)
    array = np.frombuffer(data, dtype, offset=start).reshape(shape)
    return array.astype(dtype.newbyteorder("="))


def read_idx(images: Path, limit: int = MAX_BYTES) -> Dataset:
    """Return samples and labels from two IDX files, ``images-idx3`` and ``labels-idx1``."""
    beside = images.with_name(images.name.replace("images-idx3", "labels-idx1"))
    if beside == images:
        raise DatasetError(str(images), "no labels file goes with it", "name it ...images-idx3...")
    x, y = read_idx_array(images, limit), read_idx_array(beside, limit)
    if x.ndim < 2 or y.ndim != 1 or len(x) != len(y):
        raise DatasetError(str(images), f"has {len(x)} samples, {beside.name} does not fit", _IDX)
    return Dataset(x.reshape(len(x), math.prod(x.shape[1:])), y.astype(np.int64))


def is_cifar(file: str) -> bool:
    """Tell whether a file is one of CIFAR-10's by its name, without ``.gz``."""
    return file.endswith(".bin") and file.startswith(("data_batch", "test_batch"))


def read_cifar(path: Path, limit: int = MAX_BYTES) -> Dataset:
    """Return samples uint8 [n, 3072] (red, green, blue plane) and labels int64 [n]."""
    data = read_bytes(path, limit)
    count, rest = divmod(len(data), 1 + _CIFAR_PIXELS)
    if rest or not count:
        raise DatasetError(
            str(path),
            f"has {len(data)} bytes, which are no records of {1 + _CIFAR_PIXELS}",
            _CIFAR,
        )
    expect_size(path, count * (_CIFAR_PIXELS + 8), limit)
    records = np.frombuffer(data, np.uint8).reshape(count, 1 + _CIFAR_PIXELS)
    labels = records[:, 0].astype(np.int64)
    if labels.max() >= _CIFAR_CLASSES:
        raise DatasetError(str(path), f"has the label {labels.max()}, over 9", _CIFAR)
    return Dataset(records[:, 1:].copy(), labels)
