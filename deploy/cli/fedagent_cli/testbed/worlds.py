"""`fedagent testbed compare --worlds`: the matrix policies x worlds, its tables and its picture."""

import sys
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedagent_cli.drawing import draw_table
from fedagent_cli.errors import UsageError
from fedagent_cli.output import aligned, echo, emit
from fedagent_testbed.study import Matrix
from fedagent_testbed.study import compare_worlds as run_all
from fedagent_testbed.study.jobs import Done, Pool

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_WORST = 0.5
"""Share of the palest cell."""


def compare_worlds(
    worlds: str,
    names: list[str],
    *,
    sets: Iterable[str],
    seeds: int,
    first_seed: int,
    jobs: int | None,
    pool: Pool | None,
    done: Done,
) -> Matrix:
    """Play the worlds of a list with commas, or `all`."""
    from psutil import cpu_count  # noqa: PLC0415 - only here

    wanted = [name.strip() for name in worlds.split(",") if name.strip()]
    if not wanted:
        raise UsageError("--worlds is empty", "give `all`, or names from `testbed recipes`")
    return run_all(
        wanted,
        names,
        sets=sets,
        seeds=seeds,
        first_seed=first_seed,
        jobs=jobs or cpu_count() or 1,
        pool=pool,
        done=done,
    )


def show_matrix(matrix: Matrix, plot: Path | None, *, as_json: bool) -> None:
    """Print the tables or the record, and write the picture; the tables also without it."""
    try:
        if plot is not None:
            write_matrix(matrix, plot)
    finally:
        if as_json:
            drawn = plot is not None and sys.exception() is None
            where = {"plot": str(plot.expanduser().resolve())} if plot and drawn else {}
            emit(matrix.record() | where)
        else:
            _print(matrix)
    if plot is not None and not as_json:
        echo(f"{plot}: written")


def _print(matrix: Matrix) -> None:
    aligned(matrix.rows())
    if len(rows := matrix.coverage_rows()) > 1:
        echo("")
        aligned(rows)
    for line in matrix.notes():
        echo(line)


def write_matrix(matrix: Matrix, path: Path) -> None:
    """Write the heat table: shares, the best of each world in bold, and the means.

    Raises:
        MissingError: matplotlib is not installed.
        UsageError: The file cannot be written.
    """
    size = 2.2 + 0.72 * len(matrix.policies), 1.0 + 0.26 * (len(matrix.worlds) + 1)
    draw_table(partial(_draw, matrix), size, path)


def _draw(matrix: Matrix, axes: "Axes") -> None:
    from matplotlib.colors import LinearSegmentedColormap  # noqa: PLC0415 - optional package

    names, worlds = matrix.policies, list(matrix.worlds)
    shares = np.full((len(worlds) + 1, len(names)), np.nan)
    for column, name in enumerate(names):
        for row, world in enumerate(worlds):
            share = matrix.share(world, name)
            shares[row, column] = np.nan if share is None or share.mean is None else share.mean
        shares[-1, column] = matrix.mean_share(name)
    colours = LinearSegmentedColormap.from_list("share", ["#f6e7d2", "#f6f6f6", "#6fa8dc"])
    axes.imshow(shares, cmap=colours, vmin=_WORST, vmax=1.0, aspect="auto")
    for row, column in np.ndindex(*shares.shape):
        value, last = shares[row, column], row == len(worlds)
        name = names[column]
        best = name == names[0] if last else matrix.worlds[worlds[row]].is_best(name)
        known = np.isfinite(value)
        axes.text(
            column,
            row,
            f"{value:.3f}" if known else "-",
            ha="center",
            va="center",
            fontsize=8,
            fontweight="bold" if best else "normal",
            color="#111111" if known else "#767676",
        )
    axes.axhline(len(worlds) - 0.5, color="#767676", lw=1.0)
    axes.set_xticks(range(len(names)), names, rotation=30, ha="left")
    axes.set_yticks(range(len(worlds) + 1), [*worlds, "mean"])
    axes.tick_params(length=0, labeltop=True, labelbottom=False)
    axes.spines[:].set_visible(False)
