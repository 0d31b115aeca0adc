"""Text: CSV tables, MovieLens' ``u.data``, and LIBSVM's ``label index:value ...``."""

from array import array
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedagent_task.errors import DatasetError
from fedagent_task.models.base import Csr

from .base import MAX_BYTES, Dataset, Labels, expect_size, read_bytes, whole_numbers

_CSV = "write one sample per line, with the numbers separated by commas"
MAX_FEATURES = 100_000_000


def read_csv(path: Path, limit: int = MAX_BYTES) -> Dataset:
    """Return a CSV file of numbers, the label last; a first line of names is skipped."""
    lines = [line for line in read_bytes(path, limit).splitlines() if line.strip()]
    if not lines:
        raise DatasetError(str(path), "has no line", _CSV)
    first = lines[0].split(b",")
    if len(first) < 2:
        raise DatasetError(str(path), f"has only {len(first)} columns", "name the label's column")
    body = lines if _numbers(first) else lines[1:]
    expect_size(path, 8 * len(body) * len(first), limit)
    table = np.empty((len(body), len(first)), np.float64)
    for row, line in enumerate(body):
        fields = line.split(b",")
        if len(fields) != len(first):
            raise DatasetError(
                str(path),
                f"sample {row + 1} has {len(fields)} columns, not {len(first)}",
                _CSV,
            )
        try:
            table[row] = [float(field) for field in fields]
        except ValueError as error:
            raise DatasetError(str(path), f"sample {row + 1} is not a number", _CSV) from error
    return Dataset(table[:, :-1].copy(), whole_numbers(table[:, -1].copy()))


def read_ratings(path: Path, limit: int = MAX_BYTES) -> Dataset:
    """Return MovieLens' ``u.data``: x is (user, item) int64 from 1, y the rating."""
    rows: list[tuple[int, int, int, int]] = []
    for number, line in enumerate(read_bytes(path, limit).splitlines(), 1):
        fields = line.split()
        if not fields:
            continue
        try:
            user, item, rating, when = map(int, fields)
        except ValueError as error:
            raise DatasetError(
                str(path), f"line {number} is malformed", "write user item rating time"
            ) from error
        if not (
            0 < user < 2**31 and 0 < item < 2**31 and abs(rating) < 2**31 and 0 <= when < 2**53
        ):
            raise DatasetError(str(path), f"line {number} is out of range", "number from 1")
        rows.append((user, item, rating, when))
    table = np.array(rows, np.int64).reshape(len(rows), 4)
    return Dataset(table[:, :2].copy(), table[:, 2].copy())


def _numbers(fields: list[bytes]) -> bool:
    try:
        [float(field) for field in fields]
    except ValueError:
        return False
    return True


@dataclass(frozen=True, slots=True, eq=False)
class SparseDataset:
    """Samples as compressed sparse rows, and their labels [n]."""

    x: Csr
    y: Labels

    def __len__(self) -> int:
        return len(self.y)

    def rows(self, index: npt.NDArray[np.intp] | slice) -> "SparseDataset":
        """Return some of the samples."""
        return SparseDataset(self.x[index], self.y[index])


def read_libsvm_sparse(
    path: Path, features: int | None = None, limit: int = MAX_BYTES
) -> SparseDataset:
    """Return a LIBSVM file as sparse rows; labels -1 and +1 become 0 and 1.

    `features` is the number of columns, the largest index if absent.
    """
    values, columns, starts, labels = array("f"), array("i"), array("q", [0]), array("d")
    for number, line in enumerate(read_bytes(path, limit).split(b"\n"), 1):
        fields = line.partition(b"#")[0].split()
        if not fields:
            continue
        try:
            labels.append(float(fields[0]))
            _read_row(fields[1:], values, columns)
        except ValueError as error:
            raise DatasetError(
                str(path), f"line {number} is malformed", "write label index:value ..."
            ) from error
        starts.append(len(values))
    widest = max(columns, default=-1) + 1
    if features is not None and widest > features:
        raise DatasetError(
            str(path), f"has feature {widest}, only {features} are expected", "raise width"
        )
    x = Csr(
        np.array(starts, np.int64),
        np.array(columns, np.int32),
        np.array(values, np.float32),
        widest if features is None else features,
    )
    return SparseDataset(x, _binary_to_01(np.array(labels, np.float64)))


def read_libsvm(path: Path, features: int | None = None, limit: int = MAX_BYTES) -> Dataset:
    """Return a LIBSVM file as a dense float32 matrix; see `read_libsvm_sparse`."""
    sparse = read_libsvm_sparse(path, features, limit)
    expect_size(path, 4 * len(sparse) * sparse.x.width, limit)
    return Dataset(sparse.x.dense(), sparse.y)


def _read_row(fields: list[bytes], values: "array[float]", columns: "array[int]") -> None:
    last = 0
    for field in fields:
        index, _, value = field.partition(b":")
        position = int(index)
        if not last < position <= MAX_FEATURES:
            raise ValueError("indices must ascend from 1")
        columns.append(position - 1)
        values.append(float(value))
        last = position


def _binary_to_01(labels: npt.NDArray[np.float64]) -> Labels:
    if len(labels) and set(np.unique(labels)) == {-1.0, 1.0}:
        return ((labels + 1) / 2).astype(np.int64)
    return whole_numbers(labels)
