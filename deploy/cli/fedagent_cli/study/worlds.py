"""The matrix of `fedagent testbed compare` on several recipes: as tables and a picture."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedagent_cli.output import aligned, echo
from fedagent_cli.study.drawing import draw_table
from fedagent_testbed.study import Matrix

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_WORST = 0.5
"""Share of the palest cell."""


def print_matrix(matrix: Matrix) -> None:
    """Print the shares, where devices were ordered in vain or left out, and the notes."""
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
