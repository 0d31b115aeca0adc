"""Drawing by matplotlib (extra `report`): files of one or several panels."""

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from fedagent_cli.errors import MissingError, UsageError
from fedagent_protocol.extras import how_to_add

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Draw = Callable[["Axes"], None]
_STYLE: dict[str, object] = {
    "svg.fonttype": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "legend.frameon": False,
}
_OF_FILES = {**_STYLE, "svg.hashsalt": "fedagent", "font.size": 9, "grid.alpha": 0.2}
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


def _figure(size: tuple[float, float]) -> "Figure":
    from matplotlib.backends.backend_svg import FigureCanvasSVG  # noqa: PLC0415 - optional package
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasSVG(figure)
    return figure
