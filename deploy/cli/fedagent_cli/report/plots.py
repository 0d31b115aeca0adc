"""The report's plots: how good the models are, what rounds cost and took, who was chosen."""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from fedagent_cli.drawing import (
    COLOURS,
    Draw,
    by_round,
    inline_svg,
    legend_above,
    names_beside,
    shortened,
    whole,
)
from fedagent_cli.output import number_text
from fedagent_task import measures
from fedagent_task.measures import Measure

from .opinions import Plot, opinion_plots
from .run_report import ReportRound, RunReport

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from fedagent_coordinator.policies.base import FloatArray

Rows = Sequence[ReportRound]
STEP_COLOURS = (COLOURS[4], COLOURS[3], COLOURS[1], COLOURS[0], COLOURS[2], COLOURS[5], COLOURS[7])
STEPS = ("observe", "decide", "reserve", "train", "settle", "merge")
PARTS = {
    "download": COLOURS[0],
    "computation and arrivals": COLOURS[2],
    "upload": COLOURS[1],
    "aggregation and the rest": COLOURS[4],
}
SHAPES = {"wide": (7.2, 2.9), "narrow": (3.6, 2.7)}
"""Width and height in inches of what a page shows on a screen, and on a phone."""
MANY = 2000
"""Rounds shown at most; longer runs are thinned evenly."""
CLAIMS_TOO_MUCH = 1.5
"""Gap from which an agent's bar is drawn as a warning."""
WIDE_RANGE = 50.0
"""Largest over smallest value beyond which an axis counts in powers of ten."""
NAMES = {
    "accuracy": "held-out",
    "loss": "held-out",
    "rmse": "root of the mean square",
    "mae": "mean absolute",
    "device_score": "on devices",
    "train_loss": "in training",
    "train_error": "in training",
}
"""Of a line; beside it stands its newest value."""
SAMPLES = {
    measures.HELD_OUT: "Held-out: on samples that no device learns from, after each merge.",
    measures.ON_DEVICES: "On devices: a round's base model on their new samples, before.",
    measures.IN_TRAINING: "In training: as devices report it, on samples they learn from.",
}


def draw_all(run: RunReport) -> list[tuple[str, str, str]]:
    """Return ``(title, what it shows, svg)`` for every plot that has data."""
    rows = run.rounds[:: 1 + len(run.rounds) // MANY]
    if not rows:
        return []
    plots = (
        *quality_plots(run, rows),
        *opinion_plots(run),
        *_control_plots(run, rows),
        *_round_plots(run, rows),
    )
    return [
        (title, text, _both(draw, index, f"{title}: {text}"))
        for index, (title, text, draw) in enumerate(plots)
    ]


def _both(draw: Draw, index: int, name: str) -> str:
    return "".join(
        f'<div class="{shape}">{inline_svg(draw, f"{index}{shape[0]}", size, name)}</div>'
        for shape, size in SHAPES.items()
    )


def quality_plots(run: RunReport, rows: Rows) -> Iterator[Plot]:
    """Yield the plots of what was measured of the models."""
    regression = measures.RMSE in run.measures or measures.TRAIN_ERROR in run.measures
    for title, text, wanted in _groups(regression=regression):
        known = [one for one in wanted if one in run.measures]
        shown = [one for one in known if any(row.of(one) is not None for row in rows)]
        if regression and measures.LOSS in shown:
            shown = [measures.LOSS]  # of training it is half of that: no line beside it
        if shown:
            where = " ".join(SAMPLES[one] for one in dict.fromkeys(one.where for one in shown))
            yield title, f"{text} {where}", partial(_quality, title.lower(), shown, rows)


def _groups(*, regression: bool) -> list[tuple[str, str, tuple[Measure, ...]]]:
    loss = ("Loss", "Lower is better.", (measures.LOSS, measures.TRAIN_LOSS))
    score = measures.DEVICE_SCORE
    if not regression:
        right = "The share of samples whose class the global model names."
        return [("Accuracy", right, (measures.ACCURACY, score)), loss]
    wrong = "How far the global model is off, in the unit of what it predicts; less is better."
    errors = (measures.RMSE, measures.MAE, measures.TRAIN_ERROR)
    return [
        ("Error", wrong, errors),
        loss,
        ("Score", "1 / (1 + error); more is better.", (score,)),
    ]


def _control_plots(run: RunReport, rows: Rows) -> Iterator[Plot]:
    """Yield the plots of placed and controlled runs."""
    noted, rented = any(row.notes for row in rows), any(row.rented for row in rows)
    if noted:
        text = (
            "What was ordered (dots), the real number behind it, and the multipliers of "
            "load and quality on the right."
        )
        yield "Local iterations", text, partial(_iterations, rows)
    if rented:
        text = "The edge that aggregated each round; below, the credits paid for it so far."
        yield "Rented edge", text, partial(_rents, run, rows)
    if (noted or rented) and any(row.latency_s for row in rows):
        text = (
            "Download, computation and upload of the device that held the round up "
            "longest, then aggregation and messages."
        )
        yield "Latency of the slowest device", text, partial(_latency, rows)


def _round_plots(run: RunReport, rows: Rows) -> Iterator[Plot]:
    text = "Agents ordered, and those whose update came before the deadline."
    yield "Successes per round", text, partial(_successes, rows)
    text = "Credits settled over the run, edge by edge."
    yield "Spend per edge", text, partial(_spend, run)
    text = "How often each agent was selected, and how its orders ended."
    yield "Selections per agent", text, partial(_selections, run)
    if any(agent.claim_gap is not None for agent in run.agents):
        text = (
            "What the updates of each agent took, as its edge observed, divided by the time "
            "expected from the compute and rates that it claims; 1 matches its claims."
        )
        yield "Claimed and observed", text, partial(_gaps, run)
    if any(row.timing_ms for row in rows):
        text = "Seconds per round by step; training includes both transfers."
        yield "Where a round's time goes", text, partial(_timing, rows)


def _quality(name: str, shown: Sequence[Measure], rows: Rows, axes: "Axes") -> None:
    from matplotlib.ticker import NullFormatter, StrMethodFormatter  # noqa: PLC0415 - optional

    every: list[float] = []
    for one, colour in zip(shown, COLOURS, strict=False):
        points = [(row.round, value) for row in rows if (value := row.of(one)) is not None]
        x, y = zip(*points, strict=True)
        marker = "o" if len(x) < 3 else None
        label = f"{NAMES[one.key]} {number_text(y[-1])}"
        axes.plot(x, y, color=colour, linewidth=1.8, marker=marker, label=label)
        every += y
    legend_above(axes, columns=3)
    if shown[0].rising:
        axes.set_ylim(0, 1.02)
    elif min(every) > 0 and max(every) > WIDE_RANGE * min(every):
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
    else:
        axes.set_ylim(bottom=0)
    by_round(axes)
    axes.set_ylabel(name)


def _iterations(rows: Rows, axes: "Axes") -> None:
    def noted(name: str) -> list[float]:
        return [row.notes.get(name, np.nan) for row in rows]

    x = [row.round for row in rows]
    ordered = [row.iterations or np.nan for row in rows]
    axes.plot(x, ordered, ".", color=COLOURS[0], alpha=0.55, markersize=4, label="ordered")
    axes.plot(x, noted("rho"), color=COLOURS[0], linewidth=1.8, label="rho")
    by_round(axes)
    axes.set_ylabel("iterations")
    axes.locator_params(axis="y", integer=True)
    axes.set_ylim(bottom=0)
    other = axes.twinx()
    other.plot(x, noted("lambda_load"), color=COLOURS[5], linewidth=1.1, label="load λ")
    other.plot(x, noted("lambda_quality"), color=COLOURS[2], linewidth=1.1, label="quality λ")
    other.set_ylabel("multiplier")
    other.set_ylim(bottom=0)
    other.grid(visible=False)
    legend_above(axes, columns=4, lines=[*axes.get_lines(), *other.get_lines()])


def _rents(run: RunReport, rows: Rows, axes: "Axes") -> None:
    paid = np.cumsum([row.rent_micro for row in run.rounds]) / 1e6
    x = [row.round for row in run.rounds]
    axes.fill_between(x, paid, color="#9aa3ad", alpha=0.35, linewidth=0)
    by_round(axes)
    axes.set_ylabel("rent, credits in all")
    axes.set_ylim(bottom=0)
    other = axes.twinx()
    for index, edge in enumerate(run.edges):
        here = [row.round for row in rows if row.rented == edge]
        if here:
            colour = COLOURS[index % len(COLOURS)]
            other.plot(here, [index] * len(here), "|", color=colour, markersize=9)
    shown = shortened(axes, [run.edge_name(edge) for edge in run.edges])
    other.set_yticks(range(len(shown)), shown)
    other.set_ylim(-0.6, len(shown) - 0.4)
    other.grid(visible=False)


def _latency(rows: Rows, axes: "Axes") -> None:
    shares = np.array([row.latency_s or (0.0,) * len(PARTS) for row in rows])
    parts = zip(PARTS, PARTS.values(), shares.T, strict=True)
    _stacked(rows, parts, axes)
    legend_above(axes, columns=4)


def _timing(rows: Rows, axes: "Axes") -> None:
    others = sorted({step for row in rows for step in row.timing_ms} - set(STEPS))
    parts = (
        (step, colour, np.array([row.timing_ms.get(step, 0.0) for row in rows]) / 1000)
        for step, colour in zip([*STEPS, *others], itertools.cycle(STEP_COLOURS), strict=False)
    )
    _stacked(rows, (part for part in parts if part[2].any()), axes)
    legend_above(axes, columns=6)


def _stacked(rows: Rows, parts: "Iterable[tuple[str, str, FloatArray]]", axes: "Axes") -> None:
    """Draw the seconds of each part of a round, one above the other."""
    bottom = np.zeros(len(rows))
    for label, colour, values in parts:
        top = bottom + values
        axes.stairs(top, _borders(rows), baseline=bottom, fill=True, color=colour, label=label)
        bottom = top
    by_round(axes)
    axes.set_ylabel("seconds")


def _successes(rows: Rows, axes: "Axes") -> None:
    for key, label, colour, alpha in (
        ("ordered", "ordered", "#9aa3ad", 0.45),
        ("in_time", "in time", COLOURS[2], None),
    ):
        values = [getattr(row, key) for row in rows]
        axes.stairs(values, _borders(rows), fill=True, color=colour, alpha=alpha, label=label)
    by_round(axes)
    axes.set_ylabel("agents")
    axes.set_ylim(bottom=0)
    whole(axes, "y")
    legend_above(axes, columns=2)


def _spend(run: RunReport, axes: "Axes") -> None:
    x = [row.round for row in run.rounds]
    for edge, colour in zip(run.edges, itertools.cycle(COLOURS), strict=False):
        per_round = [row.edges[edge].spent_micro if edge in row.edges else 0 for row in run.rounds]
        spent = np.cumsum(per_round) / 1e6
        axes.plot(x, spent, color=colour, linewidth=1.8, label=run.edge_name(edge))
    by_round(axes)
    axes.set_ylabel("credits, total")
    axes.set_ylim(bottom=0)
    if 0 < len(run.edges) <= 8:
        legend_above(axes, columns=4)


def _selections(run: RunReport, axes: "Axes") -> None:
    agents = run.agents[:40]
    in_time = np.array([agent.in_time for agent in agents])
    late = np.array([agent.outcomes.get("late", 0) for agent in agents])
    other = np.array([agent.ordered for agent in agents]) - in_time - late
    left = np.zeros(len(agents))
    for values, label, colour in (
        (in_time, "in time", COLOURS[2]),
        (late, "late", COLOURS[1]),
        (np.maximum(other, 0), "nothing arrived", COLOURS[5]),
    ):
        axes.barh(range(len(agents)), values, left=left, color=colour, label=label, height=0.72)
        left = left + values
    names_beside(axes, [agent.name for agent in agents])
    axes.invert_yaxis()
    axes.set_xlabel("rounds")
    whole(axes, "x")
    legend_above(axes, columns=3)


def _gaps(run: RunReport, axes: "Axes") -> None:
    """Draw the gaps from 1 on, so that half and twice as long are equally far."""
    agents = [agent for agent in run.agents if agent.claim_gap is not None][:40]
    gaps = np.array([agent.claim_gap for agent in agents], dtype=np.float64)
    colours = [COLOURS[5] if gap > CLAIMS_TOO_MUCH else COLOURS[0] for gap in gaps.tolist()]
    axes.barh(range(len(agents)), gaps - 1, left=1.0, color=colours, height=0.72)
    axes.axvline(1.0, color="#9aa3ad", linewidth=1.0)
    axes.set_xscale("log", base=2)
    far = max(2.0, float(np.max(np.maximum(gaps, 1 / gaps))) * 1.1)
    axes.set_xlim(1 / far, far)
    ticks = [
        t for t in (*(0.01, 0.1, 0.25, 0.5), *(1.0, 2.0, 4.0, 10.0, 100.0)) if 1 / far <= t <= far
    ]
    axes.set_xticks(ticks, [f"{t:g}" for t in ticks])
    axes.minorticks_off()
    names_beside(axes, [agent.name for agent in agents])
    axes.invert_yaxis()
    axes.set_xlabel("observed over claimed time")


def _borders(rows: Rows) -> list[float]:
    """Return where each round begins on the axis, and where the last one ends."""
    return [*(row.round - 0.5 for row in rows), rows[-1].round + 0.5]
