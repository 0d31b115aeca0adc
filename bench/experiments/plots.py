"""Draw what ``kept.csv`` holds into docs: ``python -m bench.experiments.plots [--only NAME]``.

A picture is one or two panels of points ``name@x`` of the table; the worlds are a map. Needs
matplotlib (extra `report`); plays nothing, and the same table gives the same bytes.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from .table import Line, read

DOCS = Path(__file__).parents[2] / "docs"
STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "fedagent-policies",
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "legend.frameon": False,
}
GROUPS = (
    *("fixed", "random", "quick-init-ucb, mu 0.01, shuffled"),
    *("bp-ucb, mu 0.1", "bp-ucb, as printed, mu 0.01"),
)
SIZES = tuple(f"K = {size}" for size in (1, 5, 10, 15, 20))
REPLAYED = ("quick-init-ucb-paper", "quick-init-ucb", "random")
WEIGHTS = tuple(f"V = {v}" for v in (1, 5, 20, 50))
Panel = tuple[str, str, tuple[str, ...]]
PICTURES: dict[str, tuple[Panel, ...]] = {
    "quick-init": (
        ("quick-init-replays", "replays", REPLAYED),
        ("quick-init-replays", "worth", REPLAYED),
    ),
    "placement": (("placement-rents", "plays", ("budgeted-ucb-paper", "budgeted-ucb")),),
    "bp-ucb": (("bp-saturation", "largest", ("",)),),
    "rbcs-f-queues": (("rbcs-queues", "queue", WEIGHTS), ("rbcs-queues", "share", WEIGHTS)),
    "gda-accuracy": tuple((e, "opinion", GROUPS) for e in ("gda-stationary", "gda-carried")),
    "gda-beliefs": tuple(
        (where, name, ("bp-ucb, mu 0.1",))
        for where in ("gda-stationary", "gda-carried")
        for name in ("belief_iid", "belief_other")
    ),
    "gda-growth": (
        ("gda-growth", "loss", SIZES),
        ("gda-growth", "carried", SIZES),
        ("gda-growth", "carried", ("{16..20}", "{1..20}", "{1..5}")),
    ),
}
AXES = {
    "replays": ("slot", "slots that replayed a set, cumulative"),
    "worth": ("slot", "worth of the set, mean of 20 slots"),
    "plays": ("edge, by mean cost, best first", "rounds of 1000"),
    "largest": ("sweeps", "largest belief as printed"),
    "queue": ("round", "mean queue, rounds owed"),
    "share": ("client, the least chosen first", "share of the rounds"),
    "loss": ("round", "loss"),
}
"""Titles of the axes by the name of the points; of others ``slot`` and the name itself."""


def of(experiment: str) -> dict[str, Line]:
    """Return an experiment's lines by case."""
    return {one.case: one for one in read() if one.experiment == experiment}


def curves(name: str) -> Figure:
    """Draw points of the table, a panel each."""
    figure, panels = blank(len(PICTURES[name]))
    for axes, (experiment, points, cases) in zip(panels, PICTURES[name], strict=True):
        found = of(experiment)
        for case in cases:
            axes.plot(*found[case].series(points), "o-", markersize=3, label=case or experiment)
        x, y = AXES.get(points, ("slot", points))
        axes.set(title=experiment, xlabel=x, ylabel=y)
        axes.legend(fontsize=7)
    return figure


def worlds() -> Figure:
    """Draw shares of the best policy's utility, worlds by policies, 300 rounds."""
    found = of("worlds-300")
    cells = [case.rpartition(", ") for case in found]
    names = list(dict.fromkeys(world for world, _, _ in cells))
    shares = {policy: np.full(len(names), np.nan) for _, _, policy in cells}
    for world, _, policy in cells:
        share = found[f"{world}, {policy}"].mean("share_of_best")
        shares[policy][names.index(world)] = share
    order = sorted(shares, key=lambda name: -float(np.nanmean(shares[name])))
    drawn = np.array([shares[name] for name in order]).T
    figure, (axes,) = blank(1)
    figure.set_size_inches(8.0, 9.0)
    axes.grid(visible=False)
    axes.imshow(drawn, cmap="Blues", vmin=0.0, vmax=1.2, aspect="auto")
    axes.set_xticks(range(len(order)), order, rotation=45, ha="right")
    axes.set_yticks(range(len(names)), names)
    for (row, column), share in np.ndenumerate(drawn):
        if np.isfinite(share):
            axes.text(column, row, f"{share:.2f}", ha="center", va="center", fontsize=7)
    return figure


def pulls() -> Figure:
    """Draw the slots in which a client with all labels, and another, trains (GDA, Fig. 6)."""
    figure, panels = blank(2)
    for axes, where in zip(panels, ("gda-stationary", "gda-carried"), strict=True):
        found = of(where)
        for place, case in enumerate(("quick-init-ucb, mu 0.01, shuffled", "quick-init-ucb-paper")):
            share = [found[case].mean("iid_share"), found[case].mean("other_share")]
            axes.bar(np.arange(2) + 0.4 * place, share, 0.4, label=case)
        axes.plot([-0.2, 0.6], [0.458, 0.458], "k:", label="the paper's mean")
        axes.plot([0.8, 1.6], [0.181, 0.181], "k:")
        axes.set_xticks([0.2, 1.2], ["a client with all labels", "another"])
        axes.set_title(where)
        axes.legend(fontsize=7)
    return figure


def blank(panels: int) -> tuple[Figure, Sequence[Axes]]:
    """Return an empty picture of so many panels; three and more stay as wide as a page."""
    width = 4.6 * max(panels, 1.4) if panels < 3 else 12.0
    figure = Figure(figsize=(width, 3.6), layout="constrained")
    FigureCanvasSVG(figure)
    return figure, list(figure.subplots(1, panels, squeeze=False).ravel())


def write(name: str, folder: Path | None = None) -> Path:
    """Draw one picture; return its path."""
    place = folder or (DOCS / "images" if name == "worlds" else DOCS / "policies" / "img")
    path = place / f"{name}.svg"
    with rc_context(STYLE):  # type: ignore[arg-type]  # keys of matplotlib, checked at run time
        figure = {"worlds": worlds, "gda-pulls": pulls}.get(name, lambda: curves(name))()
        figure.savefig(path, format="svg", metadata={"Date": None})
    return path


NAMES = (*PICTURES, "gda-pulls", "worlds")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="bench.experiments.plots", description=__doc__)
    parser.add_argument("--only", choices=NAMES)
    parser.add_argument("--folder", type=Path)
    args = parser.parse_args()
    for each in [args.only] if args.only else NAMES:
        print(write(each, args.folder))
