"""The curves of a comparison as one picture, by matplotlib (extra `report`)."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedagent_cli.study.drawing import draw_panels
from fedagent_testbed.study import Comparison
from fedagent_testbed.study.comparison import quantile, seeds_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from fedagent_coordinator.policies.base import FloatArray

_COLOURS = 20


def write_plots(result: Comparison, path: Path) -> None:
    """Write the curves of a comparison.

    Of selection: utility, regret, accuracy if there is any, and selections per client. Of
    streams: loss, latency, iterations, edges, and the load limit.

    Raises:
        MissingError: matplotlib is not installed.
        UsageError: The file cannot be written.
    """
    draws = [_utility, _regret, _selections]
    if result.recipe.world.training.dataset:
        draws.insert(2, _accuracy)
    means = "mean and 95 %"
    if result.of_streams:
        draws = [_loss_by_round, _loss_by_second, _split, _iterations, _edges, _violation]
        means = "means"
    title = f"{result.recipe.name}, {seeds_text(len(result.seeds))}: {means}"
    draw_panels([partial(draw, result) for draw in draws], title, path)


def _utility(result: Comparison, axes: "Axes") -> None:
    axes.set_title("cumulative utility")
    kind = result.recipe.world.utility
    for index, (name, runs) in enumerate(result.histories.items()):
        _band(axes, index, name, np.array([np.cumsum(run.utility(kind)) for run in runs]))
    axes.set_xlabel("round")


def _regret(result: Comparison, axes: "Axes") -> None:
    known = "oracle-p" if "oracle-p" in result.reference else "oracle"
    axes.set_title(f"regret against {known}")
    axes.set_xlabel("round")
    if known not in result.reference:
        axes.text(0.5, 0.5, "no oracle in this world", ha="center", transform=axes.transAxes)
        return
    kind = result.recipe.world.utility
    best = np.array([np.cumsum(run.utility(kind)) for run in result.reference[known]])
    for index, (name, runs) in enumerate(result.histories.items()):
        mine = np.array([np.cumsum(run.utility(kind)) for run in runs])
        _band(axes, index, name, best - mine)


def _accuracy(result: Comparison, axes: "Axes") -> None:
    axes.set_title("accuracy of the mean model")
    axes.set_xlabel("round")
    for index, (name, runs) in enumerate(result.histories.items()):
        curves = np.array([run["accuracy"] for run in runs])
        tested = np.isfinite(curves).all(axis=0)
        _band(axes, index, name, curves[:, tested], np.flatnonzero(tested) + 1)


def _selections(result: Comparison, axes: "Axes") -> None:
    axes.set_title("selection rate, clients by rank")
    axes.set_xlabel("client, most selected first")
    for index, (name, runs) in enumerate(result.histories.items()):
        size = min(len(run.counts) for run in runs)
        ranked = np.array([np.sort(run.rates())[::-1][:size] for run in runs])
        axes.plot(np.arange(1, size + 1), ranked.mean(axis=0), color=_colour(index), label=name)


def _band(
    axes: "Axes",
    index: int,
    name: str,
    curves: "np.ndarray[tuple[int, ...], np.dtype[np.float64]]",
    x: "np.ndarray[tuple[int, ...], np.dtype[np.int64]] | None" = None,
) -> None:
    """Draw the mean over seeds and its 95 % interval; at most 200 points a curve."""
    where = np.arange(1, curves.shape[1] + 1) if x is None else x
    if not len(where):
        return
    keep = np.unique(np.linspace(0, len(where) - 1, 200).astype(np.int64))
    mean = curves.mean(axis=0)[keep]
    axes.plot(where[keep], mean, color=_colour(index), label=name, lw=1.3)
    if len(curves) > 1:
        error = curves.std(axis=0, ddof=1)[keep] / np.sqrt(len(curves))
        half = quantile(len(curves) - 1) * error
        axes.fill_between(
            where[keep], mean - half, mean + half, color=_colour(index), alpha=0.15, lw=0
        )


def _loss_by_round(result: Comparison, axes: "Axes") -> None:
    axes.set_title("loss against rounds")
    axes.set_xlabel("round")
    for index, (name, runs) in enumerate(result.histories.items()):
        losses = _padded([run["loss"] for run in runs])
        tested = np.isfinite(losses).any(axis=0)
        if tested.any():
            mean = np.nanmean(losses[:, tested], axis=0)
            axes.plot(np.flatnonzero(tested) + 1, mean, color=_colour(index), label=name, lw=1.2)


def _loss_by_second(result: Comparison, axes: "Axes") -> None:
    axes.set_title("loss against cumulative latency, first seed")
    axes.set_xlabel("seconds")
    for index, (name, runs) in enumerate(result.histories.items()):
        losses, seconds = runs[0]["loss"], np.cumsum(runs[0].latency_s)
        tested = np.isfinite(losses)
        axes.plot(seconds[tested], losses[tested], color=_colour(index), label=name, lw=1.2)


def _split(result: Comparison, axes: "Axes") -> None:
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


def _iterations(result: Comparison, axes: "Axes") -> None:
    axes.set_title("iterations per arrival step, first pair and seed")
    run = next(iter(result.histories.values()))[0]
    at = np.arange(1, len(run) + 1)
    axes.plot(at, run["done"], color=_colour(0), lw=1.0)
    axes.set_xlabel("round")
    steps = result.recipe.world.streaming.steps * result.recipe.world.clients
    axes.plot(at, run["arrivals"] / steps, color="0.5", lw=1.0, ls="--")
    axes.annotate("dashed: arrivals per step", (0.02, 0.92), xycoords="axes fraction", fontsize=7)


def _edges(result: Comparison, axes: "Axes") -> None:
    axes.set_title("edges rented, first pair and seed")
    axes.set_xlabel("round")
    axes.set_ylabel("edge")
    edges = next(iter(result.histories.values()))[0]["edge"]
    axes.plot(np.arange(1, len(edges) + 1), edges, ".", ms=3, color=_colour(0))


def _violation(result: Comparison, axes: "Axes") -> None:
    axes.set_title("cumulative seconds over the load limit, first seed")
    axes.set_xlabel("round")
    for index, (name, runs) in enumerate(result.histories.items()):
        over = runs[0].violation_s
        at = np.arange(1, len(over) + 1)
        keep = slice(None, None, max(1, len(over) // 100))
        axes.plot(at[keep], over[keep], color=_colour(index), label=name)


def _padded(curves: "list[FloatArray]") -> "FloatArray":
    longest = max(len(curve) for curve in curves)
    rows = [np.pad(curve, (0, longest - len(curve)), constant_values=np.nan) for curve in curves]
    return np.array(rows, dtype=np.float64)


def _colour(index: int) -> tuple[float, ...]:
    from matplotlib import colormaps  # noqa: PLC0415 - optional package

    return tuple(colormaps["tab20"](index % _COLOURS))
