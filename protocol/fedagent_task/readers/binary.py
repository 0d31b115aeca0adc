"""Binary files: numpy archives with the bundled digits, IDX (MNIST and its kin), CIFAR-10.

IDX and CIFAR-10 are plain or gzip.
"""

import math
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from numpy.lib.npyio import NpzFile

from fedagent_task.errors import DatasetError

from .base import MAX_BYTES, Dataset, Raw, expect_size, read_bytes, whole_numbers

_SAMPLES_HINT = "save it by numpy.savez(path, x=..., y=...)"
_SERIES_HINT = "save values [station, time, sensor] and columns by numpy.savez"
DIGITS = Path(__file__).parent.parent / "data" / "digits.npz"
"""See ``data/README.md``."""
_SPLIT_SEED = 1998
_TEST_SHARE = 0.2
_DTYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
# What to do about a file that is none.
_IDX = "give an IDX file as MNIST has them"
_CIFAR_PIXELS = 3 * 32 * 32
_CIFAR_CLASSES = 10
_CIFAR = "give data_batch_1.bin or the like of cifar-10-binary.tar.gz"


@contextmanager
def _archive(path: Path, limit: int, wrong: str, hint: str) -> Iterator[NpzFile]:
    """Open an archive that unpacks to no more than the limit; nothing in it is ever executed."""
    try:
        with zipfile.ZipFile(path) as archive:
            expect_size(path, sum(item.file_size for item in archive.infolist()), limit)
        with np.load(path, allow_pickle=False) as arrays:
            yield arrays
    except OSError as error:
        raise DatasetError(str(path), error.strerror or "cannot be read", "check it") from error
    except (KeyError, ValueError, EOFError, zipfile.BadZipFile, NotImplementedError) as error:
        raise DatasetError(str(path), wrong, hint) from error


def read_npz(path: Path, limit: int = MAX_BYTES) -> Dataset:
    """Return ``x`` [n, ...], flattened to rows, and ``y`` [n]."""
    with _archive(path, limit, "is no archive with x and y", _SAMPLES_HINT) as arrays:
        x, y = arrays["x"], arrays["y"]
    numeric = x.dtype.kind in "fiub" and y.dtype.kind in "fiub"
    if not numeric or x.ndim < 2 or y.ndim != 1 or len(x) != len(y):
        what = f"x is {x.dtype}{x.shape}, y is {y.dtype}{y.shape}"
        raise DatasetError(str(path), what, _SAMPLES_HINT)
    labels = y.astype(np.int64) if y.dtype.kind in "iub" else whole_numbers(y.astype(np.float64))
    return Dataset(x.reshape(len(x), math.prod(x.shape[1:])), labels)


@dataclass(frozen=True, slots=True, eq=False)
class Series:
    """Readings of stations at the same times: float32 [station, time, sensor], NaN where missing.

    `columns` are what the sensors are called.
    """

    values: npt.NDArray[np.float32]
    columns: tuple[str, ...]


def read_series(path: Path, limit: int = MAX_BYTES) -> Series:
    """Return an archive of ``values`` and ``columns``."""
    with _archive(path, limit, "is no archive of a series", _SERIES_HINT) as arrays:
        values, columns = arrays["values"], arrays["columns"]
    fits = values.ndim == 3 and values.dtype.kind in "fiu" and columns.shape == values.shape[2:]
    if not (fits and columns.dtype.kind == "U" and values.size):
        raise DatasetError(str(path), f"values are {values.dtype}{values.shape}", _SERIES_HINT)
    return Series(values.astype(np.float32, copy=False), tuple(map(str, columns)))


def read_digits(part: str) -> Dataset:
    """Return the ``train`` (1438) or ``test`` (359) digits: x uint8 [n, 64] of 0 to 16.

    The split is stratified by digit and never changes.
    """
    digits = read_npz(DIGITS)
    rng = np.random.default_rng(_SPLIT_SEED)
    held_out = np.zeros(len(digits), np.bool_)
    for label in range(10):
        members = rng.permutation(np.flatnonzero(digits.y == label))
        held_out[members[: round(_TEST_SHARE * len(members))]] = True
    return digits.rows(np.flatnonzero(held_out if part == "test" else ~held_out))


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
