"""LIBSVM text, ``label index:value ...`` with indices from 1, dense or sparse."""

from array import array
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedagent_task.errors import DatasetError
from fedagent_task.samples import Csr

from .base import MAX_BYTES, Dataset, Labels, expect_size, read_bytes, whole_numbers

MAX_FEATURES = 100_000_000


@dataclass(frozen=True, slots=True, eq=False)
class SparseDataset:
    """Samples as compressed sparse rows, and their labels [n]."""

    x: Csr
    y: Labels

    def __len__(self) -> int:
        return len(self.y)

    def rows(self, index: npt.NDArray[np.intp] | slice) -> "SparseDataset":
        """Return some of the samples."""
        return SparseDataset(self.x.rows(index), self.y[index])


def read_libsvm_sparse(
    path: Path, features: int | None = None, limit: int = MAX_BYTES
) -> SparseDataset:
    """Return a LIBSVM file as sparse rows; labels -1 and +1 become 0 and 1.

    Args:
        path: Text, plain or gzip.
        features: Number of columns; the largest index if absent.
        limit: Most bytes of text.

    Raises:
        DatasetError: A line is malformed (named by its number), or has an index
            over `features`.
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
