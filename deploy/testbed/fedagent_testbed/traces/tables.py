"""CSV and JSON files as rows, bounded, every fault with its file and line."""

import csv
import json
from collections.abc import Iterator, Sequence
from operator import itemgetter
from pathlib import Path

from .errors import TraceError
from .files import DEFAULT, Limits, lines, opened, read_all


def csv_rows(
    path: Path, columns: Sequence[str], limits: Limits = DEFAULT
) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Give line number and the wanted columns (two or more) of each row; CSV or CSV in gzip.

    Raises:
        TraceError: A column is missing, or a line is malformed.
    """
    file = str(path)
    at = 0

    def decoded() -> Iterator[str]:
        nonlocal at
        for number, text in lines(stream, file, limits):
            at = number
            yield text.decode()

    with opened(path, limits) as stream:
        try:
            rows = csv.reader(decoded(), strict=True)
            head = next(rows, [])
            if missing := [name for name in columns if head.count(name) != 1]:
                raise TraceError(file, 1, f"has no column {missing[0]}, or has it twice")
            wanted = itemgetter(*map(head.index, columns))
            for row in rows:
                if len(row) != len(head):
                    raise TraceError(file, at, f"has {len(row)} columns, not {len(head)}")
                yield at, wanted(row)
        except UnicodeDecodeError as error:
            raise TraceError(file, at, "is no UTF-8 text") from error
        except csv.Error as error:
            raise TraceError(file, at, f"is no CSV: {error}") from error


def json_value(path: Path, limits: Limits = DEFAULT) -> object:
    """Return the JSON of a file, plain or gzip.

    Raises:
        TraceError: It is none.
    """
    data = read_all(path, limits)
    try:
        value: object = json.loads(data)
    except json.JSONDecodeError as error:
        raise TraceError(str(path), error.lineno, f"is no JSON: {error.msg}") from error
    except (ValueError, RecursionError) as error:
        raise TraceError(str(path), None, "is no JSON") from error
    return value


def json_list(path: Path, limits: Limits = DEFAULT) -> list[object]:
    """Return a JSON list.

    Raises:
        TraceError: It is none, or longer than the limit.
    """
    value = json_value(path, limits)
    if not isinstance(value, list) or len(value) > limits.rows:
        raise TraceError(str(path), None, f"is no list of at most {limits.rows} entries")
    return value
