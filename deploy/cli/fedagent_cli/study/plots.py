"""The curves of a comparison as one picture, by matplotlib."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from matplotlib import colormaps, rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from fedagent_cli.errors import UsageError
from fedagent_coordinator.policies.base import FloatArray
from fedagent_testbed.study import Comparison, History
from fedagent_testbed.study.comparison import quantile, seeds_text

from .testbed import WITHOUT_DATE

_COLOURS = 20
POINTS = 200
"""Of one curve at most."""
_STYLE: dict[str, object] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "fedagent",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.2,
    "legend.frameon": False,
    "font.size": 9,
}
Of = Callable[[Sequence[History]], list[FloatArray]]
"""Returns the values of each seed over 1, 2, ...; not finite where there is none."""
Panel = tuple[str, str, Callable[[Axes], None]]
"""A title, the name of the axis below, and what draws the rest."""


def write_plots(result: Comparison, path: Path) -> None:
    """Write the curves of a comparison; `UsageError` if the file cannot be written.

    Utility, regret, accuracy if there is any, and selections per client.
    """
    panels = _of_selection(result)
    with rc_context(_STYLE):  # type: ignore[arg-type]  # keys of matplotlib, checked at run time
        rows = (len(panels) + 1) // 2
        figure = Figure(figsize=(10, 3.2 * rows), layout="constrained")
        FigureCanvasSVG(figure)
        places = figure.subplots(rows, 2, squeeze=False).ravel()
        for axes in places[len(panels) :]:
            axes.set_axis_off()
        for (title, below, draw), axes in zip(panels, places, strict=False):
            axes.set_title(title)
            axes.set_xlabel(below)
            draw(axes)
        handles, labels = places[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside right upper")
        figure.suptitle(f"{result.recipe.name}, {seeds_text(len(result.seeds))}: mean and 95 %")
        kind = path.suffix.lower()
        metadata = dict.fromkeys(WITHOUT_DATE[kind])
        try:
            figure.savefig(path.expanduser(), format=kind[1:], metadata=metadata)
        except OSError as error:
            raise UsageError(f"{path} cannot be written: {error.strerror}") from error


def _of_selection(result: Comparison) -> list[Panel]:
    def total(run: History) -> FloatArray:
        return np.cumsum(run.utility(result.recipe.world.utility))

    known = "oracle-p" if "oracle-p" in result.reference else "oracle"
    best: Sequence[History] = result.reference.get(known, ())

    def regret(runs: Sequence[History]) -> list[FloatArray]:
        return [total(a) - total(b) for a, b in zip(best, runs, strict=True)]

    def ranks(runs: Sequence[History]) -> list[FloatArray]:
        return [np.sort(run.rates())[::-1] for run in runs]

    data, below = result.recipe.world.training.dataset, "client, most selected first"
    every: list[tuple[str, str, Of, object]] = [
        ("cumulative utility", "round", lambda runs: [total(run) for run in runs], True),
        (f"regret against {known}", "round", regret, best),
        (
            "accuracy of the mean model",
            "round",
            lambda runs: [run["accuracy"] for run in runs],
            data,
        ),
        ("selection rate, clients by rank", below, ranks, True),
    ]
    return [(title, x, partial(curves, result, of)) for title, x, of, there in every if there]


def curves(result: Comparison, of: Of, axes: Axes) -> None:
    """Draw for each policy the mean over seeds, and its 95 % interval where all have a value."""
    for index, (name, runs) in enumerate(result.histories.items()):
        y = np.array(of(runs), dtype=np.float64)
        x = np.arange(1, y.shape[1] + 1, dtype=np.float64)
        known = np.flatnonzero(np.isfinite(y).any(axis=0))
        if not len(known):
            continue
        keep = known[np.unique(np.linspace(0, len(known) - 1, POINTS).astype(np.int64))]
        mean = np.nanmean(y[:, keep], axis=0)
        axes.plot(x[keep], mean, color=_colour(index), label=name, lw=1.3)
        if len(y) > 1:
            half = quantile(len(y) - 1) * y[:, keep].std(axis=0, ddof=1) / np.sqrt(len(y))
            low, high = mean - half, mean + half
            axes.fill_between(x[keep], low, high, color=_colour(index), alpha=0.15, lw=0)


def _colour(index: int) -> tuple[float, ...]:
    return tuple(colormaps["tab20"](index % _COLOURS))
