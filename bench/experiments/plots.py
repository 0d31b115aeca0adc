"""Draw where the papers' constants fail (`docs/policies/img`), and what `kept.csv` holds.

Needs matplotlib (extra `report`). The same seeds give the same bytes; the whole takes
about four minutes on two cores. The numbers go to `figures.json` beside the pictures.

    python -m bench.experiments.plots                   # all
    python -m bench.experiments.plots --only worlds     # drawn from the table, as are gda-...
"""

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedagent_coordinator.policies.base import FloatArray
from fedagent_testbed.study import History

from . import failures, table
from .failures import Rents, Saturation, Slots

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DOCS = Path(__file__).parents[2] / "docs"
FOLDER, IMAGES = DOCS / "policies" / "img", DOCS / "images"
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
GREY, BLUE, RED, GREEN, ORANGE, PURPLE = (
    *("#777777", "#1f77b4", "#d62728", "#2ca02c"),
    *("#ff7f0e", "#9467bd"),
)
STYLES = {
    "oracle-p": (GREY, "--"),
    "adaptive": (BLUE, "-"),
    "linucb": (PURPLE, "-"),
    "cocs": (GREEN, "-"),
    "cocs-paper": (RED, "-"),
    "cheapest": (ORANGE, "--"),
    "quick-init-ucb-paper": (RED, "-"),
    "quick-init-ucb": (BLUE, "-"),
    "random": (ORANGE, "--"),
    "budgeted-ucb-paper": (RED, "-"),
    "budgeted-ucb": (BLUE, "-"),
}
EVERY = 20
"""Points of a curve that are drawn: every twentieth, which nobody sees and keeps files small."""
WINDOW = 20
BUDGET = 300.0
PLACED = ("budgeted-ucb-paper", "budgeted-ucb", "random", "min-trans", "min-cost")
Numbers = dict[str, object]


def cocs(runs: dict[int, dict[str, list[History]]]) -> tuple["Figure", Numbers]:
    """Cumulative successes of the policies of COCS, a panel per noise density."""
    figure, panels = blank(len(runs))
    numbers: Numbers = {}
    for axes, (noise, by_name) in zip(panels, runs.items(), strict=True):
        curves = {
            name: np.mean([run["wins"].cumsum() for run in histories], axis=0)
            for name, histories in by_name.items()
        }
        for name, curve in sorted(curves.items(), key=lambda item: -item[1][-1]):
            if name in failures.BESIDE:
                continue
            colour, line = STYLES[name]
            at = np.append(np.arange(0, len(curve) - 1, EVERY), len(curve) - 1)
            axes.plot(at + 1, curve[at], line, color=colour, label=f"{name} {curve[-1]:.0f}")
        axes.set_title(f"noise {noise} dBm/Hz")
        axes.set_xlabel("round")
        axes.set_ylabel("updates in time, cumulative")
        axes.legend(loc="upper left")
        numbers[str(noise)] = {
            name: {
                "successes": round(float(curve[-1]), 1),
                "explored_rounds": float(np.mean([run["explored"].sum() for run in by_name[name]])),
            }
            for name, curve in curves.items()
        }
    return figure, numbers


def quick_init(runs: dict[str, list[Slots]]) -> tuple["Figure", Numbers]:
    """Slots that replay a set, and what the sets are worth."""
    figure, (left, right) = blank(2)
    numbers: Numbers = {}
    for name, several in runs.items():
        colour, line = STYLES[name]
        replays = np.mean([run.replays for run in several], axis=0)
        reward = np.mean([run.reward for run in several], axis=0)
        smooth = np.convolve(reward, np.ones(WINDOW) / WINDOW, mode="valid")
        slot = np.arange(1, len(replays) + 1)
        left.plot(slot[::EVERY], replays[::EVERY], line, color=colour, label=name)
        right.plot(slot[WINDOW - 1 :: EVERY], smooth[::EVERY], line, color=colour, label=name)
        numbers[name] = {
            "replays": round(float(replays[-1]), 1),
            "worth_last_50": round(float(reward[-50:].mean()), 3),
        }
    best = float(np.mean([run.best for run in runs["random"]]))
    right.axhline(best, color=GREY, linestyle=":")
    right.annotate("best set", (1, best), (0, -10), textcoords="offset points", color=GREY)
    left.set_ylabel("slots that replayed a set, cumulative")
    right.set_ylabel(f"worth of the set, mean of {WINDOW} slots")
    for axes in (left, right):
        axes.set_xlabel("slot")
    left.legend(loc="upper left")
    right.set_ylim(top=best + 0.02)
    numbers["best"] = round(best, 3)
    return figure, numbers


def placed(free: dict[str, list[Rents]], bound: dict[str, list[Rents]]) -> tuple["Figure", Numbers]:
    """Rounds at each edge, and what a budget pays for."""
    figure, (left, right) = blank(2)
    numbers: Numbers = {}
    wide = 0.8 / 2
    for place, name in enumerate(PLACED[:2]):
        plays = np.mean([run.plays[run.order] for run in free[name]], axis=0)
        at = np.arange(1, len(plays) + 1) + (place - 0.5) * wide
        left.bar(at, plays, wide, color=STYLES[name][0], label=name)
        spread = [int(np.ptp(run.plays)) for run in free[name]]
        numbers[name] = {"plays": plays.round(1).tolist(), "widest_gap": max(spread)}
    left.set_xlabel("edge, by mean cost, best first")
    left.set_ylabel(f"rounds of {failures.RENTED_ROUNDS}")
    left.legend()
    paid: dict[str, object] = {}
    for name, several in bound.items():
        rounds = float(np.mean([len(run.psi) for run in several]))
        psi = float(np.mean([run.psi.mean() for run in several]))
        right.plot([rounds], [psi], "o", color=STYLES.get(name, (GREEN, ""))[0])
        below = -4 if name == "random" else 5
        right.annotate(name, (rounds, psi), (6, below), textcoords="offset points")
        paid[name] = {"rounds": round(rounds), "psi_s": round(psi, 2)}
    right.set_xlabel(f"rounds paid by {BUDGET:.0f} greatest rents")
    right.set_ylabel("mean cost of a round, s")
    right.set_xlim(left=0, right=2600)
    right.set_ylim(bottom=0, top=6)
    return figure, numbers | {"paid": paid}


def rbcs(
    curve: dict[int, tuple[float, float]], others: dict[str, tuple[float, float]], beta: float
) -> tuple["Figure", Numbers]:
    """Seconds per round against the smallest selection rate, for growing V."""
    figure, (axes,) = blank(1)
    seconds, rate = np.array(list(curve.values())).T
    axes.plot(seconds, rate, "o-", color=BLUE, label="rbcs-f, V as written")
    for v, point in curve.items():
        axes.annotate(str(v), point, (4, -11), textcoords="offset points", color=BLUE)
    for name, point in others.items():
        axes.plot(*point, "o", color=ORANGE)
        axes.annotate(
            name, point, (-2, 7), textcoords="offset points", rotation=45 * (name != "random")
        )
    axes.axhline(beta, color=GREY, linestyle=":", label=f"beta {beta:g}, the guaranteed rate")
    axes.set_xlabel("seconds per round")
    axes.set_ylabel("smallest selection rate")
    axes.set_xlim(left=0)
    axes.set_xlim(right=17)
    axes.legend(loc="lower right", bbox_to_anchor=(1.0, 0.3))
    numbers: Numbers = {f"V={v}": _point(*point) for v, point in curve.items()}
    return figure, numbers | {name: _point(*point) for name, point in others.items()}


def beliefs(runs: Sequence[Saturation]) -> tuple["Figure", Numbers]:
    """Beliefs of both kinds against opinions, and how the literal ones saturate."""
    figure, (left, right) = blank(2)
    first = runs[0]
    left.plot(first.opinion, first.ours, "o", color=BLUE, label="bp-ucb")
    left.plot(first.opinion, first.literal[-1], "x", color=RED, label="literal")
    left.set_xlabel("opinion of the client")
    left.set_ylabel("its belief")
    left.legend(loc="center left")
    largest = np.array([run.literal.max(axis=1) for run in runs])
    sweeps = np.arange(1, largest.shape[1] + 1)
    for curve in largest:
        right.plot(sweeps, curve, "-", color=RED, alpha=0.25)
    right.plot(sweeps, largest.mean(axis=0), "o-", color=RED, label=f"mean of {len(runs)} seeds")
    right.set_xlabel("sweeps")
    right.set_ylabel("largest literal belief")
    right.legend(loc="lower right")
    best = sum(int(np.argmax(run.opinion) == np.argmax(run.literal[-1])) for run in runs)
    correlation = [float(np.corrcoef(run.opinion, run.ours)[0, 1]) for run in runs]
    return figure, {
        "largest_literal": {
            str(sweep): round(float(largest[:, sweep - 1].mean()), 2) for sweep in (1, 3, 5)
        },
        "it_is_the_best_opinion": best,
        "correlation_ours": round(float(np.mean(correlation)), 2),
    }


def rbcs_queues(
    runs: dict[int, tuple[FloatArray, FloatArray]], pulls: dict[str, FloatArray], beta: float
) -> tuple["Figure", Numbers]:
    """Mean queue over the rounds, and how often each client took part (RBCS-F, Fig. 2 and 4)."""
    figure, (left, right) = blank(2)
    numbers: Numbers = {}
    for (v, (queue, share)), colour in zip(runs.items(), (GREY, BLUE, ORANGE, RED), strict=False):
        at = np.append(np.arange(0, len(queue) - 1, EVERY), len(queue) - 1)
        left.plot(at + 1, queue[at], color=colour, label=f"V = {v}")
        right.plot(np.arange(1, len(share) + 1), np.sort(share), ".-", color=colour, lw=0.8)
        by_class = share.reshape(4, -1).mean(axis=1).round(3)
        numbers[f"V={v}"] = {
            "queue_last": round(float(queue[-1]), 2),
            "share_by_class": by_class.tolist(),
        }
    for (name, share), colour in zip(pulls.items(), (GREEN, PURPLE), strict=False):
        right.plot(np.arange(1, len(share) + 1), np.sort(share), "--", color=colour, label=name)
        numbers[name] = {"share_by_class": share.reshape(4, -1).mean(axis=1).round(3).tolist()}
    right.axhline(beta, color=GREY, linestyle=":")
    right.legend(loc="upper left")
    left.set_xlabel("round")
    left.set_ylabel("mean queue, rounds owed")
    left.legend(loc="upper left")
    right.set_xlabel("client, the least chosen first")
    right.set_ylabel("share of the rounds")
    return figure, numbers


def write(name: str, draw: Callable[[], tuple["Figure", Numbers]], folder: Path) -> None:
    from matplotlib import rc_context

    with rc_context(STYLE):  # type: ignore[arg-type]  # keys of matplotlib, checked at run time
        figure, numbers = draw()
        figure.savefig(folder / f"{name}.svg", format="svg", metadata={"Date": None})
    path = folder / "figures.json"
    known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    known[name] = numbers
    path.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def blank(panels: int, *, rows: int = 1) -> tuple["Figure", Sequence["Axes"]]:
    """Return an empty picture of so many panels."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    columns = panels // rows
    # Three and more stay as wide as a page.
    width = 4.6 * max(columns, 1.4) if columns < 3 else 12.0
    figure = Figure(figsize=(width, 3.6 * rows), layout="constrained")
    FigureCanvasSVG(figure)
    return figure, list(figure.subplots(rows, columns, squeeze=False).ravel())


def _point(seconds: float, rate: float) -> dict[str, float]:
    return {"seconds_per_round": round(seconds, 2), "smallest_rate": round(rate, 3)}


def _bp_ucb(folder: Path) -> None:
    runs = [failures.saturation(seed) for seed in range(failures.SEEDS)]
    write("bp-ucb", lambda: beliefs(runs), folder)


def _cocs(folder: Path) -> None:
    runs = {noise: failures.exploration(noise, jobs=2) for noise in failures.NOISES}
    write("cocs", lambda: cocs(runs), folder)


def _quick_init(folder: Path) -> None:
    runs = dict(failures.quick_inits(range(failures.SEEDS)))
    write("quick-init", lambda: quick_init(runs), folder)


def _placement(folder: Path) -> None:
    seeds = range(failures.SEEDS)
    free = dict(failures.placements(PLACED[:2], seeds))
    bound = dict(failures.placements(PLACED, seeds, BUDGET))
    write("placement", lambda: placed(free, bound), folder)


def _rbcs(folder: Path) -> None:
    curve = {v: failures.fairness("rbcs-f", weight=v) for v in failures.WEIGHTS}
    others = {name: failures.fairness(name) for name in ("fastest", "fedcs", "random")}
    write("rbcs-f", lambda: rbcs(curve, others, 0.15), folder)


def _rbcs_queues(folder: Path) -> None:
    runs = {v: failures.queues(v) for v in failures.QUEUED}
    write("rbcs-f-queues", lambda: rbcs_queues(runs, failures.pulls(), 0.15), folder)


def _of(experiment: str) -> dict[str, table.Line]:
    return {one.case: one for one in table.read() if one.experiment == experiment}


def worlds() -> tuple["Figure", Numbers]:
    """Shares of the best policy's utility, worlds by policies, 300 rounds."""
    found = _of("worlds-300")
    cells = [case.rpartition(", ") for case in found]
    names = list(dict.fromkeys(world for world, _, _ in cells))
    shares = {
        policy: np.array(
            [
                found[f"{world}, {policy}"].mean("share_of_best")
                if f"{world}, {policy}" in found
                else np.nan
                for world in names
            ]
        )
        for policy in dict.fromkeys(policy for _, _, policy in cells)
    }
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
    return figure, {name: round(float(np.nanmean(shares[name])), 3) for name in order}


POLICIES = (
    *("fixed", "random", "quick-init-ucb, mu 0.01, shuffled"),
    *("bp-ucb, mu 0.1", "bp-ucb, as printed, mu 0.01"),
)
SIZES = tuple(f"K = {size}" for size in (1, 5, 10, 15, 20))
SERIES: dict[str, list[tuple[str, str, tuple[str, ...]]]] = {
    "gda-accuracy": [(where, "opinion", POLICIES) for where in ("gda-stationary", "gda-carried")],
    "gda-beliefs": [
        (where, name, ("bp-ucb, mu 0.1",))
        for where in ("gda-stationary", "gda-carried")
        for name in ("belief_iid", "belief_other")
    ],
    "gda-growth": [
        ("gda-growth", "loss", SIZES),
        ("gda-growth", "carried", SIZES),
        ("gda-growth", "carried", ("{16..20}", "{1..20}", "{1..5}")),
    ],
}
"""Pictures of points ``name@x`` of the table: of each panel experiment, name and cases."""


def series(name: str) -> tuple["Figure", Numbers]:
    """Curves of the table, a panel each."""
    figure, panels = blank(len(SERIES[name]))
    numbers: Numbers = {}
    for axes, (experiment, of, cases) in zip(panels, SERIES[name], strict=True):
        found = _of(experiment)
        for case in cases:
            x, y = found[case].series(of)
            axes.plot(x, y, "o-", markersize=3, label=case)
            numbers[f"{experiment}, {of}, {case}"] = y[-1]
        axes.set_title(f"{experiment}: {of}")
        axes.set_xlabel("round" if of == "loss" else "slot")
        axes.legend(fontsize=7)
    return figure, numbers


def pulls() -> tuple["Figure", Numbers]:
    """Shares of the slots in which a client with all labels, and another, trains (GDA, Fig. 6)."""
    figure, panels = blank(2)
    numbers: Numbers = {}
    for axes, where in zip(panels, ("gda-stationary", "gda-carried"), strict=True):
        cases = ("quick-init-ucb, mu 0.01, shuffled", "quick-init-ucb-paper")
        for place, case in enumerate(cases):
            one = _of(where)[case]
            share = [one.mean("iid_share"), one.mean("other_share")]
            axes.bar(np.arange(2) + 0.4 * place, share, 0.4, label=case)
            numbers[f"{where}, {case}"] = share
        axes.plot([-0.2, 0.6], [0.458, 0.458], "k:", label="the paper's mean")
        axes.plot([0.8, 1.6], [0.181, 0.181], "k:")
        axes.set_xticks([0.2, 1.2], ["a client with all labels", "another"])
        axes.set_title(where)
        axes.legend(fontsize=7)
    return figure, numbers


def _worlds(folder: Path) -> None:
    write("worlds", worlds, folder)


def _goals(folder: Path) -> None:
    write("gda-pulls", pulls, folder)
    for name in SERIES:
        write(name, lambda name=name: series(name), folder)  # type: ignore[misc]


PLOTS: dict[str, Callable[[Path], None]] = {
    "bp-ucb": _bp_ucb,
    "cocs": _cocs,
    "quick-init": _quick_init,
    "placement": _placement,
    "rbcs-f": _rbcs,
    "rbcs-f-queues": _rbcs_queues,
    "gda": _goals,
    "worlds": _worlds,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.experiments.plots", description=__doc__)
    parser.add_argument("--only", choices=list(PLOTS))
    parser.add_argument("--folder", type=Path)
    args = parser.parse_args()
    for name in [args.only] if args.only else PLOTS:
        folder = args.folder or (IMAGES if name == "worlds" else FOLDER)
        folder.mkdir(parents=True, exist_ok=True)
        PLOTS[name](folder)
        print(folder / f"{name}*.svg")


if __name__ == "__main__":
    main()
