"""`fedagent testbed` on studies of streams: the table, best pair first, and the curves."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedagent_cli.output import echo
from fedagent_testbed.streaming.compare import MARGIN, StreamComparison
from fedagent_testbed.study.table import text

from .plots import colour, draw_panels, seeds_text
from .table import aligned

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from fedagent_coordinator.policies.base import FloatArray

_DIGITS = {
    "latency_s": 1,
    "compute_s": 1,
    "transfer_s": 1,
    "aggregate_s": 1,
    "final_loss": 4,
    "seconds_to_best": 1,
    "rounds": 0,
    "spent": 1,
    "rho": 1,
    "peak_s": 2,
    "within_limit": 3,
    "violation_s": 1,
    "edges": 0,
    "decision_ms": 2,
}
_HEADS = {
    "latency_s": "latency s",
    "compute_s": "compute",
    "transfer_s": "transfer",
    "aggregate_s": "aggregate",
    "final_loss": "loss",
    "seconds_to_best": "s to best",
    "peak_s": "peak s",
    "within_limit": "in limit",
    "violation_s": "over s",
    "decision_ms": "ms",
}


def write_stream_table(result: StreamComparison) -> None:
    """Print one line per pair: those that reach the best loss first, by cumulative latency."""
    digits = dict(_DIGITS)
    if result.recipe.streaming.prequential:
        digits["error"] = 3
    rows = [["policy", *(_HEADS.get(key, key) for key in digits)]]
    for name in result.ranked():
        figures = result.figures(name)
        mark = "*" if result.reaches_best(name) else ""
        cells = [text(figures[key], places) for key, places in digits.items()]
        cells[list(digits).index("final_loss")] += mark
        rows.append([name, *cells])
    aligned(rows)
    recipe, seeds = result.recipe, seeds_text(len(result.seeds))
    echo(
        f"{recipe.name}: {recipe.rounds.count} rounds at most, {recipe.streaming.budget:g} credits "
        f"of rent, {seeds}, mean ± 95 %; * within {MARGIN:g} of the least loss"
    )
    if (known := result.persistence).mean is not None:
        echo(f"persistence (as warm as now): error {text(known, 3)}")


def write_stream_plots(result: StreamComparison, path: Path) -> None:
    """Write six panels: loss, latency, iterations, edges, and the load limit.

    Raises:
        MissingError: matplotlib is not installed.
        UsageError: The file cannot be written.
    """
    panels = (_loss_by_round, _loss_by_second, _split, _iterations, _edges, _violation)
    title = f"{result.recipe.name}, {seeds_text(len(result.seeds))}: means"
    draw_panels([partial(draw, result) for draw in panels], title, path)


def _loss_by_round(result: StreamComparison, axes: "Axes") -> None:
    axes.set_title("loss against rounds")
    axes.set_xlabel("round")
    for index, (name, runs) in enumerate(result.histories.items()):
        losses = _padded([run.column("loss") for run in runs])
        tested = np.isfinite(losses).any(axis=0)
        if tested.any():
            mean = np.nanmean(losses[:, tested], axis=0)
            axes.plot(np.flatnonzero(tested) + 1, mean, color=colour(index), label=name, lw=1.2)


def _loss_by_second(result: StreamComparison, axes: "Axes") -> None:
    axes.set_title("loss against cumulative latency, first seed")
    axes.set_xlabel("seconds")
    for index, (name, runs) in enumerate(result.histories.items()):
        losses, seconds = runs[0].column("loss"), np.cumsum(runs[0].latency_s)
        tested = np.isfinite(losses)
        axes.plot(seconds[tested], losses[tested], color=colour(index), label=name, lw=1.2)


def _split(result: StreamComparison, axes: "Axes") -> None:
    axes.set_title("cumulative latency, s")
    names = list(result.histories)
    left = np.zeros(len(names))
    for shade, key in zip(
        ("0.25", "0.6", "0.85"), ("compute_s", "transfer_s", "aggregate_s"), strict=True
    ):
        wide = np.array([result.figures(name)[key].mean or 0.0 for name in names])
        axes.barh(np.arange(len(names)), wide, left=left, color=shade, label=key.removesuffix("_s"))
        left += wide
    axes.set_yticks(np.arange(len(names)), names, fontsize=7)
    axes.invert_yaxis()
    axes.legend(fontsize=7)


def _iterations(result: StreamComparison, axes: "Axes") -> None:
    axes.set_title("iterations per arrival step, first pair and seed")
    run = next(iter(result.histories.values()))[0]
    at = np.arange(1, len(run) + 1)
    axes.plot(at, run.column("done"), color=colour(0), lw=1.0)
    axes.set_xlabel("round")
    steps = result.recipe.streaming.steps * result.recipe.clients
    axes.plot(at, run.column("arrivals") / steps, color="0.5", lw=1.0, ls="--")
    axes.annotate("dashed: arrivals per step", (0.02, 0.92), xycoords="axes fraction", fontsize=7)


def _edges(result: StreamComparison, axes: "Axes") -> None:
    axes.set_title("edges rented, first pair and seed")
    axes.set_xlabel("round")
    axes.set_ylabel("edge")
    edges = next(iter(result.histories.values()))[0].edges
    axes.plot(np.arange(1, len(edges) + 1), edges, ".", ms=3, color=colour(0))


def _violation(result: StreamComparison, axes: "Axes") -> None:
    axes.set_title("cumulative seconds over the load limit, first seed")
    axes.set_xlabel("round")
    for index, (name, runs) in enumerate(result.histories.items()):
        over = runs[0].violation_s
        at = np.arange(1, len(over) + 1)
        keep = slice(None, None, max(1, len(over) // 100))
        axes.plot(at[keep], over[keep], color=colour(index), label=name)


def _padded(curves: "list[FloatArray]") -> "FloatArray":
    """Return the curves as rows of one table, NaN after the end of the shorter ones."""
    longest = max(len(curve) for curve in curves)
    rows = [np.pad(curve, (0, longest - len(curve)), constant_values=np.nan) for curve in curves]
    return np.array(rows, dtype=np.float64)
