"""`fedagent beliefs`: what this device thought of the models, for its owner alone."""

from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedagent_agent.errors import PeerStoreError
from fedagent_agent.peers.core.records import SlotRecord
from fedagent_agent.peers.store import KEPT_SLOTS, read_slots

from . import options, places
from .command_line import Number
from .drawing import check_plot, draw_panels
from .errors import NoRunError, UsageError
from .output import echo, emit, table

if TYPE_CHECKING:
    from matplotlib.axes import Axes


SHOWN = 20
_SHORT = 8
_COLUMNS = (
    *("round", "slot", "opinion", "mean", "pulls", "belief", "index", "chosen"),
    *("agents", "sweeps", "exchanges", "bytes", "seconds"),
)
_LINES = (("opinion", "#3b82c4"), ("belief", "#2a9d78"), ("index", "#c2549b"))
_VOLUNTEERED = "#e08a1e"


@click.command(
    epilog=options.examples(
        "fedagent beliefs",
        "fedagent beliefs --name kitchen --last 100",
        "fedagent beliefs --plot beliefs.svg",
    )
)
@click.option(
    "--data-dir",
    type=options.PATH,
    show_default="$FEDAGENT_HOME/agent",
    help="Data directory of the agent to read.",
)
@click.option("--name", help="Name of the agent, instead of --data-dir.")
@options.run_id
@click.option(
    "--last", type=Number(int, min=0), default=SHOWN, help="Number of slots to show; 0 for all."
)
@click.option(
    "--plot", type=options.PATH, help="Plot the beliefs as .svg, .png or .pdf (extra `report`)."
)
@options.as_json
def beliefs(
    *,
    data_dir: Path | None,
    name: str | None,
    run: str | None,
    last: int,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Show this device's own opinions, beliefs, indices and pulls, newest slot last.

    An agent keeps them when it decides with its neighbours who trains; they never leave the device
    unencrypted.
    """
    if data_dir is not None and name is not None:
        raise UsageError("--data-dir and --name cannot be combined", "give one of them")
    folder = (data_dir or places.data_dir("agent", name)).expanduser()
    try:
        slots = read_slots(folder, run=run or "", last=last or KEPT_SLOTS)
    except PeerStoreError as error:
        raise NoRunError(
            f"{folder} holds no beliefs ({error.reason})",
            "give the --data-dir of an agent that has taken part in a run of mode `peers`",
        ) from error
    if plot is not None:
        _draw(plot, slots)
    if as_json:
        emit({"data_dir": str(folder), "slots": [asdict(slot) for slot in slots]})
        return
    table(
        ("run", *("volunteered" if key == "chosen" else key for key in _COLUMNS), "best"),
        (
            (
                slot.run[:_SHORT],
                *(getattr(slot, key) for key in _COLUMNS),
                " ".join(peer[:_SHORT] for peer in slot.best),
            )
            for slot in slots
        ),
    )
    if plot is not None:
        echo(str(plot))


def _draw(path: Path, slots: list[SlotRecord]) -> None:
    check_plot(path)
    if not slots:
        raise NoRunError("there are no slots to plot", "see `fedagent beliefs`")
    newest = [slot for slot in slots if slot.run == slots[-1].run]
    draw_panels([partial(_values, newest), partial(_pulls, newest)], "slots of this device", path)


def _pulls(slots: Sequence[SlotRecord], axes: "Axes") -> None:
    axes.step([s.slot for s in slots], [s.pulls for s in slots], where="mid", color="#5f6b76")
    axes.set_ylabel("pulls")
    axes.set_xlabel("slot")
    axes.set_ylim(bottom=0)


def _values(slots: Sequence[SlotRecord], axes: "Axes") -> None:
    for name, colour in _LINES:
        points = [(s.slot, value) for s in slots if (value := getattr(s, name)) is not None]
        if points:
            x, y = zip(*points, strict=True)
            axes.plot(x, y, color=colour, linewidth=1.6, label=name, marker=".")
    chosen = [(s.slot, s.index) for s in slots if s.chosen and s.index is not None]
    if chosen:
        x, y = zip(*chosen, strict=True)
        axes.scatter(x, y, s=42, facecolors="none", edgecolors=_VOLUNTEERED, label="volunteered")
    axes.set_xlabel("slot")
