"""What reaches standard output: text for people, or with ``--json`` nothing but JSON lines.

Commands that run long print one event per line, and every one a single object as its last line.
"""

import json
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

from fedagent_protocol.errors import FedagentError, hide_password

from .errors import INTERRUPTED, InterruptedEnd, UsageError, exit_code

_BARS = "▁▂▃▄▅▆▇█"


def echo(text: str = "") -> None:
    """Print one line for people."""
    sys.stdout.write(f"{text}\n")


def emit(record: Mapping[str, object]) -> None:
    """Print one JSON object on a line of its own."""
    sys.stdout.write(json.dumps(record, separators=(",", ":"), default=str) + "\n")
    sys.stdout.flush()


@contextmanager
def writing(path: Path, *, what: str = "", hint: str = "name another file") -> Iterator[None]:
    """Say of a file that cannot be written why.

    Raises:
        UsageError: It cannot.
    """
    try:
        yield
    except OSError as error:
        raise UsageError(f"cannot write {what}{path}: {error.strerror or error}", hint) from error


def style_of(path: Path, *suffixes: str) -> str:
    """Return which of the formats that we write a file's name asks for.

    Raises:
        UsageError: None of them.
    """
    if (found := path.suffix.lower()) not in suffixes:
        known = f"{', '.join(suffixes[:-1])} or {suffixes[-1]}" if suffixes[1:] else suffixes[0]
        raise UsageError(f"{path} does not end in {known}", f"name it {path.stem}{suffixes[0]}")
    return found


def rounds_text(done: object, wanted: object) -> str:
    """Return how many rounds are done, and of how many: 0 is no end, None is unknown."""
    return f"{done}, no end set" if wanted == 0 else f"{done} of {wanted or '?'}"


def sparkline(values: Sequence[float], *, width: int) -> str:
    """Return the last `width` values as a line of bars, between the least and the largest."""
    shown, top = values[-width:], len(_BARS) - 1
    least = min(shown, default=0.0)
    span = (max(shown, default=0.0) - least) or 1.0
    return "".join(_BARS[round((value - least) / span * top)] for value in shown)


def moment(seconds: float) -> str:
    """Return a time of the wall clock for people."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))


def number_text(value: float) -> str:
    """Return a measured number: three decimals, fewer of a large one, more of a tiny one."""
    size = abs(value)
    if size >= 1e9 or 0 < size < 0.001:
        return f"{value:.3g}"
    return f"{value:.1f}" if size >= 1000 else f"{value:.3f}"


def printable(text: str) -> str:
    """Return text in which a space stands for what is no character to be seen."""
    return "".join(c if c.isprintable() else " " for c in text)


def table(
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    unless: Mapping[str, object] | None = None,
) -> None:
    """Print a table: numbers to the right, words to the left.

    Columns in `unless` are left out where every row has the value that stands there.
    """
    listed = [tuple(row) for row in rows]
    plain = unless or {}
    kept = [
        index
        for index, name in enumerate(columns)
        if name not in plain or any(row[index] != plain[name] for row in listed)
    ]
    listed = [tuple(row[index] for index in kept) for row in listed]
    columns = [columns[index] for index in kept]
    numeric = [
        bool(listed) and all(isinstance(row[i], int | float) or row[i] is None for row in listed)
        for i in range(len(columns))
    ]
    cells = [[_cell(value) for value in row] for row in listed]
    widths = [max(map(len, column)) for column in zip(columns, *cells, strict=True)]
    for row in ([*columns], *cells):
        padded = (
            cell.rjust(width) if to_the_right else cell.ljust(width)
            for cell, width, to_the_right in zip(row, widths, numeric, strict=True)
        )
        echo("  ".join(padded).rstrip())


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    # Others chose some of it: nothing that a terminal obeys, and no line of its own.
    return number_text(value) if isinstance(value, float) else printable(str(value))


def fail(error: FedagentError | InterruptedEnd, *, as_json: bool) -> NoReturn:
    """End the program with one line on standard error and the error's exit code."""
    sys.stdout.flush()
    problem, hint, code = "interrupted", "", INTERRUPTED
    if isinstance(error, FedagentError):
        # What is wrong may quote what was typed; the hint is our own words.
        problem, hint, code = hide_password(error.sentence), error.hint, exit_code(error)
    sys.stderr.write(f"fedagent: {problem}{'; ' if hint else ''}{hint}\n")
    if as_json:
        with suppress(OSError):  # that may be the error
            emit({"error": problem, "hint": hint, "exit_code": code})
    raise SystemExit(code)
