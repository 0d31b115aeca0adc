"""What all plots share: colours, round borders on an axis, whole numbers, names, the legend."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from .run_report import ReportRound

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#3b82c4", "#e08a1e", "#2a9d78", "#c2549b", "#8a6fd1", "#b5563b", "#5f9ea0", "#8c8c3e")
PER_INCH = 11.0
"""Letters of a plot's text that stand beside each other."""


def borders(rows: tuple[ReportRound, ...]) -> list[float]:
    """Return where each round begins on the axis, and where the last one ends."""
    starts = [row.round - 0.5 for row in rows]
    return [*starts, rows[-1].round + 0.5]


def by_round(axes: "Axes") -> None:
    """Let the axis below count rounds, which are whole."""
    axes.set_xlabel("round")
    whole(axes, "x")


def whole(axes: "Axes", which: str) -> None:
    """Mark whole numbers only, as many as there is room for."""
    from matplotlib.ticker import MaxNLocator  # noqa: PLC0415 - optional package

    axis = axes.yaxis if which == "y" else axes.xaxis
    axis.set_major_locator(MaxNLocator("auto", integer=True, min_n_ticks=1))


def max_ticks(axes: "Axes") -> int:
    """Return how many numbers have room below."""
    return max(2, int(_inches(axes) * 1.7))


def names_beside(axes: "Axes", names: Sequence[str], *, at: float = 0.0) -> None:
    """Write a name at each of the places at, at + 1, … on the left; the plot grows with them."""
    figure = _figure(axes)
    axes.set_yticks([place + at for place in range(len(names))], shortened(axes, names))
    figure.set_figheight(max(figure.get_figheight(), 0.9 + 0.2 * len(names)))


def shortened(axes: "Axes", names: Sequence[str]) -> list[str]:
    """Return names that leave two thirds of the width to the plot."""
    most = int(_inches(axes) * PER_INCH * 0.3)
    return [name if len(name) <= most else f"{name[: most - 1]}…" for name in names]


def _figure(axes: "Axes") -> "Figure":
    return cast("Figure", axes.get_figure())


def _inches(axes: "Axes") -> float:
    return float(_figure(axes).get_figwidth())


def legend_above(
    axes: "Axes",
    *,
    columns: int,
    lines: "Sequence[Artist] | None" = None,
    higher: bool = False,
) -> None:
    """Put the legend above the plot, in as many columns as fit; `higher` above an axis there."""
    handles = list(lines) if lines is not None else axes.get_legend_handles_labels()[0]
    labels = [str(handle.get_label()) for handle in handles]
    if not labels:
        return
    fit = max(1, int(_inches(axes) * PER_INCH / (max(map(len, labels)) + 4)))
    axes.legend(
        handles,
        labels,
        loc="lower left",
        bbox_to_anchor=(0, 1.0),
        borderaxespad=4.0 if higher else 0.3,
        ncol=min(columns, fit),
    )
