"""Binary files: numpy archives with the bundled digits, and IDX (MNIST and its kin)."""

import math
import zipfile
from pathlib import Path

import numpy as np

from fedagent_task.errors import DatasetError

from .base import MAX_BYTES, Dataset, Raw, expect_size, read_bytes, whole_numbers

_SAMPLES_HINT = "save it by numpy.savez(path, x=..., y=...)"
DIGITS = Path(__file__).parent.parent / "data" / "digits.npz"
"""See ``data/README.md``."""
_SPLIT_SEED = 1998
_TEST_SHARE = 0.2
_DTYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_IDX = "give an IDX file as MNIST has them"


def read_npz(path: Path, limit: int = MAX_BYTES) -> Dataset:
    """Return ``x`` [n, ...], flattened to rows, and ``y`` [n]; nothing in it is ever executed."""
    try:
        with zipfile.ZipFile(path) as archive:
            expect_size(path, sum(item.file_size for item in archive.infolist()), limit)
        with np.load(path, allow_pickle=False) as arrays:
            x, y = arrays["x"], arrays["y"]
    except OSError as error:
        raise DatasetError(str(path), error.strerror or "cannot be read", "check it") from error
    except (KeyError, ValueError, EOFError, zipfile.BadZipFile, NotImplementedError) as error:
        raise DatasetError(str(path), "is no archive with x and y", _SAMPLES_HINT) from error
    numeric = x.dtype.kind in "fiub" and y.dtype.kind in "fiub"
    if not numeric or x.ndim < 2 or y.ndim != 1 or len(x) != len(y):
        what = f"x is {x.dtype}{x.shape}, y is {y.dtype}{y.shape}"
        raise DatasetError(str(path), what, _SAMPLES_HINT)
    labels = y.astype(np.int64) if y.dtype.kind in "iub" else whole_numbers(y.astype(np.float64))
    return Dataset(x.reshape(len(x), math.prod(x.shape[1:])), labels)


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
