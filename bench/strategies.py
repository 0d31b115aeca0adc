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
RATES = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
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
TWICE = ("world.work.download_mbit=0.36", "world.work.upload_mbit=0.36")
"""What travels with SCAFFOLD: a model and its control variate."""
TUNING = (100, 101, 102)
MEASURES = ("rounds", "seconds", "accuracy")
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
            sets = [f"aggregation.name={name}", f"world.training.rate={rate}"]
            if parameter is not None:
                sets.append(f"aggregation.params.{parameter[0]}={parameter[1]}")
            sets += TWICE if name == "scaffold" else ()
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
    """A line of the table; `less` and `more` are beside FedAvg's of the same seed and policy."""

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
    accuracy_more: Figure

    def row(self) -> Row:
        """Return it as JSON data."""
        said = {item.name: getattr(self, item.name) for item in fields(self)}
        record = {k: v.record() if isinstance(v, Figure) else v for k, v in said.items()}
        return {"bench": "strategies", **record}

    def markdown(self) -> str:
        """Return it as a line of the page."""
        cells = [f"`{self.policy}`", f"`{self.strategy}`", f"{self.reached}"]
        cells += [self.rounds.text(0), self.seconds.text(0)]
        cells += [self._beside(self.rounds_less, 0), self._beside(self.seconds_less, 0)]
        cells += [self.accuracy.text(3), self._beside(self.accuracy_more, 3)]
        return f"| {' | '.join(cells)} |"

    def _beside(self, one: Figure, digits: int) -> str:
        return "" if self.strategy == "fedavg" else shown(one, digits)


def shown(one: Figure, digits: int) -> str:
    """Return a difference with its interval, bold where that leaves zero out."""
    if one.mean is None or one.ci95 is None:
        return ""
    text = f"{one.mean:+.{digits}f} ± {one.ci95:.{digits}f}"
    return f"**{text}**" if clear(one) else text


def clear(one: Figure) -> bool:
    """Return whether an interval leaves zero out."""
    return one.mean is not None and one.ci95 is not None and abs(one.mean) > one.ci95


def table(data: str, path: Path = RUNS) -> Iterator[Entry]:
    """Yield the lines of a dataset's table, policy after policy."""
    found = part(path, data)
    for policy, name in product(POLICIES, PARAMETERS):
        runs = found[f"{policy}, {name}"]
        rounds, seconds, accuracy = (told(runs, key) for key in MEASURES)
        less, sooner, more = (beside(runs, found[f"{policy}, fedavg"], key) for key in MEASURES)
        yield Entry(
            data=data,
            policy=policy,
            strategy=name,
            keys=" ".join(runs[0]["sets"][1:]),
            reached=sum(run["reached"] for run in runs),
            rounds=rounds,
            seconds=seconds,
            accuracy=accuracy,
            rounds_less=less,
            seconds_less=sooner,
            accuracy_more=more,
        )


def told(runs: Sequence[Run], key: str) -> Figure:
    """Return the mean of a measure with its interval."""
    return figure([float(run[key]) for run in runs])


def beside(runs: Sequence[Run], base: Sequence[Run], key: str) -> Figure:
    """Return how much better runs are than others of the same seeds: less, or more accurate."""
    sign = 1 if key == "accuracy" else -1
    # While runs are still being played one may have a seed more.
    pairs = zip(runs, base, strict=False)
    return figure([sign * (float(own[key]) - float(one[key])) for own, one in pairs])


def between(data: str, path: Path = RUNS) -> Iterator[str]:
    """Yield what a policy changes beside `random`, strategy after strategy."""
    found = part(path, data)
    for name in PARAMETERS:
        cells = [data, f"`{name}`"]
        for policy in ("adaptive", "oort"):
            runs, base = found[f"{policy}, {name}"], found[f"random, {name}"]
            cells += [shown(beside(runs, base, key), 0) for key in MEASURES[:2]]
            cells.append(shown(beside(runs, base, "accuracy"), 3))
        yield f"| {' | '.join(cells)} |"


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
            print("\n".join([*(one.markdown() for one in found), *between(data, given.runs)]))
        else:
            show(one.row() for one in found)


if __name__ == "__main__":
    main()
