"""Policies side by side: means over paired seeds with their 95 % intervals, and what ranks them."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from fedagent_testbed.recipe import TestbedRecipe

from .history import History, jain
from .streams import MARGIN, is_alone

# Two-sided 95 % quantiles of Student's t for 1 to 18 degrees of freedom: scipy is not needed.
_T: tuple[float, ...] = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101),
)


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

    @property
    def of_streams(self) -> bool:
        """Whether this is a study of streams, not of selection."""
        return self.recipe.of_streams

    @cached_property
    def _figures(self) -> dict[str, dict[str, Figure]]:
        table = STREAMS if self.of_streams else SELECTION
        return {
            name: {
                key: figure([of(self, seed, run) for seed, run in enumerate(runs)])
                for key, (_, _, of) in table.items()
            }
            for name, runs in self.histories.items()
        }

    def figures(self, name: str) -> dict[str, Figure]:
        """Return the figures of a policy, but for its targets, by their keys in `--json`."""
        return self._figures[name]

    def ranked(self) -> list[str]:
        """Return the policies, best utility first.

        Pairs on streams: those first that reach the best loss, by cumulative latency.
        """
        key, sign = ("latency_s", 1.0) if self.of_streams else ("utility", -1.0)

        def rank(name: str) -> tuple[bool, float]:
            behind = self.of_streams and not self.reaches_best(name)
            return behind, sign * (self.figures(name)[key].mean or 0.0)

        return sorted(self.histories, key=rank)

    def record(self) -> dict[str, object]:
        """Return everything as JSON data, by the reference in `docs/testbed.md`."""
        streaming, more = self.recipe.world.streaming, dict[str, object]()
        if self.of_streams:
            more = {
                "budget": streaming.budget,
                "load_limit_s": streaming.load_limit_s,
                "persistence": self.persistence.record(),
            }
        return {
            "recipe": self.recipe.name,
            "rounds": self.recipe.rounds.count,
            "seeds": list(self.seeds),
            "policies": {name: self._policy(name) for name in self.histories},
            "skipped": self.skipped,
            **more,
        }

    def _policy(self, name: str) -> dict[str, object]:
        record: dict[str, object] = {k: one.record() for k, one in self.figures(name).items()}
        if self.of_streams:
            exhausted = [run.exhausted for run in self.histories[name]]
            return record | {"reaches_best": self.reaches_best(name), "exhausted": exhausted}
        both = {str(one): self.to_target(name, one) for one in self.recipe.world.training.targets}
        for place, key in enumerate(("rounds_to_target", "seconds_to_target")):
            record[key] = {
                target: found[place].record() | {"reached": found[place].reached}
                for target, found in both.items()
            }
        return record

    def rows(self) -> Iterator[dict[str, object]]:
        """Yield a row for each policy, seed and round, as `pandas.DataFrame` takes them."""
        for run in (run for runs in self.histories.values() for run in runs):
            for t, row in enumerate(run.rows, 1):
                yield {"policy": run.policy, "seed": run.seed, "round": t, **row}

    def utility(self, run: History) -> float:
        """Return the cumulative utility of a run."""
        return float(run.utility(self.recipe.world.utility).sum())

    def behind(self, oracle: str, seed: int, run: History) -> float | None:
        """Return how much more an oracle had on the same seed."""
        known = self.reference.get(oracle)
        return self.utility(known[seed]) - self.utility(run) if known else None

    def to_target(self, name: str, target: float) -> tuple[Figure, Figure]:
        """Return the first round and second at an accuracy, of the seeds that got there."""
        runs = self.histories[name]
        first = [run.first_at(target) for run in runs]
        seconds = [
            None if at is None else float(run["seconds"][:at].sum())
            for run, at in zip(runs, first, strict=True)
        ]
        return figure(first), figure(seconds)

    def best_loss(self, seed: int) -> float:
        """Return the least final loss on a seed, of all pairs that aggregate."""
        paying = [runs for name, runs in self.histories.items() if not is_alone(name)]
        return min((runs[seed].final_loss for runs in paying), default=math.inf)

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


Of = Callable[[Comparison, int, History], float | None]
"""Takes a comparison, the place of a seed in it, and the run on that seed."""


def _total(column: str) -> Of:
    return lambda _, _seed, run: float(run[column].sum())


def _mean(column: str) -> Of:
    return lambda _, _seed, run: float(run[column].mean()) if run.rows else None


def _median(column: str) -> Of:
    return lambda _, _seed, run: float(np.median(run[column])) if run.rows else None


def _its(name: str) -> Of:
    return lambda _, _seed, run: getattr(run, name)


def _covered(name: str) -> Of:
    return lambda _, _seed, run: getattr(run.coverage, name, None)


COVERAGE = ("never_rate", "back_rounds", "left_out")
SELECTION: dict[str, tuple[str, int, Of]] = {
    "utility": ("utility", 0, lambda result, _, run: result.utility(run)),
    "regret_oracle": ("regret", 0, lambda result, n, run: result.behind("oracle", n, run)),
    "regret_oracle_p": ("regret-p", 0, lambda result, n, run: result.behind("oracle-p", n, run)),
    "accuracy": ("accuracy", 3, _its("accuracy")),
    "spent": ("spent", 0, _total("spent")),
    "seconds_per_round": ("s/round", 2, _mean("seconds")),
    "min_rate": ("min rate", 3, _its("min_rate")),
    "jain": ("jain", 2, lambda _, _seed, run: jain(run.rates())),
    "decision_ms": ("ms", 2, _median("decide_ms")),
    "selected_per_round": ("", 0, _mean("selected")),
    "explored_rounds": ("", 0, _total("explored")),
    **{key: ("", 0, _covered(key)) for key in COVERAGE},
}
STREAMS: dict[str, tuple[str, int, Of]] = {
    "latency_s": ("latency s", 1, lambda _, _seed, run: float(run.latency_s.sum())),
    "compute_s": ("compute", 1, _total("compute_s")),
    "transfer_s": ("transfer", 1, _total("transfer_s")),
    "aggregate_s": ("aggregate", 1, _total("aggregate_s")),
    "final_loss": ("loss", 4, _its("final_loss")),
    "mean_loss": ("mean loss", 4, _its("mean_loss")),
    "seconds_to_best": (
        *("s to best", 1),
        lambda result, n, run: run.seconds_to(result.best_loss(n) + MARGIN),
    ),
    "rounds": ("rounds", 0, lambda _, _seed, run: float(len(run))),
    "spent": ("spent", 1, _total("rent")),
    "rho": ("rho", 1, _mean("done")),
    "peak_s": ("peak s", 2, lambda _, _seed, run: float(run["peak_s"].max(initial=0.0))),
    "within_limit": ("in limit", 3, _its("within_limit")),
    "violation_s": ("over s", 1, _total("over_s")),
    "edges": ("edges", 0, lambda _, _seed, run: float(len({*run["edge"].tolist()} - {-1}))),
    "decision_ms": ("ms", 2, _median("decide_ms")),
    "error": ("error", 3, lambda _, _seed, run: run.error()),
    "limited": ("", 0, _mean("limited")),
}
"""By keys in `--json`: head and digits in the table, where there is a head, and what it is."""


def rows_of(result: Comparison) -> list[list[str]]:
    """Return heads and one row per policy, the best first."""
    rows: list[list[str]] = []
    for name in result.ranked():
        cells = _cells(result, name)
        rows = rows or [["policy", *cells]]
        rows.append([name, *cells.values()])
    return rows


def _cells(result: Comparison, name: str) -> dict[str, str]:
    world, figures, cells = result.recipe.world, result.figures(name), dict[str, str]()
    known = {"accuracy": world.training.dataset, "error": world.streaming.prequential}
    for key, (head, digits, _) in (STREAMS if result.of_streams else SELECTION).items():
        if not head or not known.get(key, True):
            continue
        cells[head] = figures[key].text(digits)
        if key in {"final_loss", "mean_loss"} and result.reaches_best(name, key):
            cells[head] += "*"
        for target in world.training.targets if key == "accuracy" else ():
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


def _reached(value: Figure, digits: int) -> str:
    """Return mean ± interval of the seeds that got there, and how many did if not all."""
    seeds = len(value.per_seed)
    some = "" if value.reached == seeds else f" ({value.reached}/{seeds})"
    return value.text(digits) + some
