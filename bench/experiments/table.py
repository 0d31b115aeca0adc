"""The table of kept results: ``kept.csv``, a line for each case of an experiment.

Figures are ``name=mean`` or ``name=mean±ci95`` over seeds (95 %, Student's t), apart by ``; ``.
"""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedagent_testbed.study import figure

KEPT = Path(__file__).parent / "kept.csv"
HEAD = ("experiment", "case", "seeds", "figures")
Runs = Sequence[Mapping[str, float | None]]


@dataclass(frozen=True, slots=True)
class Line:
    """A case with what its seeds gave on the mean."""

    experiment: str
    case: str
    seeds: int
    figures: dict[str, str]

    def mean(self, name: str) -> float:
        """Return a figure's mean; NaN where there is none."""
        text = self.figures.get(name, "nan").partition("±")[0]
        return float(text) if text else float("nan")

    def half(self, name: str) -> float:
        """Return half of a figure's interval, 0 where it has none."""
        return float(self.figures.get(name, "").partition("±")[2] or 0)

    def series(self, name: str) -> tuple[list[float], list[float]]:
        """Return x and the mean of the points ``name@x``."""
        at = [key for key in self.figures if key.startswith(f"{name}@")]
        return [float(key.partition("@")[2]) for key in at], [self.mean(key) for key in at]


def summed(values: Sequence[float | None]) -> str:
    """Return mean and interval in four significant places; nothing where a seed has none."""
    found = figure(values)
    if found.mean is None or any(value is None for value in values):
        return ""
    mean = f"{found.mean:.4g}" if abs(found.mean) < 1000 else f"{found.mean:.0f}"
    return mean if found.ci95 is None else f"{mean}±{found.ci95:.2g}"


def line(experiment: str, case: str, runs: Runs, beside: Runs = ()) -> Line:
    """Return a case's line; with a base on the same seeds also what it has more than that."""
    figures = {name: summed([run[name] for run in runs]) for name in runs[0]}
    for name in runs[0] if beside else ():
        pairs = [(own[name], base.get(name)) for own, base in zip(runs, beside, strict=True)]
        if not any(own is None or base is None for own, base in pairs):
            more = [float(own or 0) - float(base or 0) for own, base in pairs]
            if np.isfinite(more).all():
                figures[f"more_{name}"] = summed(more)
    return Line(experiment, case, len(runs), {name: text for name, text in figures.items() if text})


def read(path: Path = KEPT) -> list[Line]:
    """Return the table."""
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))[1:]
    return [
        Line(e, c, int(n), dict(pair.split("=", 1) for pair in f.split("; ")))
        for e, c, n, f in rows
    ]


def keep(lines: Sequence[Line], path: Path = KEPT) -> None:
    """Write lines into the table, in place of those of the same experiment and case."""
    known = {(one.experiment, one.case): one for one in [*read(path), *lines]}
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(HEAD)
        for one in sorted(known.values(), key=lambda one: one.experiment):
            figures = "; ".join(f"{name}={text}" for name, text in one.figures.items())
            writer.writerow((one.experiment, one.case, one.seeds, figures))
