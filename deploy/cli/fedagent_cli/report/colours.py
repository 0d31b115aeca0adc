"""What all plots share: colours, round borders on an axis, whole numbers, the legend."""

from typing import TYPE_CHECKING

from .story import RoundRow

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = ("#3b82c4", "#e08a1e", "#2a9d78", "#c2549b", "#8a6fd1", "#b5563b", "#5f9ea0", "#8c8c3e")


def borders(rows: tuple[RoundRow, ...]) -> list[float]:
    """Return where each round begins on the axis, and where the last one ends."""
    starts = [row.round - 0.5 for row in rows]
    return [*starts, rows[-1].round + 0.5]


def whole(axes: "Axes", which: str) -> None:
    """Mark whole numbers only."""
    from matplotlib.ticker import MaxNLocator  # noqa: PLC0415 - optional package

    axis = axes.yaxis if which == "y" else axes.xaxis
    axis.set_major_locator(MaxNLocator(integer=True))


def legend_above(axes: "Axes", *, columns: int) -> None:
    """Put the legend above the plot."""
    axes.legend(loc="upper left", bbox_to_anchor=(0, 1.17), ncol=columns)
