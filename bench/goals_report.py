"""What the recorded runs of `bench.goals` say: rows beside the paper's, and pictures."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedagent_coordinator.policies.base import FloatArray
from fedagent_testbed.study import figure

from .kept import Run, Runs, part

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Row = dict[str, object]

LEVELS = (0.75, 0.78, 0.82, 0.85)
LAST = 4
"""The mean over the last of so many parts of a run counts as its accuracy."""
IID = 5
BEST = "fixed"
PAPER_GAPS = {"bp-ucb": 3.12, "quick-init-ucb": 1.44}
"""Per cent to the optimal set; no bars: where the model carries over `random` is below them too."""
PAPER: dict[str, Row] = {
    "fixed": {"slots_to": [6.0, 7.0, 11.0, 19.0]},
    "random": {"slots_to": [40.24, 391.24, None, None], "accuracy": 0.7662},
    "quick-init-ucb": {"slots_to": [9.92, 13.55, 26.42, 111.22], "accuracy": 0.8657},
    "bp-ucb": {"slots_to": [14.09, 23.63, 57.95, 131.81], "accuracy": 0.8628},
}
COLOURS = {
    "fixed": "#777777",
    "bp-ucb": "#1f77b4",
    "quick-init-ucb": "#d62728",
    "random": "#ff7f0e",
    "round-robin": "#2ca02c",
    "bp-ucb, as printed": "#17becf",
    "bp-ucb, mu 0.1": "#1f77b4",
    "bp-ucb, as printed, mu 3": "#17becf",
    "bp-ucb, as printed, mu 0.01": "#9467bd",
}
TICKS = (20, 50, 100, 200, 500, 1000)
DASHES = {"1.0": "-", "0.75": "--", "0.5": ":"}


def rows(path: Path) -> Iterator[Row]:
    for name in ("table", "test"):
        yield from _table(name, part(path, name))
    for name in ("success", "mu", "size", "quarter"):
        for label, runs in part(path, name).items():
            yield {
                "bench": f"gda-{name}",
                "of": label,
                "seeds": len(runs),
                "accuracy": figure([last(run["opinion"]) for run in runs]).record(),
                "tested": figure([run["tested"] for run in runs]).record(),
            }
    for runs in part(path, "kind").values():
        kinds = [key for key in runs[0] if key.startswith(("iid_", "other_"))]
        yield {"bench": "gda-kind", "seeds": len(runs)} | {
            key: round(float(np.mean([run[key] for run in runs])), 3) for key in kinds
        }
    for label, runs in part(path, "time").items():
        ms = [round(run["slot_ms"], 3) for run in runs]
        yield {"bench": "gda-time", "of": label, "slot_cpu_ms": float(np.median(ms))}


def last(values: Sequence[float]) -> float:
    """Return the mean over the last quarter of the slots: single ones vary by hundredths."""
    return round(float(np.mean(values[-max(1, len(values) // LAST) :])), 5)


def gap_percent(runs: Sequence[Run], best: Sequence[Run]) -> list[float]:
    """Return each seed's shortfall from the fixed set on the same seed; negative is a lead."""
    lead = {run["seed"]: last(run["opinion"]) for run in best}
    there = [run for run in runs if run["seed"] in lead]
    return [100 * (1 - last(run["opinion"]) / lead[run["seed"]]) for run in there]


def slots_to(runs: Sequence[Run]) -> list[float | None]:
    """Return the mean first slot at each of the paper's levels; None: not on every seed."""
    means: list[float | None] = []
    for level in LEVELS:
        above = [np.flatnonzero(np.array(run["opinion"]) >= level) for run in runs]
        there = all(len(at) for at in above)
        means.append(round(float(np.mean([at[0] + 1 for at in above])), 1) if there else None)
    return means


def _table(name: str, found: Runs) -> Iterator[Row]:
    """Yield Table I."""
    for label, runs in found.items():
        slots = np.mean([run["slots"] for run in runs], axis=0)
        row: Row = {
            "bench": f"gda-{name}",
            "of": label,
            "seeds": len(runs),
            "accuracy": figure([last(run["opinion"]) for run in runs]).record(),
            "slots_to": slots_to(runs),
            "slots_of_an_iid_client": round(float(slots[:IID].mean()), 1),
            "slots_of_another": round(float(slots[IID:].mean()), 1),
            "clients_that_trained": [int(np.count_nonzero(run["slots"])) for run in runs],
            "paper": PAPER.get(label),
        }
        if label != BEST and BEST in found:
            gap = figure(gap_percent(runs, found[BEST]))
            row["gap_percent"] = gap.record()
            if label in PAPER_GAPS:
                row["paper_gap_percent"] = PAPER_GAPS[label]
        yield row


def draw(path: Path, folder: Path) -> None:
    """Write the pictures that the file allows."""
    table = part(path, "table")
    if table:
        _slots(table, part(path, "success"), folder / "gda-slots.svg")
    if found := part(path, "size"):
        _scaling(found, part(path, "quarter"), part(path, "time"), folder / "gda-scaling.svg")


def _slots(table: Runs, success: Runs, file: Path) -> None:
    """Draw the policies over the slots, and the two of Fig. 10 by theta."""
    policies = {name: table[name] for name in COLOURS if name in table}

    def left(axes: "Axes") -> None:
        axes.set_title("every update arrives")
        for name, runs in policies.items():
            axes.plot(*_curve(runs), color=COLOURS[name], label=name)

    def right(axes: "Axes") -> None:
        axes.set_title("by the chance that an update arrives")
        for label, runs in success.items():
            name, _, chance = label.rpartition(", ")
            axes.plot(*_curve(runs), DASHES[chance], color=COLOURS[name], label=label)

    _draw(file, [left, right] if success else [left], x="slot", y="mean opinion, 9 slots")


def _scaling(size: Runs, quarter: Runs, times: Runs, file: Path) -> None:
    """Draw accuracy and decision time by the number of clients."""

    def accuracy(axes: "Axes", title: str, found: Runs) -> None:
        axes.set_title(title)
        for name, at, runs in _by_clients(found):
            axes.plot(
                at,
                [np.mean([last(run["opinion"]) for run in one]) for one in runs],
                "o-",
                color=COLOURS[name],
                label=name,
            )

    def deciding(axes: "Axes") -> None:
        axes.set_title("decision, ms of processor a slot")
        axes.set_yscale("log")
        axes.set_yticks([0.25, 0.5, 1, 2], ["0.25", "0.5", "1", "2"])
        axes.set_yticks([], minor=True)
        for label, dashes in (("K = 5", "o-"), ("K = N/4", "s:")):
            found = {
                one.partition("; ")[0]: runs for one, runs in times.items() if one.endswith(label)
            }
            for name, at, runs in _by_clients(found):
                ms = [np.median([run["slot_ms"] for run in one]) for one in runs]
                axes.plot(at, ms, dashes, color=COLOURS[name], label=f"{name}, {label}")

    panels = [lambda axes: accuracy(axes, "accuracy after 200 slots, K = 5", size)]
    if quarter:
        panels.append(lambda axes: accuracy(axes, "accuracy after 10 slots, K = N/4", quarter))
    _draw(file, [*panels, deciding], x="clients", y="", log=True)


def _by_clients(found: Runs) -> Iterator[tuple[str, list[int], list[list[Run]]]]:
    """Yield each policy with the numbers of clients and their runs."""
    names = dict.fromkeys(label.rpartition(", ")[0] for label in found)
    for name in names:
        at = sorted(
            int(label.rpartition(", ")[2]) for label in found if label.rpartition(", ")[0] == name
        )
        yield name, at, [found[f"{name}, {clients}"] for clients in at]


def _curve(runs: Sequence[Run], window: int = 9) -> tuple[FloatArray, FloatArray]:
    """Return slots and the mean opinion over seeds, smoothed."""
    mean = np.mean([run["opinion"] for run in runs], axis=0)
    smooth = np.convolve(mean, np.ones(window) / window, mode="valid")
    at = np.arange(len(smooth), dtype=np.float64) + (window + 1) / 2
    return at[::3], np.asarray(smooth[::3], dtype=np.float64)


def _draw(
    file: Path, panels: Sequence[Callable[["Axes"], None]], *, x: str, y: str, log: bool = False
) -> None:
    from matplotlib import rc_context
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    from .plots import STYLE

    with rc_context(STYLE):  # type: ignore[arg-type]  # keys of matplotlib, checked at run time
        drawn = Figure(figsize=(4.0 * len(panels), 3.4), layout="constrained")
        FigureCanvasSVG(drawn)
        for axes, panel in zip(
            drawn.subplots(1, len(panels), squeeze=False).ravel(), panels, strict=True
        ):
            if log:
                axes.set_xscale("log")
            panel(axes)
            if log:
                axes.set_xticks(TICKS, [f"{at:g}" for at in TICKS])
                axes.set_xticks([], minor=True)
            axes.set_xlabel(x)
            axes.set_ylabel(y)
            axes.legend(fontsize=7)
        file.parent.mkdir(parents=True, exist_ok=True)
        drawn.savefig(file, format="svg", metadata={"Date": None})
