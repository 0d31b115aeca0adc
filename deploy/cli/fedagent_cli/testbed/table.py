"""The table of a comparison, for people."""

from collections.abc import Sequence

from fedagent_cli.output import echo
from fedagent_testbed.study import Comparison
from fedagent_testbed.study.table import caption, rows_of


def write_table(result: Comparison) -> None:
    """Print one line per policy, best utility first; then who was skipped, and why."""
    aligned(rows_of(result))
    echo(caption(result))
    for name, why in result.skipped.items():
        echo(f"skipped {name}: {why}")


def aligned(rows: Sequence[Sequence[str]]) -> None:
    """Print rows as columns; lines longer than the terminal are the terminal's affair."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    for row in rows:
        first, *others = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        echo("  ".join((first, *others)).rstrip())
