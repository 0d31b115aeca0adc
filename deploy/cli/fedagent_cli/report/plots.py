"""The report's plots as inline SVG, by matplotlib (extra `report`).

Text stays text and takes the page's colour, so that one drawing suits a light and a
dark page; data colours are chosen to be told apart on both, also with colour blindness.
"""

import io
import itertools
import re
import warnings
from collections.abc import Callable
from html import escape
from typing import TYPE_CHECKING

import numpy as np

from .colours import COLOURS, borders, by_round, legend_above, names_beside, whole
from .control import control_plots
from .opinions import opinion_plots
from .quality import quality_plots
from .run_report import ReportRound, RunReport

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INK = "#010203"
"""Stands for the page's text colour; replaced by `currentColor`."""
STEP_COLOURS = (COLOURS[4], COLOURS[3], COLOURS[1], COLOURS[0], COLOURS[2], COLOURS[5], COLOURS[7])
STEPS = ("observe", "decide", "reserve", "train", "settle", "merge")
SHAPES = {"wide": (7.2, 2.9), "narrow": (3.6, 2.7)}
"""Width and height in inches of what a page shows on a screen, and on a phone."""
MANY = 2000
"""Rounds shown at most; longer runs are thinned evenly."""


def available() -> bool:
    """Return whether matplotlib can be imported."""
    from importlib.util import find_spec  # noqa: PLC0415 - cheap, and only the report asks

    return find_spec("matplotlib") is not None


def draw_all(run: RunReport) -> list[tuple[str, str, str]]:
    """Return ``(title, what it shows, svg)`` for every plot that has data."""
    rows = run.rounds[:: 1 + len(run.rounds) // MANY]
    if not rows:
        return []
    plots = quality_plots(run, rows)
    plots += opinion_plots(run)
    plots += control_plots(run, rows)
    plots += [
        (
            "Successes per round",
            "Agents ordered, and those whose update came before the deadline.",
            lambda axes: _successes(axes, rows),
        ),
        (
            "Spend per edge",
            "Credits settled over the run, edge by edge.",
            lambda axes: _spend(axes, run),
        ),
        (
            "Selections per agent",
            "How often each agent was chosen, and what became of it.",
            lambda axes: _selections(axes, run),
        ),
    ]
    if any(row.timing_ms for row in rows):
        plots.append(
            (
                "Where a round's time goes",
                "Seconds per round by step; training includes both transfers.",
                lambda axes: _timing(axes, rows),
            )
        )
    return [
        (title, text, _both(draw, index, f"{title}: {text}"))
        for index, (title, text, draw) in enumerate(plots)
    ]


def _successes(axes: "Axes", rows: tuple[ReportRound, ...]) -> None:
    at = borders(rows)
    axes.stairs(
        [r.ordered for r in rows], at, fill=True, color="#9aa3ad", alpha=0.45, label="ordered"
    )
    axes.stairs([r.in_time for r in rows], at, fill=True, color=COLOURS[2], label="in time")
    by_round(axes)
    axes.set_ylabel("agents")
    axes.set_ylim(bottom=0)
    whole(axes, "y")
    legend_above(axes, columns=2)


def _spend(axes: "Axes", run: RunReport) -> None:
    x = [row.round for row in run.rounds]
    for index, edge in enumerate(run.edges):
        per_round = [row.edges[edge].spent_micro if edge in row.edges else 0 for row in run.rounds]
        axes.plot(
            x,
            np.cumsum(per_round) / 1e6,
            color=COLOURS[index % len(COLOURS)],
            linewidth=1.8,
            label=run.edge_name(edge),
        )
    by_round(axes)
    axes.set_ylabel("credits, total")
    axes.set_ylim(bottom=0)
    if 0 < len(run.edges) <= 8:
        legend_above(axes, columns=4)


def _selections(axes: "Axes", run: RunReport) -> None:
    agents = run.agents[:40]
    places = range(len(agents))
    in_time = np.array([agent.in_time for agent in agents])
    late = np.array([agent.outcomes.get("late", 0) for agent in agents])
    other = np.array([agent.ordered for agent in agents]) - in_time - late
    left = np.zeros(len(agents))
    for values, label, colour in (
        (in_time, "in time", COLOURS[2]),
        (late, "late", COLOURS[1]),
        (np.maximum(other, 0), "nothing came", COLOURS[5]),
    ):
        axes.barh(places, values, left=left, color=colour, label=label, height=0.72)
        left = left + values
    names_beside(axes, [agent.name for agent in agents])
    axes.invert_yaxis()
    axes.set_xlabel("rounds")
    whole(axes, "x")
    legend_above(axes, columns=3)


def _timing(axes: "Axes", rows: tuple[ReportRound, ...]) -> None:
    others = sorted({step for row in rows for step in row.timing_ms} - set(STEPS))
    bottom = np.zeros(len(rows))
    for step, colour in zip([*STEPS, *others], itertools.cycle(STEP_COLOURS), strict=False):
        values = np.array([row.timing_ms.get(step, 0.0) for row in rows]) / 1000
        if not values.any():
            continue
        top = bottom + values
        axes.stairs(top, borders(rows), baseline=bottom, fill=True, color=colour, label=step)
        bottom = top
    by_round(axes)
    axes.set_ylabel("seconds")
    legend_above(axes, columns=6)


def _both(draw: Callable[["Axes"], None], index: int, name: str) -> str:
    return "".join(
        f'<div class="{shape}">{_svg(draw, f"{index}{shape[0]}", size, name)}</div>'
        for shape, size in SHAPES.items()
    )


def _svg(draw: Callable[["Axes"], None], index: str, size: tuple[float, float], name: str) -> str:
    """Return one plot as an SVG element without a fixed size, a background or outside links."""
    from matplotlib import rc_context  # noqa: PLC0415 - optional package, half a second
    from matplotlib.backends.backend_svg import FigureCanvasSVG  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415

    style: dict[str, object] = {
        "svg.fonttype": "none",
        "svg.hashsalt": f"fedagent-{index}",
        "font.family": "sans-serif",
        "font.size": 9.5,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "grid.alpha": 0.15,
        "legend.frameon": False,
        "legend.handlelength": 1.1,
        "legend.columnspacing": 1.2,
        # What devices call themselves is no formula, whatever dollars it has.
        "text.parse_math": False,
        **{f"{part}.color": INK for part in ("text", "xtick", "ytick", "grid")},
        "axes.edgecolor": INK,
        "axes.labelcolor": INK,
    }
    with rc_context(style):  # type: ignore[arg-type]  # keys of matplotlib, checked at run time
        figure = Figure(figsize=size, layout="constrained")
        FigureCanvasSVG(figure)
        axes = figure.add_subplot()
        axes.set_facecolor("none")
        axes.set_axisbelow(True)
        draw(axes)
        text = io.StringIO()
        with warnings.catch_warnings():
            # Letters stay letters: the browser has fonts for those that matplotlib has not.
            warnings.filterwarnings("ignore", "Glyph .* missing from font", UserWarning)
            figure.savefig(text, format="svg", transparent=True, metadata={"Date": None})
    return _inline(text.getvalue(), index, name)


def _inline(svg: str, index: str, name: str) -> str:
    """Cut the XML prologue and metadata, free the size, adopt the page's text colour, name it."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r"font: ([\d.]+px) [^;\"]*", r"font-size: \1", svg)
    svg = re.sub(r'\bid="', f'id="p{index}-', svg)
    svg = re.sub(r"url\(#", f"url(#p{index}-", svg)
    svg = re.sub(r'(xlink:href)="#', rf'\1="#p{index}-', svg)
    named = f'<svg role="img" aria-label="{escape(name)}"'
    return svg.replace(INK, "currentColor").replace("<svg", named, 1)
