"""The curves of a comparison, and the matrix of several worlds, as one picture, by matplotlib."""

from pathlib import Path

import numpy as np
from matplotlib import colormaps, rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from fedagent_cli.errors import UsageError
from fedagent_coordinator.policies.base import FloatArray, IntArray
from fedagent_testbed.study import Comparison, Matrix
from fedagent_testbed.study.comparison import quantile, seeds_text

from .testbed import WITHOUT_DATE

_COLOURS = 20
_WORST = 0.5
"""Share of the palest cell."""
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


def write_plots(result: Comparison, path: Path) -> None:
    """Write the curves of a comparison; `UsageError` if the file cannot be written.

    Of selection: utility, regret, accuracy if there is any, and selections per client. Of
    streams: loss, latency, iterations, edges, and the load limit.
    """
    draws, means = [_utility, _regret, _selections], "mean and 95 %"
    if result.recipe.world.training.dataset:
        draws.insert(2, _accuracy)
    if result.of_streams:
        draws = [_loss_by_round, _loss_by_second, _split, _iterations, _edges, _violation]
        means = "means"
    with rc_context(_STYLE):  # type: ignore[arg-type]  # keys of matplotlib, checked at run time
        rows = (len(draws) + 1) // 2
        figure = _figure((10, 3.2 * rows))
        panels = figure.subplots(rows, 2, squeeze=False).ravel()
        for draw, axes in zip(draws, panels, strict=False):
            draw(result, axes)
        for axes in panels[len(draws) :]:
            axes.set_axis_off()
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside right upper")
        figure.suptitle(f"{result.recipe.name}, {seeds_text(len(result.seeds))}: {means}")
        _save(figure, path)


def write_matrix(matrix: Matrix, path: Path) -> None:
    """Write the heat table of several worlds, for light and dark pages; errors as `write_plots`.

    It has shares, the best of each world in bold, and the means.
    """
    size = 2.2 + 0.72 * len(matrix.policies), 1.0 + 0.26 * (len(matrix.worlds) + 1)
    grey = {f"{part}.color": "#767676" for part in ("text", "xtick", "ytick")}
    style = {**_STYLE, "axes.grid": False, **grey}
    with rc_context(style):  # type: ignore[arg-type]  # keys of matplotlib, checked at run time
        figure = _figure(size)
        axes = figure.add_subplot()
        axes.set_facecolor("none")
        _matrix(matrix, axes)
        _save(figure, path, transparent=True)


def _figure(size: tuple[float, float]) -> Figure:
    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasSVG(figure)
    return figure


def _save(figure: Figure, path: Path, *, transparent: bool = False) -> None:
    kind = path.suffix.lower()
    metadata = dict.fromkeys(WITHOUT_DATE[kind])
    try:
        figure.savefig(
            path.expanduser(), format=kind[1:], metadata=metadata, transparent=transparent
        )
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from error


def _utility(result: Comparison, axes: Axes) -> None:
    axes.set_title("cumulative utility")
    kind = result.recipe.world.utility
    for index, (name, runs) in enumerate(result.histories.items()):
        _band(axes, index, name, np.array([np.cumsum(run.utility(kind)) for run in runs]))
    axes.set_xlabel("round")


def _regret(result: Comparison, axes: Axes) -> None:
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


def _accuracy(result: Comparison, axes: Axes) -> None:
    axes.set_title("accuracy of the mean model")
    axes.set_xlabel("round")
    for index, (name, runs) in enumerate(result.histories.items()):
        curves = np.array([run["accuracy"] for run in runs])
        tested = np.isfinite(curves).all(axis=0)
        _band(axes, index, name, curves[:, tested], np.flatnonzero(tested) + 1)


def _selections(result: Comparison, axes: Axes) -> None:
    axes.set_title("selection rate, clients by rank")
    axes.set_xlabel("client, most selected first")
    for index, (name, runs) in enumerate(result.histories.items()):
        size = min(len(run.counts) for run in runs)
        ranked = np.array([np.sort(run.rates())[::-1][:size] for run in runs])
        axes.plot(np.arange(1, size + 1), ranked.mean(axis=0), color=_colour(index), label=name)


def _band(
    axes: Axes,
    index: int,
    name: str,
    curves: FloatArray,
    x: IntArray | None = None,
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


def _loss_by_round(result: Comparison, axes: Axes) -> None:
    axes.set_title("loss against rounds")
    axes.set_xlabel("round")
    for index, (name, runs) in enumerate(result.histories.items()):
        losses = _padded([run["loss"] for run in runs])
        tested = np.isfinite(losses).any(axis=0)
        if tested.any():
            mean = np.nanmean(losses[:, tested], axis=0)
            axes.plot(np.flatnonzero(tested) + 1, mean, color=_colour(index), label=name, lw=1.2)


def _loss_by_second(result: Comparison, axes: Axes) -> None:
    axes.set_title("loss against cumulative latency, first seed")
    axes.set_xlabel("seconds")
    for index, (name, runs) in enumerate(result.histories.items()):
        losses, seconds = runs[0]["loss"], np.cumsum(runs[0].latency_s)
        tested = np.isfinite(losses)
        axes.plot(seconds[tested], losses[tested], color=_colour(index), label=name, lw=1.2)


def _split(result: Comparison, axes: Axes) -> None:
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


def _iterations(result: Comparison, axes: Axes) -> None:
    axes.set_title("iterations per arrival step, first pair and seed")
    run = next(iter(result.histories.values()))[0]
    at = np.arange(1, len(run) + 1)
    axes.plot(at, run["done"], color=_colour(0), lw=1.0)
    axes.set_xlabel("round")
    steps = result.recipe.world.streaming.steps * result.recipe.world.clients
    axes.plot(at, run["arrivals"] / steps, color="0.5", lw=1.0, ls="--")
    axes.annotate("dashed: arrivals per step", (0.02, 0.92), xycoords="axes fraction", fontsize=7)


def _edges(result: Comparison, axes: Axes) -> None:
    axes.set_title("edges rented, first pair and seed")
    axes.set_xlabel("round")
    axes.set_ylabel("edge")
    edges = next(iter(result.histories.values()))[0]["edge"]
    axes.plot(np.arange(1, len(edges) + 1), edges, ".", ms=3, color=_colour(0))


def _violation(result: Comparison, axes: Axes) -> None:
    axes.set_title("cumulative seconds over the load limit, first seed")
    axes.set_xlabel("round")
    for index, (name, runs) in enumerate(result.histories.items()):
        over = runs[0].violation_s
        at = np.arange(1, len(over) + 1)
        keep = slice(None, None, max(1, len(over) // 100))
        axes.plot(at[keep], over[keep], color=_colour(index), label=name)


def _padded(curves: list[FloatArray]) -> FloatArray:
    longest = max(len(curve) for curve in curves)
    rows = [np.pad(curve, (0, longest - len(curve)), constant_values=np.nan) for curve in curves]
    return np.array(rows, dtype=np.float64)


def _colour(index: int) -> tuple[float, ...]:
    return tuple(colormaps["tab20"](index % _COLOURS))


def _matrix(matrix: Matrix, axes: Axes) -> None:
    names, worlds = matrix.policies, list(matrix.worlds)
    shares = np.full((len(worlds) + 1, len(names)), np.nan)
    for column, name in enumerate(names):
        for row, world in enumerate(worlds):
            share = matrix.share(world, name).mean
            shares[row, column] = np.nan if share is None else share
        shares[-1, column] = matrix.standings[name].mean_share
    colours = LinearSegmentedColormap.from_list("share", ["#f6e7d2", "#f6f6f6", "#6fa8dc"])
    axes.imshow(shares, cmap=colours, vmin=_WORST, vmax=1.0, aspect="auto")
    for row, column in np.ndindex(*shares.shape):
        value, last = shares[row, column], row == len(worlds)
        name = names[column]
        best = name == names[0] if last else matrix.worlds[worlds[row]].is_best(name)
        known = np.isfinite(value)
        axes.text(
            column,
            row,
            f"{value:.3f}" if known else "-",
            ha="center",
            va="center",
            fontsize=8,
            fontweight="bold" if best else "normal",
            color="#111111" if known else "#767676",
        )
    axes.axhline(len(worlds) - 0.5, color="#767676", lw=1.0)
    axes.set_xticks(range(len(names)), names, rotation=30, ha="left")
    axes.set_yticks(range(len(worlds) + 1), [*worlds, "mean"])
    axes.tick_params(length=0, labeltop=True, labelbottom=False)
    axes.spines[:].set_visible(False)
