"""Rounds and seconds to a target for each aggregation strategy, under three policies.

    python -m bench.strategies                   # all that the file of runs lacks
    python -m bench.strategies --rows fashion    # or a9a
    python -m bench.strategies --seeds 0         # play nothing, show what the file holds
    python -m bench.strategies --markdown        # as the tables of docs/strategies-compared.md

Recipes `strategies-fashion` and `strategies-a9a`. Each strategy has its own rate and parameter,
tuned on seeds 100 to 102 under `random` by the same rates; the table has seeds 0 to 9. A run
reaches the target in the round at which the mean of its last five accuracies does; one that does
not counts with all its rounds. Needs FEDAGENT_DATA. Runs are kept in
docs/images/strategies-runs.jsonl as soon as they are over; delete lines to measure anew.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedagent_testbed.study import Figure, History, figure, load_recipe, play

from .kept import Run, part, play_missing
from .rows import ROOT, Row, show

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Picture

RUNS = ROOT / "docs" / "images" / "strategies-runs.jsonl"
TARGETS = {"fashion": 0.77, "a9a": 0.82}
POLICIES = ("adaptive", "random", "oort")
RATES = (0.01, 0.03, 0.1, 0.3, 1.0)
"""The clients' rates that every strategy is tried with."""
PARAMETERS: dict[str, tuple[tuple[str, float], ...]] = {
    "fedavg": (),
    "fedavgm": (("eta", 0.1), ("eta", 0.3), ("eta", 1.0)),
    "fedadam": (("eta", 0.01), ("eta", 0.03), ("eta", 0.1)),
    "fedyogi": (("eta", 0.01), ("eta", 0.03), ("eta", 0.1)),
    "fedadagrad": (("eta", 0.01), ("eta", 0.03), ("eta", 0.1)),
    "fedprox": (("mu", 0.01), ("mu", 0.1), ("mu", 1.0)),
    "scaffold": (),
    "fednova": (),
    "qfedavg": (("q", 0.1), ("q", 0.5), ("q", 1.0)),
}
"""Besides, what its own parameter is tried with."""
TUNING = (100, 101, 102)
SMOOTH = 5
LAST = 10


@dataclass(frozen=True, slots=True)
class Case:
    """A strategy with its parameters, under a policy."""

    part: str
    label: str
    data: str
    policy: str
    sets: tuple[str, ...]

    def measure(self, seed: int) -> Row:
        """Play it."""
        recipe = load_recipe(f"strategies-{self.data}", self.sets)
        told = outcome(play(recipe, self.policy, seed), TARGETS[self.data])
        return {"sets": list(self.sets), **told}


def outcome(history: History, target: float) -> Row:
    """Return when a run reached its target, if it did, and how it ended."""
    accuracy, seconds = history["accuracy"], history["seconds"].cumsum()
    smooth = np.convolve(accuracy, np.ones(SMOOTH) / SMOOTH, mode="valid")
    reached = np.flatnonzero(smooth >= target)
    at = int(reached[0]) + SMOOTH - 1 if len(reached) else len(accuracy) - 1
    return {
        "reached": bool(len(reached)),
        "rounds": at + 1,
        "seconds": round(float(seconds[at]), 1),
        "accuracy": round(float(accuracy[-LAST:].mean()), 4),
    }


def candidates(data: str) -> Iterator[Case]:
    """Yield what is tried for each strategy."""
    for name, own in PARAMETERS.items():
        for rate, parameter in product(RATES, own or (None,)):
            sets = [f"aggregation.name={name}", f"training.rate={rate}"]
            if parameter is not None:
                sets.append(f"aggregation.params.{parameter[0]}={parameter[1]}")
            yield Case(f"tune-{data}", " ".join(sets), data, "random", tuple(sets))


def tuned(data: str, name: str, path: Path = RUNS) -> tuple[str, ...]:
    """Return the keys of the candidate that reached the target first, on the tuning seeds."""
    found = part(path, f"tune-{data}")
    of_it = {
        case.label: case.sets for case in candidates(data) if case.sets[0].endswith(f"={name}")
    }

    def rank(label: str) -> tuple[float, float]:
        runs = found[label]
        return mean(runs, "rounds"), -mean(runs, "accuracy")

    return of_it[min(of_it, key=rank)]


def mean(runs: Sequence[Run], key: str) -> float:
    """Return the mean of a number of runs."""
    return float(np.mean([run[key] for run in runs]))


def cases(data: str, path: Path = RUNS) -> Iterator[Case]:
    """Yield every strategy as it was tuned, under every policy."""
    for name, policy in product(PARAMETERS, POLICIES):
        yield Case(data, f"{policy}, {name}", data, policy, tuned(data, name, path))


@dataclass(frozen=True, slots=True)
class Entry:
    """A line of the table; what is less than FedAvg's of the same seed and policy is saved."""

    data: str
    policy: str
    strategy: str
    keys: str
    reached: int
    rounds: Figure
    seconds: Figure
    accuracy: Figure
    rounds_less: Figure
    seconds_less: Figure

    def row(self) -> Row:
        """Return it as JSON data."""
        said = {item.name: getattr(self, item.name) for item in fields(self)}
        record = {k: v.record() if isinstance(v, Figure) else v for k, v in said.items()}
        return {"bench": "strategies", **record}

    def markdown(self) -> str:
        """Return it as a line of the page."""
        cells = [f"`{self.policy}`", f"`{self.strategy}`", f"{self.reached}"]
        cells += [self.rounds.text(0), self.seconds.text(0)]
        for less in (self.rounds_less, self.seconds_less):
            known = less.mean is not None and less.ci95 is not None and self.strategy != "fedavg"
            text = f"{less.mean:+.0f} ± {less.ci95:.0f}" if known else ""
            cells.append(f"**{text}**" if known and clear(less) else text)
        return f"| {' | '.join(cells)} | {self.accuracy.text(3)} |"


def clear(one: Figure) -> bool:
    """Return whether an interval leaves zero out."""
    return one.mean is not None and one.ci95 is not None and abs(one.mean) > one.ci95


def table(data: str, path: Path = RUNS) -> Iterator[Entry]:
    """Yield the lines of a dataset's table, policy after policy."""
    found = part(path, data)
    for policy, name in product(POLICIES, PARAMETERS):
        runs, base = found[f"{policy}, {name}"], found[f"{policy}, fedavg"]

        def told(key: str, runs: list[Run] = runs) -> Figure:
            return figure([float(run[key]) for run in runs])

        def less(key: str, runs: list[Run] = runs, base: list[Run] = base) -> Figure:
            pairs = zip(base, runs, strict=False)  # while runs are still being played
            return figure([float(one[key]) - float(own[key]) for one, own in pairs])

        yield Entry(
            data=data,
            policy=policy,
            strategy=name,
            keys=" ".join(runs[0]["sets"][1:]),
            reached=sum(run["reached"] for run in runs),
            rounds=told("rounds"),
            seconds=told("seconds"),
            accuracy=told("accuracy"),
            rounds_less=less("rounds"),
            seconds_less=less("seconds"),
        )


def draw(path: Path = RUNS) -> tuple["Picture", dict[str, object]]:
    """Draw the rounds that each strategy saves, a panel per dataset and policy."""
    from .plots import BLUE, GREY, blank

    picture, panels = blank(len(POLICIES) * len(TARGETS), rows=len(TARGETS))
    numbers: dict[str, object] = {}
    for axes, (data, policy) in zip(panels, product(TARGETS, POLICIES), strict=True):
        shown = [one for one in table(data, path) if one.policy == policy][1:]
        _forest(axes, shown, BLUE, GREY)
        axes.set_title(f"{data}, {policy}")
        numbers[f"{data}, {policy}"] = {
            one.strategy: [one.rounds_less.mean, round(one.rounds_less.ci95 or 0.0, 2)]
            for one in shown
        }
    for axes in panels[-len(POLICIES) :]:
        axes.set_xlabel("rounds saved beside fedavg")
    return picture, numbers


def _forest(axes: "Axes", shown: Sequence[Entry], blue: str, grey: str) -> None:
    for place, one in enumerate(reversed(shown)):
        less, colour = one.rounds_less, blue if clear(one.rounds_less) else grey
        axes.errorbar(less.mean or 0.0, place, xerr=less.ci95, fmt="o", color=colour, markersize=3)
    axes.axvline(0.0, color=grey, linestyle=":")
    axes.set_yticks(range(len(shown)), [one.strategy for one in reversed(shown)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", choices=list(TARGETS), nargs="*", default=list(TARGETS))
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--runs", type=Path, default=RUNS)
    given = parser.parse_args()
    for data in given.rows:
        if given.seeds:
            play_missing(given.runs, candidates(data), TUNING)
            play_missing(given.runs, cases(data, given.runs), range(given.seeds))
        found = list(table(data, given.runs))
        if given.markdown:
            print("\n".join(one.markdown() for one in found))
        else:
            show(one.row() for one in found)


if __name__ == "__main__":
    main()
