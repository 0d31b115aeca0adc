"""What a reader returns, the limits that all of them keep, and how files are opened."""

import gzip
import os
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedagent_task.errors import DatasetError

MAX_BYTES = 2 * 1024**3
"""Most bytes that a reader unpacks, and that its arrays take."""

Raw = npt.NDArray[np.generic]
Labels = npt.NDArray[np.int64] | npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Dataset:
    """Samples as they are in the file, before any scaling."""

    x: Raw  # features [n, features] in the file's own dtype
    y: Labels  # labels [n]: int64 where all are whole numbers, else float64
    names: tuple[str, ...] = ()  # of the features; empty if the file does not say

    def __len__(self) -> int:
        return len(self.y)

    def rows(self, index: npt.NDArray[np.intp] | slice) -> "Dataset":
        """Return some of the samples."""
        return Dataset(self.x[index], self.y[index], self.names)

    def ordered(self, names: Sequence[str]) -> "Dataset":
        """Return the features of these names, in this order; all where one has another name."""
        if not names or not set(names) <= set(self.names):
            return self
        return Dataset(self.x[:, [*map(self.names.index, names)]], self.y, tuple(names))


def read_bytes(path: Path, limit: int = MAX_BYTES) -> bytes:
    """Return the file's bytes, unpacked if it is gzip; raise `DatasetError` beyond the limit."""
    try:
        with path.open("rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            large = not packed and os.fstat(file.fileno()).st_size > limit
            whole = gzip.GzipFile(fileobj=file) if packed else file
            data = b"" if large else whole.read(limit + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DatasetError(str(path), "the gzip data is damaged", "download it again") from error
    except OSError as error:
        reason = error.strerror or "cannot be read"
        raise DatasetError(str(path), reason, "check the path") from error
    if large or len(data) > limit:
        raise DatasetError(str(path), f"is larger than {limit} bytes", "use a part of it")
    return data


def expect_size(path: Path, nbytes: int, limit: int = MAX_BYTES) -> None:
    """Raise `DatasetError` before arrays of this size are made, if they are too large."""
    if nbytes > limit:
        raise DatasetError(
            str(path), f"needs {nbytes} bytes, the limit is {limit}", "use a part of it"
        )


def whole_numbers(y: npt.NDArray[np.float64]) -> Labels:
    """Return the labels as int64 if they all are whole numbers."""
    if np.isfinite(y).all() and (np.abs(y) < 2**53).all() and (y == np.floor(y)).all():
        return y.astype(np.int64)
    return y
