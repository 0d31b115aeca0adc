"""Policies side by side: means over paired seeds with their 95 % intervals, and what ranks them."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from typing import TYPE_CHECKING, SupportsFloat

import numpy as np

from fedagent_protocol.errors import FedagentError
from fedagent_protocol.extras import how_to_install
from fedagent_testbed.recipe import TestbedRecipe

from .history import Column, History, jain
from .streams import MARGIN, is_alone

if TYPE_CHECKING:
    import pandas as pd

# Two-sided 95 % quantiles of Student's t for 1 to 18 degrees of freedom: scipy is not needed.
_T: tuple[float, ...] = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101),
)


_SELECTION = {
    "utility": ("utility", 0),
    "regret_oracle": ("regret", 0),
    "regret_oracle_p": ("regret-p", 0),
    "accuracy": ("accuracy", 3),
    "spent": ("spent", 0),
    "seconds_per_round": ("s/round", 2),
    "min_rate": ("min rate", 3),
    "jain": ("jain", 2),
    "decision_ms": ("ms", 2),
}
_STREAMS = {
    "latency_s": ("latency s", 1),
    "compute_s": ("compute", 1),
    "transfer_s": ("transfer", 1),
    "aggregate_s": ("aggregate", 1),
    "final_loss": ("loss", 4),
    "mean_loss": ("mean loss", 4),
    "seconds_to_best": ("s to best", 1),
    "rounds": ("rounds", 0),
    "spent": ("spent", 1),
    "rho": ("rho", 1),
    "peak_s": ("peak s", 2),
    "within_limit": ("in limit", 3),
    "violation_s": ("over s", 1),
    "edges": ("edges", 0),
    "decision_ms": ("ms", 2),
    "error": ("error", 3),
}
"""Columns: the figure, its head, and its digits."""
COVERAGE = ("never_rate", "back_rounds", "left_out")


class PandasNeededError(FedagentError):
    """Raised when a data frame is wanted and pandas is not installed."""

    template = "the pandas package is not installed"

    hint: str


@dataclass(frozen=True, slots=True)
class Figure:
    """A mean over seeds with its 95 % interval, half width; None of fewer than two seeds."""

    mean: float | None
    ci95: float | None
    per_seed: tuple[float | None, ...]

    @property
    def reached(self) -> int:
        """How many seeds have a value."""
        return sum(value is not None for value in self.per_seed)

    def record(self) -> dict[str, object]:
        """Return it as JSON data."""
        return {"mean": self.mean, "ci95": self.ci95, "per_seed": list(self.per_seed)}

    def text(self, digits: int) -> str:
        """Return mean ± interval; a dash where nothing is known."""
        if self.mean is None:
            return "-"
        interval = "" if self.ci95 is None else f" ± {self.ci95:.{digits}f}"
        return f"{self.mean:.{digits}f}{interval}"


def figure(values: Sequence[float | None]) -> Figure:
    """Return mean and 95 % interval of what is known; a seed without a value is left out."""
    per_seed = tuple(None if v is None or not math.isfinite(v) else float(v) for v in values)
    known = [v for v in per_seed if v is not None]
    if not known:
        return Figure(None, None, per_seed)
    mean = float(np.mean(known))
    if len(known) < 2:
        return Figure(mean, None, per_seed)
    half = quantile(len(known) - 1) * float(np.std(known, ddof=1)) / math.sqrt(len(known))
    return Figure(mean, half, per_seed)


def quantile(freedom: int) -> float:
    """Return the two-sided 95 % quantile of Student's t, right in four digits; freedom >= 1."""
    if freedom <= len(_T):
        return _T[freedom - 1]
    # Cornish-Fisher: the normal quantile and three corrections.
    z = 1.959964
    first, second = (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / freedom + second / freedom**2 + third / freedom**3


@dataclass(frozen=True, eq=False, repr=False)
class Comparison:
    """The result of `compare`: of each policy its runs, one per seed, or why it was skipped."""

    recipe: TestbedRecipe
    seeds: tuple[int, ...]
    histories: dict[str, tuple[History, ...]]
    reference: dict[str, tuple[History, ...]] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"<Comparison of {', '.join(self.histories)}; {caption(self)}>"

    def _repr_html_(self) -> str:
        return html_of(self)

    @property
    def of_streams(self) -> bool:
        """Whether this is a study of streams, not of selection."""
        return self.recipe.of_streams

    def figures(self, name: str) -> dict[str, Figure]:
        """Return the figures of a policy, but for its targets, by their keys in `--json`."""
        return self._figures[name]

    def ranked(self) -> list[str]:
        """Return the policies, best utility first.

        Pairs on streams: those first that reach the best loss, by cumulative latency.
        """
        if self.of_streams:
            return sorted(
                self.histories, key=lambda n: (not self.reaches_best(n), self._mean(n, "latency_s"))
            )
        return sorted(self.histories, key=lambda n: -self._mean(n, "utility"))

    def record(self) -> dict[str, object]:
        """Return everything as JSON data, by the reference in `docs/testbed.md`."""
        streaming = self.recipe.world.streaming
        more = {"budget": streaming.budget, "load_limit_s": streaming.load_limit_s}
        return {
            "recipe": self.recipe.name,
            "rounds": self.recipe.rounds.count,
            **(more if self.of_streams else {}),
            "seeds": list(self.seeds),
            "policies": {name: self._policy(name) for name in self.histories},
            **({"persistence": self.persistence.record()} if self.of_streams else {}),
            "skipped": self.skipped,
        }

    def to_pandas(self) -> "pd.DataFrame":
        """Return one row per policy, seed and round.

        Raises:
            PandasNeededError: The package pandas is not installed.
        """
        try:
            import pandas as pd  # noqa: PLC0415 - optional package
        except ModuleNotFoundError as error:
            raise PandasNeededError(how_to_install("pandas")) from error
        return pd.DataFrame(
            {"policy": run.policy, "seed": run.seed, "round": t, **row}
            for runs in self.histories.values()
            for run in runs
            for t, row in enumerate(run.rows, 1)
        )

    def utility(self, name: str) -> Figure:
        """Return the cumulative utility of a policy."""
        kind = self.recipe.world.utility
        return figure([float(run.utility(kind).sum()) for run in self.histories[name]])

    def regret(self, name: str, oracle: str) -> Figure:
        """Return how much more an oracle had on the same seeds."""
        if oracle not in self.reference:
            return figure([None for _ in self.seeds])
        kind = self.recipe.world.utility
        both = zip(self.reference[oracle], self.histories[name], strict=True)
        return figure([float(b.utility(kind).sum() - r.utility(kind).sum()) for b, r in both])

    def to_target(self, name: str, target: float) -> tuple[Figure, Figure]:
        """Return the first round and second at an accuracy, of the seeds that got there."""
        runs = self.histories[name]
        first = [run.first_at(target) for run in runs]
        seconds = [
            None if at is None else float(run["seconds"][:at].sum())
            for run, at in zip(runs, first, strict=True)
        ]
        return figure(first), figure(seconds)

    @cached_property
    def best_loss(self) -> tuple[float, ...]:
        """The least final loss on each seed, of all pairs that aggregate."""
        paying = [runs for name, runs in self.histories.items() if not is_alone(name)]
        return tuple(
            min((runs[row].final_loss for runs in paying), default=float("inf"))
            for row in range(len(self.seeds))
        )

    @property
    def persistence(self) -> Figure:
        """Error of a model of zeros, on the samples of the pair that played longest."""
        runs = max(self.histories.values(), key=lambda several: sum(map(len, several)))
        return figure([run.error("naive") for run in runs])

    def reaches_best(self, name: str, loss: str = "final_loss") -> bool:
        """Return whether the mean final (or mean) loss is within `MARGIN` of the least of all."""
        means = {
            other: float(np.mean([getattr(run, loss) for run in runs]))
            for other, runs in self.histories.items()
        }
        return means[name] <= min(means.values()) + MARGIN

    @cached_property
    def _figures(self) -> dict[str, dict[str, Figure]]:
        figures = self._of_streams if self.of_streams else self._of_selection
        return {name: figures(name) for name in self.histories}

    def _of_selection(self, name: str) -> dict[str, Figure]:
        runs = self.histories[name]
        return {
            "utility": self.utility(name),
            "regret_oracle": self.regret(name, "oracle"),
            "regret_oracle_p": self.regret(name, "oracle-p"),
            "accuracy": figure([_last(run) for run in runs]),
            "seconds_per_round": figure([float(run["seconds"].mean()) for run in runs]),
            "spent": figure([float(run["spent"].sum()) for run in runs]),
            "selected_per_round": figure([float(run["selected"].mean()) for run in runs]),
            "min_rate": figure([run.min_rate for run in runs]),
            "jain": figure([jain(run.rates()) for run in runs]),
            **{key: figure([_covered(run, key) for run in runs]) for key in COVERAGE},
            "decision_ms": figure([float(np.median(run["decide_ms"])) for run in runs]),
            "explored_rounds": figure([float(run["explored"].sum()) for run in runs]),
        }

    def _of_streams(self, name: str) -> dict[str, Figure]:
        runs, sums = self.histories[name], ("compute_s", "transfer_s", "aggregate_s")
        to_best = zip(runs, self.best_loss, strict=True)
        return {
            "latency_s": figure([float(run.latency_s.sum()) for run in runs]),
            **{key: figure([float(run[key].sum()) for run in runs]) for key in sums},
            "final_loss": figure([run.final_loss for run in runs]),
            "mean_loss": figure([run.mean_loss for run in runs]),
            "seconds_to_best": figure([run.seconds_to(best + MARGIN) for run, best in to_best]),
            "rounds": figure([float(len(run)) for run in runs]),
            "spent": figure([float(run["rent"].sum()) for run in runs]),
            "rho": figure([_of(np.mean, run, "done") for run in runs]),
            "peak_s": figure([float(run["peak_s"].max(initial=0.0)) for run in runs]),
            "within_limit": figure([run.within_limit for run in runs]),
            "limited": figure([_of(np.mean, run, "limited") for run in runs]),
            "violation_s": figure([float(run.violation_s[-1:].sum()) for run in runs]),
            "edges": figure([float(len(set(run["edge"].tolist()) - {-1})) for run in runs]),
            "decision_ms": figure([_of(np.median, run, "decide_ms") for run in runs]),
            "error": figure([run.error() for run in runs]),
        }

    def _policy(self, name: str) -> dict[str, object]:
        record: dict[str, object] = {k: one.record() for k, one in self.figures(name).items()}
        if self.of_streams:
            exhausted = [run.exhausted for run in self.histories[name]]
            return record | {"reaches_best": self.reaches_best(name), "exhausted": exhausted}
        rounds, seconds = {}, {}
        for target in self.recipe.world.training.targets:
            first, later = self.to_target(name, target)
            rounds[str(target)] = first.record() | {"reached": first.reached}
            seconds[str(target)] = later.record() | {"reached": later.reached}
        return record | {"rounds_to_target": rounds, "seconds_to_target": seconds}

    def _mean(self, name: str, key: str) -> float:
        return self.figures(name)[key].mean or 0.0


def _of(measure: Callable[[Column], SupportsFloat], run: History, key: str) -> float | None:
    """Return the mean or median of a column; None of no rounds."""
    return float(measure(run[key])) if run.rows else None


def _covered(run: History, key: str) -> float | None:
    """Return a figure of a run's coverage."""
    value: float | None = None if run.coverage is None else getattr(run.coverage, key)
    return value


def _last(run: History) -> float | None:
    tested = [row["accuracy"] for row in run.rows if np.isfinite(row["accuracy"])]
    return tested[-1] if tested else None


def rows_of(result: Comparison) -> list[list[str]]:
    """Return heads and one row per policy, the best first."""
    rows: list[list[str]] = []
    for name in result.ranked():
        cells = _cells(result, name)
        rows = rows or [["policy", *cells]]
        rows.append([name, *cells.values()])
    return rows


def _cells(result: Comparison, name: str) -> dict[str, str]:
    recipe, figures, cells = result.recipe, result.figures(name), dict[str, str]()
    for key, (head, digits) in (_STREAMS if result.of_streams else _SELECTION).items():
        if key == "accuracy" and not recipe.world.training.dataset:
            continue
        if key == "error" and not recipe.world.streaming.prequential:
            continue
        cells[head] = figures[key].text(digits)
        if key in {"final_loss", "mean_loss"} and result.reaches_best(name, key):
            cells[head] += "*"
        for target in recipe.world.training.targets if key == "accuracy" else ():
            rounds, seconds = result.to_target(name, target)
            cells[f"to {target:g}"] = _reached(rounds, 1)
            cells[f"s to {target:g}"] = _reached(seconds, 0)
    return cells


def caption(result: Comparison) -> str:
    """Return what was compared, in a line."""
    recipe, seeds = result.recipe, seeds_text(len(result.seeds))
    if result.of_streams:
        return (
            f"{recipe.name}: {recipe.rounds.count} rounds at most, "
            f"{recipe.world.streaming.budget:g} credits of rent, {seeds}, mean ± 95 %; "
            f"* within {MARGIN:g} of the least loss"
        )
    if len(result.seeds) == 1:
        return f"{recipe.name}: {recipe.rounds.count} rounds, seed {result.seeds[0]}"
    return f"{recipe.name}: {recipe.rounds.count} rounds, {seeds}, mean ± 95 %"


def notes_of(result: Comparison) -> list[str]:
    """Return the lines below a table: what was compared, and what did not run."""
    lines = [caption(result)]
    if result.of_streams and (still := result.persistence).mean is not None:
        lines.append(f"persistence (as warm as now): error {still.text(3)}")
    return [*lines, *(f"skipped {name}: {why}" for name, why in result.skipped.items())]


def seeds_text(count: int) -> str:
    """Return `1 seed`, `5 seeds`."""
    return f"{count} seed" if count == 1 else f"{count} seeds"


def html_of(result: Comparison) -> str:
    """Return the table for a notebook."""
    heads, *rows = rows_of(result)
    lines = ["<table>", f"<caption>{escape(caption(result))}</caption>"]
    lines.append("<tr>" + "".join(f"<th>{escape(head)}</th>" for head in heads) + "</tr>")
    lines += [
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    ]
    return "\n".join([*lines, "</table>"])


def _reached(value: Figure, digits: int) -> str:
    """Return mean ± interval of the seeds that got there, and how many did if not all."""
    seeds = len(value.per_seed)
    some = "" if value.reached == seeds else f" ({value.reached}/{seeds})"
    return value.text(digits) + some
