"""Pictures of the runs that `bench.papers` keeps: RBCS-F's accuracy, COCS's regret, sweeps."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from . import strategies
from .kept import Run, part
from .paper_rows import EXPONENT, FIT_FROM, last, regrets, slope
from .paper_runs import CHECKPOINTS, GAMMAS, LEAST, MERGES, NOISES, SWEPT, UNEVEN
from .papers import RUNS
from .plots import BLUE, GREEN, GREY, ORANGE, PURPLE, RED, STYLES, Numbers, blank

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = {
    "rbcs-f V=1": GREEN,
    "rbcs-f V=20": BLUE,
    "rbcs-f V=50": PURPLE,
    "random": ORANGE,
    "fedcs": RED,
    "fastest": GREY,
    "adaptive": BLUE,
    "cocs": GREEN,
}
TITLES = {"1": "$\\gamma_1$ = 1", "10": "$\\gamma_1$ = 10", "inf": "iid"}
MOST_S = 2500.0


def fashion() -> tuple["Figure", Numbers]:
    """Accuracy against rounds above, against virtual time below, softmax."""
    found = part(RUNS, "fashion")
    figure, panels = blank(2 * len(GAMMAS), rows=2)
    numbers: Numbers = {}
    for column, gamma in enumerate(GAMMAS):
        above, below = panels[column], panels[len(GAMMAS) + column]
        for label, runs in found.items():
            name, _, dealt = label.rpartition(", ")
            if dealt == gamma:
                _by_round_and_time(above, below, name, runs)
                numbers[label] = round(float(np.mean([last(run) for run in runs])), 4)
        above.set_title(TITLES[gamma])
    _bounds(panels, (0.74, 0.85))
    return figure, numbers


def fashion_cnn() -> tuple["Figure", Numbers]:
    """The same with the paper's network, gamma1 = 1."""
    found = part(RUNS, "fashion-cnn")
    figure, panels = blank(2)
    numbers: Numbers = {}
    for label, runs in found.items():
        _by_round_and_time(panels[0], panels[1], label.rpartition(", ")[0], runs)
        numbers[label] = round(float(np.mean([last(run) for run in runs])), 4)
    _bounds(panels, None)
    return figure, numbers


def uneven() -> tuple["Figure", Numbers]:
    """Accuracy where clients are drawn by shares out of Dir(gamma2)."""
    found = part(RUNS, "uneven")
    figure, panels = blank(len(GAMMAS))
    numbers: Numbers = {}
    for axes, gamma in zip(panels, GAMMAS, strict=True):
        for evenness, colour in zip(UNEVEN, (RED, ORANGE, BLUE, GREEN), strict=True):
            runs = found[f"{gamma}, {evenness}"]
            mean = np.mean([run["accuracy"] for run in runs], axis=0)
            axes.plot(runs[0]["round"], mean, color=colour, label=f"$\\gamma_2$ = {evenness}")
            numbers[f"{gamma}, {evenness}"] = round(float(np.mean([last(run) for run in runs])), 4)
        axes.set_title(TITLES[gamma])
        axes.set_xlabel("round")
        axes.set_ylim(0.78, 0.845)
        axes.legend(loc="lower right")
    panels[0].set_ylabel("accuracy")
    return figure, numbers


def regret() -> tuple["Figure", Numbers]:
    """Cumulative regret over T on logarithmic axes, and the slope of the paper's bound."""
    found = part(RUNS, "regret")
    figure, panels = blank(len(NOISES))
    at = np.array(CHECKPOINTS)
    numbers: Numbers = {}
    for axes, noise in zip(panels, NOISES, strict=True):
        for label in found:
            name = label.partition(", ")[0]
            if label != f"{name}, {noise}" or name == "oracle-p":
                continue
            several = regrets(found, name, noise)
            mean, fitted = several.mean(axis=0), slope(several)
            colour, line = STYLES[name]
            shown = name if fitted is None else f"{name}, T^{fitted:.2f}"
            axes.plot(at, np.maximum(mean, 1.0), line, color=colour, label=shown)
            numbers[label] = {"regret": round(float(mean[-1]), 1), "exponent": fitted}
        anchor = float(regrets(found, "cocs", noise).mean(axis=0)[CHECKPOINTS.index(FIT_FROM)])
        later = at[at >= FIT_FROM]
        bound = 1.6 * anchor * (later / FIT_FROM) ** EXPONENT
        axes.plot(later, bound, ":", color="black", label=f"slope of the bound, T^{EXPONENT:g}")
        axes.set_title(f"noise {noise} dBm/Hz")
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xticks([100, 300, 1000, 3000], ["100", "300", "1000", "3000"])
        axes.set_xticks([], minor=True)
        axes.set_xlabel("round")
        axes.legend(loc="upper left", fontsize=7)
    panels[0].set_ylabel("regret to oracle-p, updates")
    return figure, numbers


def sweeps() -> tuple["Figure", Numbers]:
    """Accuracy after 100 rounds by T_ES, and by Z with the seconds that Z costs."""
    figure, panels = blank(3)
    merged, least = part(RUNS, "merge"), part(RUNS, "min-updates")
    numbers: Numbers = {}
    for axes, found, values, key, x in (
        (panels[0], merged, MERGES, "last", "T_ES, rounds between merges"),
        (panels[1], least, LEAST, "last", "Z, updates that an edge waits for"),
        (panels[2], least, LEAST, "seconds_per_round", "Z, updates that an edge waits for"),
    ):
        for name in SWEPT:
            means = [float(np.mean([run[key] for run in found[f"{name}, {v}"]])) for v in values]
            axes.plot(range(len(values)), means, "o-", color=COLOURS[name], label=name)
            numbers[f"{name}, {x.partition(',')[0]}, {key}"] = [round(one, 4) for one in means]
        axes.set_xticks(range(len(values)), [str(value) for value in values])
        axes.set_xlabel(x)
        axes.legend()
    panels[0].set_ylabel("accuracy, last 10 of 100 rounds")
    panels[2].set_ylabel("seconds of a round")
    return figure, numbers


FIGURES: dict[str, Callable[[], tuple["Figure", Numbers]]] = {
    "rbcs-f-fashion": fashion,
    "rbcs-f-fashion-cnn": fashion_cnn,
    "rbcs-f-uneven": uneven,
    "cocs-regret": regret,
    "cocs-sweeps": sweeps,
    "strategies": strategies.draw,
}


def _by_round_and_time(by_round: "Axes", by_time: "Axes", name: str, runs: Sequence[Run]) -> None:
    colour = COLOURS[name]
    accuracy = np.mean([run["accuracy"] for run in runs], axis=0)
    seconds = np.mean([run["seconds"] for run in runs], axis=0)
    by_round.plot(runs[0]["round"], accuracy, color=colour, label=name)
    soon = seconds <= MOST_S
    by_time.plot(seconds[soon], accuracy[soon], color=colour, label=name)


def _bounds(panels: Sequence["Axes"], accuracy: tuple[float, float] | None) -> None:
    half = len(panels) // 2
    for place, axes in enumerate(panels):
        axes.set_xlabel("round" if place < half else "virtual seconds")
        if accuracy:
            axes.set_ylim(*accuracy)
    panels[0].set_ylabel("accuracy")
    panels[half].set_ylabel("accuracy")
    panels[0].legend(loc="lower right", fontsize=7)
