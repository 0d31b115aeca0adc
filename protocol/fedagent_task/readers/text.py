"""Text: CSV tables, MovieLens' ``u.data``, and LIBSVM's ``label index:value ...``."""

from array import array
from contextlib import suppress
from pathlib import Path

import numpy as np

from fedagent_protocol.errors import text_of
from fedagent_task.errors import DatasetError
from fedagent_task.models import Doubles
from fedagent_task.models.base import Csr

from .base import MAX_BYTES, Dataset, Labels, expect_size, read_bytes, whole_numbers
from .table import FIRST_LINES, SampleError, Table

_RATINGS = "write user item rating time in a line, numbered from 1"
_RATING = Table(separator="\t", width=4, decimal=".")
MAX_FEATURES = 100_000_000


def read_csv(path: Path, limit: int = MAX_BYTES) -> Dataset:
    """Return a CSV file of numbers, the label last; names, units and an index are no samples."""
    lines = _lines(path, limit)
    try:
        table = Table.learn(lines[:FIRST_LINES])
    except SampleError as error:
        raise DatasetError(str(path), error.reason, error.hint) from error
    columns = table.columns
    if len(columns) < 2:
        raise DatasetError(str(path), "has one column with a name only", "name columns in line 1")
    rows = _numbers(path, lines, table, limit)
    names = tuple(table.names[at] for at in columns[:-1]) if table.names else ()
    return Dataset(rows[:, :-1].copy(), whole_numbers(rows[:, -1].copy()), names)


def read_ratings(path: Path, limit: int = MAX_BYTES) -> Dataset:
    """Return MovieLens' ``u.data``: x is (user, item) int64 from 1, y the rating."""
    table = _numbers(path, _lines(path, limit), _RATING, limit)
    good = (table == np.floor(table)).all() and (table[:, :2] > 0).all()
    if not (good and (np.abs(table[:, :3]) < 2**31).all()):
        raise DatasetError(str(path), "is out of range", _RATINGS)
    whole = table[:, :3].astype(np.int64)
    return Dataset(whole[:, :2].copy(), whole[:, 2].copy())


def _lines(path: Path, limit: int) -> list[str]:
    data = read_bytes(path, limit)
    try:
        return text_of(data).splitlines()
    except UnicodeError:
        return data.decode("latin-1").splitlines()  # a degree sign of an older tool


def _numbers(path: Path, lines: list[str], table: Table, limit: int) -> Doubles:
    """Return float64[samples, columns]; `DatasetError` names the line that is none, or a limit."""
    samples, columns = lines[table.first :], table.columns
    if not any(map(str.strip, samples)):
        raise DatasetError(str(path), "has no sample", "write one in each line, its label last")
    expect_size(path, 8 * len(samples) * table.width, limit)
    with suppress(ValueError):  # what needs a closer look, or has a fault that is to be named
        found = np.loadtxt(samples, comments=None, delimiter=table.separator, ndmin=2)
        if found.shape[1] == table.width:
            return found[:, columns]
    numbers = array("d")
    for number, line in enumerate(samples, table.first + 1):
        try:
            if line.strip():
                numbers.extend(table.numbers(table.fields(line), columns))
        except SampleError as error:
            raise DatasetError(str(path), error.of(number), error.hint) from error
    return np.array(numbers).reshape(-1, len(columns))


def read_libsvm_sparse(
    path: Path, features: int | None = None, limit: int = MAX_BYTES
) -> tuple[Csr, Labels]:
    """Return a LIBSVM file as sparse rows, and labels; -1 and +1 become 0 and 1.

    `features` is the number of columns, the largest index if absent.
    """
    values, columns, starts, labels = array("f"), array("i"), array("q", [0]), array("d")
    for number, line in enumerate(_lines(path, limit), 1):
        fields = line.partition("#")[0].split()
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
    y = np.array(labels, np.float64)
    if len(y) and set(np.unique(y)) == {-1.0, 1.0}:
        return x, ((y + 1) / 2).astype(np.int64)
    return x, whole_numbers(y)


def read_libsvm(path: Path, features: int | None = None, limit: int = MAX_BYTES) -> Dataset:
    """Return a LIBSVM file as a dense float32 matrix; see `read_libsvm_sparse`."""
    x, y = read_libsvm_sparse(path, features, limit)
    expect_size(path, 4 * len(y) * x.width, limit)
    return Dataset(x.dense(), y)


def _read_row(fields: list[str], values: "array[float]", columns: "array[int]") -> None:
    last = 0
    for field in fields:
        index, _, value = field.partition(":")
        position = int(index)
        if not last < position <= MAX_FEATURES:
            raise ValueError("indices must ascend from 1")
        columns.append(position - 1)
        values.append(float(value))
        last = position
