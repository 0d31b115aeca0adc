"""Pictures of several panels that commands write, by matplotlib (extra `report`)."""

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from fedagent_protocol.extras import how_to_add

from .errors import MissingError, UsageError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "fedagent",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.2,
    "legend.frameon": False,
}
_WITHOUT_DATE: dict[str, dict[str, str | None]] = {
    ".svg": {"Date": None},
    ".pdf": {"CreationDate": None},
    ".png": {},
}
"""Kinds of pictures, and what keeps the time of day out of them."""


def check_plot(path: Path) -> None:
    """Refuse a picture that could not be written, before anything is computed for it.

    Raises:
        MissingError: matplotlib is not installed.
        UsageError: It is of another kind, or its folder is not there.
    """
    if find_spec("matplotlib") is None:
        raise MissingError("plots need matplotlib", how_to_add("report"))
    if path.suffix.lower() not in _WITHOUT_DATE:
        raise UsageError(f"--plot {path} is none of {', '.join(_WITHOUT_DATE)}", "name it .svg")
    whole = path.expanduser().absolute()
    try:
        problem = "" if whole.parent.is_dir() else f"is in {whole.parent}, which is no folder"
        problem = "is a folder" if whole.is_dir() else problem
    except OSError as error:
        problem = f"cannot be written: {error.strerror}"
    if problem:
        raise UsageError(f"--plot {path} {problem}", "name a file in a folder that exists")


def draw_panels(draws: "Sequence[Callable[[Axes], None]]", title: str, path: Path) -> None:
    """Write panels in two columns; the legend is the first panel's."""
    check_plot(path)
    from matplotlib import rc_context  # noqa: PLC0415 - optional package, half a second
    from matplotlib.backends.backend_svg import FigureCanvasSVG  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415

    with rc_context(_STYLE):  # type: ignore[arg-type]  # keys of matplotlib, checked at run time
        figure = Figure(figsize=(10, 3.2 * ((len(draws) + 1) // 2)), layout="constrained")
        FigureCanvasSVG(figure)
        panels = figure.subplots((len(draws) + 1) // 2, 2, squeeze=False).ravel()
        for draw, axes in zip(draws, panels, strict=False):
            draw(axes)
        for axes in panels[len(draws) :]:
            axes.set_axis_off()
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside right upper")
        figure.suptitle(title)
        try:
            kind = path.suffix.lower()
            metadata = _WITHOUT_DATE[kind]
            figure.savefig(path.expanduser(), format=kind[1:], metadata=metadata)
        except OSError as error:
            raise UsageError(f"{path} cannot be written: {error.strerror}") from error
