"""numpy archives with arrays ``x`` and ``y``; nothing in them is ever executed."""

import math
import zipfile
from pathlib import Path

import numpy as np

from fedagent_task.errors import DatasetError

from .base import MAX_BYTES, Dataset, expect_size, whole_numbers

_HINT = "save it by numpy.savez(path, x=..., y=...)"


def read_npz(path: Path, limit: int = MAX_BYTES) -> Dataset:
    """Return ``x`` [n, ...], flattened to rows, and ``y`` [n].

    Raises:
        DatasetError: The file is no such archive, holds objects, or is too large.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            expect_size(path, sum(item.file_size for item in archive.infolist()), limit)
        with np.load(path, allow_pickle=False) as arrays:
            x, y = arrays["x"], arrays["y"]
    except OSError as error:
        raise DatasetError(str(path), error.strerror or "cannot be read", "check it") from error
    except (KeyError, ValueError, EOFError, zipfile.BadZipFile, NotImplementedError) as error:
        raise DatasetError(str(path), "is no archive with x and y", _HINT) from error
    numeric = x.dtype.kind in "fiub" and y.dtype.kind in "fiub"
    if not numeric or x.ndim < 2 or y.ndim != 1 or len(x) != len(y):
        raise DatasetError(str(path), f"x is {x.dtype}{x.shape}, y is {y.dtype}{y.shape}", _HINT)
    labels = y.astype(np.int64) if y.dtype.kind in "iub" else whole_numbers(y.astype(np.float64))
    return Dataset(x.reshape(len(x), math.prod(x.shape[1:])), labels)
