"""Drawing by matplotlib (extra `report`): files of several panels, inline SVG, and what axes share.

Text of inline SVG stays text and takes the page's colour, so that one drawing suits a light and
a dark page; data colours are chosen to be told apart on both, also with colour blindness.
"""

import io
import re
import warnings
from collections.abc import Callable, Sequence
from html import escape
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, cast

from fedagent_protocol.extras import how_to_add

from .errors import MissingError, UsageError

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Draw = Callable[["Axes"], None]
COLOURS = ("#3b82c4", "#e08a1e", "#2a9d78", "#c2549b", "#8a6fd1", "#b5563b", "#5f9ea0", "#8c8c3e")
PER_INCH = 11.0
"""Letters of a plot's text that stand beside each other."""
INK = "#010203"
"""Stands for the page's text colour; replaced by `currentColor`."""
_STYLE: dict[str, object] = {
    "svg.fonttype": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "legend.frameon": False,
}
_OF_FILES = {**_STYLE, "svg.hashsalt": "fedagent", "font.size": 9, "grid.alpha": 0.2}
_OF_PAGES = {
    **_STYLE,
    "font.family": "sans-serif",
    "font.size": 9.5,
    "grid.alpha": 0.15,
    "legend.handlelength": 1.1,
    "legend.columnspacing": 1.2,
    # What devices call themselves is no formula, whatever dollars it has.
    "text.parse_math": False,
    **{f"{part}.color": INK for part in ("text", "xtick", "ytick", "grid")},
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
}
_WITHOUT_DATE: dict[str, dict[str, str | None]] = {
    ".svg": {"Date": None},
    ".pdf": {"CreationDate": None},
    ".png": {},
}
"""Kinds of pictures, and what keeps the time of day out of them."""


def available() -> bool:
    """Return whether matplotlib can be imported."""
    return find_spec("matplotlib") is not None


def check_plot(path: Path) -> None:
    """Refuse a picture that could not be written, before anything is computed for it.

    Raises:
        MissingError: matplotlib is not installed.
        UsageError: It is of another kind, or its folder is not there.
    """
    if not available():
        raise MissingError("plots need matplotlib", how_to_add("report"))
    if path.suffix.lower() not in _WITHOUT_DATE:
        raise UsageError(f"--plot {path} is none of {', '.join(_WITHOUT_DATE)}", "name it .svg")
    whole = path.expanduser().absolute()
    try:
        problem = "" if whole.parent.is_dir() else f"is in {whole.parent}, which is not a folder"
        problem = "is a folder" if whole.is_dir() else problem
    except OSError as error:
        problem = f"cannot be written: {error.strerror}"
    if problem:
        raise UsageError(f"--plot {path} {problem}", "name a file in a folder that exists")


def draw_panels(draws: Sequence[Draw], title: str, path: Path) -> None:
    """Write panels in two columns; the legend is the first panel's."""
    check_plot(path)
    from matplotlib import rc_context  # noqa: PLC0415 - optional package, half a second

    with rc_context(_OF_FILES):  # type: ignore[arg-type]  # keys of matplotlib, checked at run time
        rows = (len(draws) + 1) // 2
        figure = _figure((10, 3.2 * rows))
        panels = figure.subplots(rows, 2, squeeze=False).ravel()
        for draw, axes in zip(draws, panels, strict=False):
            draw(axes)
        for axes in panels[len(draws) :]:
            axes.set_axis_off()
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside right upper")
        figure.suptitle(title)
        _save(figure, path)


def draw_table(draw: Draw, size: tuple[float, float], path: Path) -> None:
    """Write one plot of this size in inches, without a background; for light and dark pages."""
    check_plot(path)
    from matplotlib import rc_context  # noqa: PLC0415 - optional package, half a second

    grey = {f"{part}.color": "#767676" for part in ("text", "xtick", "ytick")}
    style = {**_OF_FILES, "axes.grid": False, **grey}
    with rc_context(style):  # type: ignore[arg-type]  # keys of matplotlib, checked at run time
        figure = _figure(size)
        axes = figure.add_subplot()
        axes.set_facecolor("none")
        draw(axes)
        _save(figure, path, transparent=True)


def _save(figure: "Figure", path: Path, *, transparent: bool = False) -> None:
    kind = path.suffix.lower()
    try:
        figure.savefig(
            path.expanduser(),
            format=kind[1:],
            metadata=_WITHOUT_DATE[kind],
            transparent=transparent,
        )
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from error


def inline_svg(draw: Draw, index: str, size: tuple[float, float], name: str) -> str:
    """Return one plot as an SVG element without a fixed size, a background or outside links.

    Args:
        draw: Draws it.
        index: Tells its ids from those of the page's other plots.
        size: Width and height in inches.
        name: What it shows, for those who do not see it.
    """
    from matplotlib import rc_context  # noqa: PLC0415 - optional package, half a second

    style = {**_OF_PAGES, "svg.hashsalt": f"fedagent-{index}"}
    with rc_context(style):  # type: ignore[arg-type]  # keys of matplotlib, checked at run time
        figure = _figure(size)
        axes = figure.add_subplot()
        axes.set_facecolor("none")
        axes.set_axisbelow(True)
        draw(axes)
        text = io.StringIO()
        with warnings.catch_warnings():
            # Letters stay letters: the browser has fonts for those that matplotlib has not.
            warnings.filterwarnings("ignore", "Glyph .* missing from font", UserWarning)
            figure.savefig(text, format="svg", transparent=True, metadata={"Date": None})
    return _adopted(text.getvalue(), index, name)


def _adopted(svg: str, index: str, name: str) -> str:
    """Cut the XML prologue and metadata, free the size, adopt the page's text colour, name it."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r"font: ([\d.]+px) [^;\"]*", r"font-size: \1", svg)
    svg = re.sub(r'\bid="', f'id="p{index}-', svg)
    svg = re.sub(r"url\(#", f"url(#p{index}-", svg)
    svg = re.sub(r'(xlink:href)="#', rf'\1="#p{index}-', svg)
    named = f'<svg role="img" aria-label="{escape(name)}"'
    return svg.replace(INK, "currentColor").replace("<svg", named, 1)


def _figure(size: tuple[float, float]) -> "Figure":
    from matplotlib.backends.backend_svg import FigureCanvasSVG  # noqa: PLC0415 - optional package
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasSVG(figure)
    return figure


def by_round(axes: "Axes", label: str = "round") -> None:
    """Let the axis below count rounds, which are whole."""
    axes.set_xlabel(label)
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
    figure = cast("Figure", axes.get_figure())
    axes.set_yticks([place + at for place in range(len(names))], shortened(axes, names))
    figure.set_figheight(max(figure.get_figheight(), 0.9 + 0.2 * len(names)))


def shortened(axes: "Axes", names: Sequence[str]) -> list[str]:
    """Return names that leave two thirds of the width to the plot."""
    most = int(_inches(axes) * PER_INCH * 0.3)
    return [name if len(name) <= most else f"{name[: most - 1]}…" for name in names]


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


def _inches(axes: "Axes") -> float:
    return float(cast("Figure", axes.get_figure()).get_figwidth())
