"""What the trials of `goal_trials` say: rows beside the paper's, and its figures 5, 6 and 8.

`python -m bench.plots --only gda` draws them from the recorded runs; none is played anew.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedagent_coordinator.policies.base import FloatArray
from fedagent_testbed.study import figure

from .goal_curves import SETS
from .goal_trials import IID, LEVELS, MARKS, TUNING_BLOCKS
from .goals_report import PAPER_GAPS, Row
from .kept import Run, Runs, part

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PARTS = (*TUNING_BLOCKS, "stationary", "stationary-own", "stationary-600", "carried")
REGRET = (20, 50, 100, 200)
PULLS = (228.95 / 500, 90.34 / 500)
"""Shares of the slots in the paper's Fig. 6: a client with all labels, another."""
COLOURS = {
    "fixed": "#777777",
    "random": "#ff7f0e",
    "quick-init-ucb, mu 0.01, shuffled": "#d62728",
    "bp-ucb, mu 0.1": "#1f77b4",
    "bp-ucb, as printed, mu 0.01": "#9467bd",
}
WHERE = {"stationary": "every slot from the same model", "carried": "the model carries over"}


def rows(path: Path) -> Iterator[Row]:
    """Yield a row per policy and part: gap to {1..5}, regret, and who was found."""
    for name in PARTS:
        found = part(path, name)
        for label, runs in found.items():
            yield {"bench": f"gda-{name}", "of": label} | _row(label, runs, found.get("fixed", []))
    for label, runs in part(path, "curves").items():
        loss, carried = (np.mean([run[key] for run in runs], axis=0) for key in ("loss", "carried"))
        yield {
            "bench": "gda-curves",
            "of": label,
            "loss_of_rounds_1_15_30": [round(float(loss[at]), 3) for at in (0, 14, 29)],
            "one_slot": round(float(np.mean([run["reset"] for run in runs])), 3),
            "slots_5_20": [round(float(carried[at]), 3) for at in (4, 19)],
        }


def _row(label: str, runs: Sequence[Run], best: Sequence[Run]) -> Row:
    by_block = {run["seed"]: run for run in best}
    pairs = [(run, by_block[run["seed"]]) for run in runs if run["seed"] in by_block]
    last = np.concatenate([run["last"] for run in runs])
    # Trials are many: mean and half of the 95 % interval, and not each one's.
    row: Row = {"trials": len(last), "accuracy": _interval(last)}
    if label != "fixed" and pairs:
        gaps = [1 - np.array(run["last"]) / np.array(other["last"]) for run, other in pairs]
        row["gap_percent"] = _interval(100 * np.concatenate(gaps), 2)
        row["regret"] = _regret(pairs)
    iid = np.concatenate([run["iid"] for run in runs])
    slots = _share(runs)
    row |= {
        "iid_among_five": round(float(iid.mean()), 2),
        "trials_with_four_or_five": round(float((iid >= 4).mean()), 2),
        "share_of_slots_iid": round(float(slots[:IID].mean()), 3),
        "share_of_slots_other": round(float(slots[IID:].mean() if len(slots) > IID else 0), 3),
        "sets": round(float(np.mean(np.concatenate([run["sets"] for run in runs]))), 1),
        "slots_to": [_reached(runs, at, len(last)) for at in range(len(LEVELS))],
    }
    gap = next((gap for name, gap in PAPER_GAPS.items() if label.startswith(name)), None)
    return row | ({} if gap is None else {"paper_gap_percent": gap})


def _share(runs: Sequence[Run]) -> FloatArray:
    """Return the share of the slots in which each client trained, float64[N]."""
    clients = max(len(run["slots"]) for run in runs)
    padded = [run["slots"] + [0.0] * (clients - len(run["slots"])) for run in runs]
    return np.asarray(np.mean(padded, axis=0) / float(runs[0]["length"]))


def _regret(pairs: Sequence[tuple[Run, Run]]) -> dict[str, float]:
    """Return how many slots of {1..5} the sum of rewards is behind, by slot."""
    regret: dict[str, float] = {}
    for at in REGRET:
        if at <= pairs[0][0]["length"]:
            mark = MARKS.index(at)
            behind = [(best["total"][mark] - run["total"][mark]) for run, best in pairs]
            unit = float(np.mean([np.mean(best["last"]) for _, best in pairs]))
            regret[str(at)] = round(float(np.mean(behind)) / unit, 1)
    return regret


def _reached(runs: Sequence[Run], level: int, trials: int) -> list[float] | None:
    """Return the mean slot at which trials came to a level, and the share that did."""
    at = [slot for run in runs for slot in run["to"][level]]
    return [round(float(np.mean(at)), 1), round(len(at) / trials, 2)] if at else None


def _interval(values: FloatArray, digits: int = 4) -> dict[str, float | None]:
    found = figure(values.tolist())
    numbers = {"mean": found.mean, "ci95": found.ci95}
    return {key: None if one is None else round(one, digits) for key, one in numbers.items()}


def growth(path: Path) -> tuple["Figure", Row]:
    """Fig. 5: loss by K, accuracy by K, accuracy by set."""
    figure_, (left, middle, right) = _panels(3)
    found = part(path, "curves")
    for label, runs in found.items():
        loss, carried = (np.mean([run[key] for run in runs], axis=0) for key in ("loss", "carried"))
        reset = float(np.mean([run["reset"] for run in runs]))
        at = np.arange(1, len(carried) + 1)
        panel = right if label in SETS else middle
        if label not in SETS:
            left.plot(np.arange(1, len(loss) + 1)[::3], loss[::3], label=label)
        line = panel.plot(at, carried, label=label)
        panel.axhline(reset, linestyle=":", color=line[0].get_color())
    left.set(title="loss, one set in one slot", xlabel="round")
    for panel, title in ((middle, "random sets of K"), (right, "sets")):
        panel.set(title=title, xlabel="slot", ylabel="mean opinion")
    for panel in (middle, right):
        panel.set_xticks([1, 5, 10, 15, 20])
        panel.legend(fontsize=7)
    right.annotate("dotted: every slot from the same model", (0.02, 0.02), xycoords="axes fraction")
    return figure_, {
        label: round(float(np.mean([run["carried"][-1] for run in runs])), 3)
        for label, runs in found.items()
    }


def pulls(path: Path) -> tuple["Figure", Row]:
    """Fig. 6: how often each client trains under quick-init-ucb."""
    figure_, panels = _panels(2)
    numbers: Row = {}
    for axes, (name, title) in zip(panels, WHERE.items(), strict=True):
        for place, label in enumerate(
            ("quick-init-ucb, mu 0.01, shuffled", "quick-init-ucb-paper")
        ):
            runs = part(path, name).get(label, [])
            if not runs:
                continue
            share = _share(runs)
            at = np.arange(1, len(share) + 1) + (place - 0.5) * 0.4
            colour = COLOURS.get(label, "#2ca02c")
            axes.bar(at, share, 0.4, color=colour, label=label)
            numbers[f"{name}, {label}"] = share.round(3).tolist()
        for (first, last), level in zip(((0.5, 5.5), (5.5, 20.5)), PULLS, strict=True):
            label = "the paper's mean" if first < 1 else ""
            axes.plot([first, last], [level, level], "k:", label=label)
        axes.set(title=title, xlabel="client; 1 to 5 have all labels", ylabel="share of the slots")
        axes.set_xticks([1, 5, 10, 15, 20])
        axes.legend(fontsize=7)
    return figure_, numbers


def believed(path: Path) -> tuple["Figure", Row]:
    """Fig. 8: beliefs of clients 1 to 5, and the mean of the others."""
    figure_, panels = _panels(2)
    numbers: Row = {}
    for axes, (name, title) in zip(panels, WHERE.items(), strict=True):
        runs = part(path, name).get("bp-ucb, mu 0.1", [])
        if not runs:
            continue
        belief = np.mean([run["belief"] for run in runs], axis=0)
        at = np.arange(1, len(belief) + 1)
        for client in range(IID):
            axes.plot(at, belief[:, client], label=f"client {client + 1}")
        axes.plot(at, belief[:, IID], "k--", label="mean of the others")
        axes.set(title=title, xlabel="slot", ylabel="belief, mean over trials")
        axes.legend(fontsize=7)
        numbers[name] = {
            str(slot): [round(float(belief[slot - 1, :IID].mean()), 3),
                        round(float(belief[slot - 1, IID]), 3)]
            for slot in (1, 5, 10, 30)
        }  # fmt: skip
    return figure_, numbers


def accuracies(path: Path) -> tuple["Figure", Row]:
    """Fig. 7 and 9 in both settings: mean opinion over the slots."""
    figure_, panels = _panels(2)
    numbers: Row = {}
    for axes, (name, title) in zip(panels, WHERE.items(), strict=True):
        found: Runs = part(path, name)
        for label, colour in COLOURS.items():
            runs = found.get(label, [])
            if not runs:
                continue
            curve = np.mean([run["curve"] for run in runs], axis=0)
            at = list(MARKS[: len(curve)])
            if label == "random" and name == "stationary":
                curve, at = np.full(2, np.mean([run["last"] for run in runs])), [1, MARKS[-1]]
            axes.plot(at, curve, color=colour, label=label)
            numbers[f"{name}, {label}"] = round(float(curve[-1]), 3)
        axes.set(title=title, xlabel="slot", ylabel="mean opinion", xscale="log")
        axes.legend(fontsize=7)
    return figure_, numbers


def _panels(count: int) -> tuple["Figure", "Sequence[Axes]"]:
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    drawn = Figure(figsize=(4.0 * count, 3.4), layout="constrained")
    FigureCanvasSVG(drawn)
    return drawn, list(drawn.subplots(1, count, squeeze=False).ravel())
