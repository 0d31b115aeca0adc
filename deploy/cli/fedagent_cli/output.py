"""What reaches standard output: text for people, or JSON lines for programs.

With ``--json`` a command prints nothing but JSON: long-running ones one event per
line, and every one a single object as its last line.
"""

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NoReturn

from .errors import CliError

if TYPE_CHECKING:
    from rich.console import Console

MICRO = 1_000_000


def say(text: str = "") -> None:
    """Print one line for people."""
    sys.stdout.write(f"{text}\n")


def emit(record: Mapping[str, object]) -> None:
    """Print one JSON object on a line of its own."""
    sys.stdout.write(json.dumps(record, separators=(",", ":"), default=str) + "\n")
    sys.stdout.flush()


def credits_text(micro: int) -> str:
    """Return micro-credits as credits, without trailing zeros: ``1_500_000`` is ``1.5``."""
    whole, rest = divmod(abs(micro), MICRO)
    text = f"{whole:,}" + (f".{rest:06d}".rstrip("0") if rest else "")
    return f"-{text}" if micro < 0 else text


def rounds_text(done: object, wanted: object) -> str:
    """Return how many rounds are done, and of how many: 0 is no end, None is unknown."""
    return f"{done}, no end set" if wanted == 0 else f"{done} of {wanted or '?'}"


def number_text(value: float) -> str:
    """Return a measured number: three decimals, fewer of a large one, more of a tiny one."""
    size = abs(value)
    if size >= 1e9 or 0 < size < 0.001:
        return f"{value:.3g}"
    return f"{value:.1f}" if size >= 1000 else f"{value:.3f}"


def console() -> "Console":
    """Return a console on standard output."""
    from rich.console import Console  # noqa: PLC0415 - rich costs a tenth of a second

    # Nobody reads a file or a pipe at a terminal's width.
    return Console(highlight=False, width=None if sys.stdout.isatty() else 160)


_FOLDED = 10
"""Least width of a column that is folded."""


def table(
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    title: str = "",
    unless: Mapping[str, object] | None = None,
) -> None:
    """Print a table: numbers to the right, words to the left; only the last column is folded.

    Args:
        columns: Heads.
        rows: One value per column each.
        title: Printed above.
        unless: Columns that are left out where every row has this value.
    """
    from rich.table import Table  # noqa: PLC0415 - rich costs a tenth of a second
    from rich.text import Text  # noqa: PLC0415

    listed = [tuple(row) for row in rows]
    plain = unless or {}
    told = [
        index
        for index, name in enumerate(columns)
        if name not in plain or any(row[index] != plain[name] for row in listed)
    ]
    listed = [tuple(row[index] for index in told) for row in listed]
    columns = [columns[index] for index in told]
    made = Table(title=title or None, title_justify="left", box=None, pad_edge=False)
    for index, name in enumerate(columns):
        numeric = bool(listed) and all(
            isinstance(row[index], int | float) or row[index] is None for row in listed
        )
        folded = not numeric and index == len(columns) - 1
        made.add_column(
            name,
            justify="right" if numeric else "left",
            no_wrap=not folded,
            min_width=_FOLDED if folded else None,
        )
    for row in listed:
        made.add_row(*(Text(_cell(value)) for value in row))
    console().print(made)


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return number_text(value) if isinstance(value, float) else str(value)


def fail(error: CliError, *, as_json: bool) -> NoReturn:
    """End the program with one line on standard error and the error's exit code."""
    from fedagent_protocol.transport.address import hide_password  # noqa: PLC0415 - not for --help

    sys.stdout.flush()
    sys.stderr.write(f"fedagent: {hide_password(str(error))}\n")
    if as_json:
        problem = hide_password(error.problem)
        emit({"error": problem, "mend": error.mend, "exit_code": error.exit_code})
    raise SystemExit(error.exit_code)
