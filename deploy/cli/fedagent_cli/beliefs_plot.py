"""A device's slots as a drawing, by matplotlib (extra `report`)."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedagent_agent.peers.core.records import SlotRecord

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SUFFIXES = (".svg", ".png", ".pdf")
_LINES = (("opinion", "#3b82c4"), ("belief", "#2a9d78"), ("index", "#c2549b"))
_VOLUNTEERED = "#e08a1e"


def available() -> bool:
    """Return whether matplotlib can be imported."""
    from importlib.util import find_spec  # noqa: PLC0415 - cheap, and only this command asks

    return find_spec("matplotlib") is not None


def draw(path: Path, slots: Sequence[SlotRecord]) -> None:
    """Draw the slots of one run: opinion, belief and index above, pulls below.

    Raises:
        OSError: The file cannot be written.
    """
    from matplotlib import rc_context  # noqa: PLC0415 - optional package, half a second
    from matplotlib.figure import Figure  # noqa: PLC0415

    style: dict[str, object] = {
        "svg.fonttype": "none",
        "svg.hashsalt": "fedagent-beliefs",
        "font.size": 9.5,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "grid.alpha": 0.15,
        "legend.frameon": False,
    }
    with rc_context(style):  # type: ignore[arg-type]  # keys of matplotlib, checked at run time
        figure = Figure(figsize=(7.2, 4.2), layout="constrained")
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
        _values(above, slots)
        below.step([s.slot for s in slots], [s.pulls for s in slots], where="mid", color="#5f6b76")
        below.set_ylabel("pulls")
        below.set_xlabel("slot")
        below.set_ylim(bottom=0)
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def _values(axes: "Axes", slots: Sequence[SlotRecord]) -> None:
    """Draw what moves from slot to slot, and mark the slots in which the device volunteered."""
    for name, colour in _LINES:
        points = [(s.slot, value) for s in slots if (value := getattr(s, name)) is not None]
        if points:
            x, y = zip(*points, strict=True)
            axes.plot(x, y, color=colour, linewidth=1.6, label=name, marker=".")
    chosen = [(s.slot, s.index) for s in slots if s.chosen and s.index is not None]
    if chosen:
        x, y = zip(*chosen, strict=True)
        axes.scatter(x, y, s=42, facecolors="none", edgecolors=_VOLUNTEERED, label="volunteered")
    axes.legend(loc="upper left", bbox_to_anchor=(0, 1.15), ncol=4)
