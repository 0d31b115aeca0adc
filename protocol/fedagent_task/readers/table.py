"""Numbers in text tables: CSV files and MovieLens' ``u.data``."""

from pathlib import Path

import numpy as np

from fedagent_task.errors import DatasetError

from .base import MAX_BYTES, Dataset, expect_size, read_bytes, whole_numbers

_HINT = "write one sample a line, numbers between commas"


def read_csv(path: Path, label: int | str = -1, limit: int = MAX_BYTES) -> Dataset:
    """Return a CSV file of numbers; a first line of names is skipped.

    Args:
        path: Text, plain or gzip.
        label: The label's column by index (-1 is the last), or by name.
        limit: Most bytes of text, and of the array.

    Raises:
        DatasetError: A line has other columns than the first, or no number.
    """
    lines = [line for line in read_bytes(path, limit).splitlines() if line.strip()]
    if not lines:
        raise DatasetError(str(path), "has no line", _HINT)
    first = lines[0].split(b",")
    names = [] if _numbers(first) else [name.strip().decode("utf-8", "replace") for name in first]
    column = _column(path, label, names, len(first))
    body = lines[1:] if names else lines
    expect_size(path, 8 * len(body) * len(first), limit)
    table = np.empty((len(body), len(first)), np.float64)
    for row, line in enumerate(body):
        fields = line.split(b",")
        if len(fields) != len(first):
            raise DatasetError(
                str(path), f"sample {row + 1} has {len(fields)} columns, not {len(first)}", _HINT
            )
        try:
            table[row] = [float(field) for field in fields]
        except ValueError as error:
            raise DatasetError(str(path), f"sample {row + 1} is no number", _HINT) from error
    return Dataset(np.delete(table, column, axis=1), whole_numbers(table[:, column].copy()))


def read_ratings(path: Path, limit: int = MAX_BYTES) -> Dataset:
    """Return MovieLens' ``u.data``: x is (user, item) int64 from 1, y the rating, with times."""
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
    return Dataset(table[:, :2].copy(), table[:, 2].copy(), table[:, 3].astype(np.float64))


def _numbers(fields: list[bytes]) -> bool:
    try:
        [float(field) for field in fields]
    except ValueError:
        return False
    return True


def _column(path: Path, label: int | str, names: list[str], width: int) -> int:
    if isinstance(label, str):
        if label not in names:
            raise DatasetError(str(path), f"has no column {label[:40]!r}", "name a column of it")
        return names.index(label)
    if not -width <= label < width or width < 2:
        raise DatasetError(str(path), f"has {width} columns only", "name the label's column")
    return label % width
