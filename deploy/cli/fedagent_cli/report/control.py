"""Plots of placed and controlled runs: iterations and multipliers, edges and rents, latency."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from .colours import COLOURS, borders, by_round, legend_above, shortened
from .run_report import ReportRound, RunReport

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Plot = tuple[str, str, Callable[["Axes"], None]]
PARTS = ("download", "computation and arrivals", "upload", "aggregation and the rest")


def control_plots(run: RunReport, rows: tuple[ReportRound, ...]) -> list[Plot]:
    """Return title, text and drawing of every plot that has data; none for an ordinary run."""
    plots: list[Plot] = []
    if any(row.notes for row in rows):
        plots.append(
            (
                "Local iterations",
                (
                    "What was ordered (dots), the real number behind it, and the multipliers of "
                    "load and quality on the right."
                ),
                lambda axes: _iterations(axes, rows),
            )
        )
    if any(row.rented for row in rows):
        plots.append(
            (
                "Rented edge",
                "The edge that aggregated each round; below, the credits paid for it so far.",
                lambda axes: _rents(axes, run, rows),
            )
        )
    if plots and any(row.latency_s for row in rows):
        plots.append(
            (
                "Latency of the slowest device",
                (
                    "Download, computation and upload of the device that held the round up "
                    "longest, then aggregation and messages."
                ),
                lambda axes: _latency(axes, rows),
            )
        )
    return plots


def _iterations(axes: "Axes", rows: tuple[ReportRound, ...]) -> None:
    x = [row.round for row in rows]
    ordered = [row.iterations or np.nan for row in rows]
    axes.plot(x, ordered, ".", color=COLOURS[0], alpha=0.55, markersize=4, label="ordered")
    axes.plot(x, _noted(rows, "rho"), color=COLOURS[0], linewidth=1.8, label="rho")
    by_round(axes)
    axes.set_ylabel("iterations")
    axes.locator_params(axis="y", integer=True)
    axes.set_ylim(bottom=0)
    other = axes.twinx()
    for name, label, colour in (
        ("lambda_load", "load λ", COLOURS[5]),
        ("lambda_quality", "quality λ", COLOURS[2]),
    ):
        other.plot(x, _noted(rows, name), color=colour, linewidth=1.1, label=label)
    other.set_ylabel("multiplier")
    other.set_ylim(bottom=0)
    other.grid(visible=False)
    legend_above(axes, columns=4, lines=[*axes.get_lines(), *other.get_lines()])


def _noted(rows: tuple[ReportRound, ...], name: str) -> list[float]:
    return [row.notes.get(name, np.nan) for row in rows]


def _rents(axes: "Axes", run: RunReport, rows: tuple[ReportRound, ...]) -> None:
    names = list(run.edges)
    paid = np.cumsum([row.rent_micro for row in run.rounds]) / 1e6
    x = [row.round for row in run.rounds]
    axes.fill_between(x, paid, color="#9aa3ad", alpha=0.35, linewidth=0)
    by_round(axes)
    axes.set_ylabel("rent, credits in all")
    axes.set_ylim(bottom=0)
    other = axes.twinx()
    for index, edge in enumerate(names):
        here = [row.round for row in rows if row.rented == edge]
        if here:
            colour = COLOURS[index % len(COLOURS)]
            other.plot(here, [index] * len(here), "|", color=colour, markersize=9)
    shown = shortened(axes, [run.edge_name(edge) for edge in names])
    other.set_yticks(range(len(names)), shown)
    other.set_ylim(-0.6, len(names) - 0.4)
    other.grid(visible=False)


def _latency(axes: "Axes", rows: tuple[ReportRound, ...]) -> None:
    bottom = np.zeros(len(rows))
    shares = np.array([row.latency_s or (0.0,) * len(PARTS) for row in rows])
    colours = (COLOURS[0], COLOURS[2], COLOURS[1], COLOURS[4])
    for values, part, colour in zip(shares.T, PARTS, colours, strict=True):
        top = bottom + values
        axes.stairs(top, borders(rows), baseline=bottom, fill=True, color=colour, label=part)
        bottom = top
    by_round(axes)
    axes.set_ylabel("seconds")
    legend_above(axes, columns=4)
