"""Text: CSV tables, MovieLens' ``u.data``, and LIBSVM's ``label index:value ...``."""

from array import array
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedagent_task.errors import DatasetError
from fedagent_task.models import Doubles
from fedagent_task.models.base import Csr

from .base import MAX_BYTES, Dataset, Labels, expect_size, read_bytes, whole_numbers

_CSV = "write one sample per line, with the numbers separated by commas"
_RATINGS = "write user item rating time in a line, numbered from 1"
MAX_FEATURES = 100_000_000


def read_csv(path: Path, limit: int = MAX_BYTES) -> Dataset:
    """Return a CSV file of numbers, the label last; a first line of names is skipped."""
    lines = _lines(path, limit)
    width = lines[0].count(",") + 1 if lines else 2
    if width < 2:
        raise DatasetError(str(path), f"has only {width} columns", "name the label's column")
    if lines and not _numbers(lines[0].split(",")):
        del lines[0]
    table = _table(path, lines, ",", width, _CSV, limit)
    return Dataset(table[:, :-1].copy(), whole_numbers(table[:, -1].copy()))


def read_ratings(path: Path, limit: int = MAX_BYTES) -> Dataset:
    """Return MovieLens' ``u.data``: x is (user, item) int64 from 1, y the rating."""
    table = _table(path, _lines(path, limit), None, 4, _RATINGS, limit)
    good = (table == np.floor(table)).all() and (table[:, :2] > 0).all()
    if not (good and (np.abs(table[:, :3]) < 2**31).all()):
        raise DatasetError(str(path), "is out of range", _RATINGS)
    whole = table[:, :3].astype(np.int64)
    return Dataset(whole[:, :2].copy(), whole[:, 2].copy())


def _lines(path: Path, limit: int) -> list[str]:
    text = read_bytes(path, limit).decode("utf-8-sig", errors="replace")
    return [line for line in text.splitlines() if line.strip()]


def _table(
    path: Path, lines: list[str], comma: str | None, width: int, hint: str, limit: int
) -> Doubles:
    """Return float64[lines, width] of lines that have as many numbers each."""
    if not lines:
        raise DatasetError(str(path), "has no sample", hint)
    expect_size(path, 8 * len(lines) * width, limit)
    try:
        table = np.loadtxt(lines, np.float64, comments=None, delimiter=comma, ndmin=2)
    except ValueError as error:
        raise DatasetError(str(path), _fault(lines, comma, width), hint) from error
    if table.shape[1] != width:
        raise DatasetError(str(path), _fault(lines, comma, width), hint)
    return table


def _fault(lines: list[str], comma: str | None, width: int) -> str:
    for number, line in enumerate(lines, 1):
        fields = line.split(comma)
        if len(fields) != width:
            return f"sample {number} has {len(fields)} columns, not {width}"
        if not _numbers(fields):
            return f"sample {number} is not a number"
    return "is not a table of numbers"


def _numbers(fields: list[str]) -> bool:
    try:
        np.fromiter(fields, np.float64)
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
