"""Policies side by side on the same seeds: `compare`, and what it returns."""

import math
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor, Future, as_completed
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

import numpy as np

from fedagent_coordinator import policies
from fedagent_task.errors import RecipeError

from .history import History, jain
from .play import play, unmet, unusable
from .spec import TestbedRecipe, load_recipe
from .table import caption, html_of
from .workers import workers as worker_pool

if TYPE_CHECKING:
    import pandas as pd

ORACLES = ("oracle", "oracle-p")
# Two-sided 95 % quantiles of Student's t for 1 to 30 degrees of freedom.
_T: tuple[float, ...] = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)

R = TypeVar("R")

Done = Callable[[str, int, int], None]
"""Told policy, seed and the number of runs in all, when a run is over."""


Job = Callable[[TestbedRecipe, str, int], R]
"""Runs a name on a seed of a recipe."""


class PoolOf(Protocol[R]):
    """What runs the jobs: `Executor.submit` is enough."""

    def submit(self, job: Job[R], *args: object) -> "Future[R]":
        """Start a job."""


Pool = PoolOf[History]


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


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Comparison:
    """The result of `compare`.

    Attributes:
        recipe: What was studied.
        seeds: Of every policy's runs.
        histories: Policy to its runs, one per seed.
        reference: Runs of the oracles, for the regret.
        skipped: Policy to the reason why it did not run.
    """

    recipe: TestbedRecipe
    seeds: tuple[int, ...]
    histories: dict[str, tuple[History, ...]]
    reference: dict[str, tuple[History, ...]]
    skipped: dict[str, str]

    def __repr__(self) -> str:
        names = ", ".join(self.histories)
        return f"<Comparison of {names}; {caption(self)}>"

    def _repr_html_(self) -> str:
        """Return the table, for a notebook."""
        return html_of(self)

    def record(self) -> dict[str, object]:
        """Return everything as JSON data, by the reference in `docs/testbed.md`."""
        return {
            "recipe": self.recipe.name,
            "rounds": self.recipe.rounds.count,
            "seeds": list(self.seeds),
            "policies": {name: self._policy(name) for name in self.histories},
            "skipped": self.skipped,
        }

    def utility(self, name: str) -> Figure:
        """Return the cumulative utility of a policy."""
        return figure(
            [float(run.utility(self.recipe.utility).sum()) for run in self.histories[name]]
        )

    def regret(self, name: str, oracle: str) -> Figure:
        """Return how much more an oracle had on the same seeds."""
        if oracle not in self.reference:
            return figure([None for _ in self.seeds])
        kind = self.recipe.utility
        return figure(
            [
                float(best.utility(kind).sum() - run.utility(kind).sum())
                for best, run in zip(self.reference[oracle], self.histories[name], strict=True)
            ]
        )

    def to_pandas(self) -> "pd.DataFrame":
        """Return one row per policy, seed and round.

        Raises:
            ModuleNotFoundError: pandas is not there: pip install pandas.
        """
        import pandas as pd  # noqa: PLC0415 - optional package

        frames = [
            pd.DataFrame(
                {
                    "policy": run.policy,
                    "seed": run.seed,
                    "round": np.arange(1, len(run.wins) + 1),
                    "wins": run.wins,
                    "selected": run.selected,
                    "spent": run.spent,
                    "seconds": run.seconds,
                    "decide_ms": run.decide_ms,
                    "accuracy": run.accuracy,
                    "opinion": run.opinion,
                }
            )
            for runs in self.histories.values()
            for run in runs
        ]
        return pd.concat(frames, ignore_index=True)

    def figures(self, name: str) -> dict[str, Figure]:
        """Return what the table tells of a policy beside its targets, by its key in `--json`."""
        runs = self.histories[name]
        return {
            "utility": self.utility(name),
            "regret_oracle": self.regret(name, "oracle"),
            "regret_oracle_p": self.regret(name, "oracle-p"),
            "accuracy": figure([_last(run) for run in runs]),
            "seconds_per_round": figure([float(run.seconds.mean()) for run in runs]),
            "spent": figure([float(run.spent.sum()) for run in runs]),
            "selected_per_round": figure([float(run.selected.mean()) for run in runs]),
            "min_rate": figure([float(run.rates().min(initial=0.0)) for run in runs]),
            "jain": figure([jain(run.rates()) for run in runs]),
            "decision_ms": figure([float(np.median(run.decide_ms)) for run in runs]),
            "explored_rounds": figure([float(run.explored) for run in runs]),
        }

    def to_target(self, name: str, target: float) -> tuple[Figure, Figure]:
        """Return the first round and second at an accuracy, of the seeds that got there."""
        runs = self.histories[name]
        first = [run.first_at(target) for run in runs]
        seconds = [_seconds_to(run, t) for run, t in zip(runs, first, strict=True)]
        return figure(first), figure(seconds)

    def _policy(self, name: str) -> dict[str, object]:
        rounds, seconds = {}, {}
        for target in self.recipe.training.targets:
            first, later = self.to_target(name, target)
            rounds[str(target)] = first.record() | {"reached": first.reached}
            seconds[str(target)] = later.record() | {"reached": later.reached}
        told = {key: one.record() for key, one in self.figures(name).items()}
        return told | {"rounds_to_target": rounds, "seconds_to_target": seconds}


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
    # Cornish-Fisher: the normal quantile and two corrections.
    z = 1.959964
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


def compare(
    recipe: TestbedRecipe | str | Path,
    names: str | Iterable[str] = (),
    *,
    seeds: int = 5,
    first_seed: int = 0,
    jobs: int = 1,
    pool: Pool | None = None,
    done: Done = lambda _name, _seed, _total: None,
    expand: bool = True,
) -> Comparison:
    """Run policies on the same seeds, and the oracles beside them for the regret.

    Args:
        recipe: The study, or what `load_recipe` finds it by.
        names: A policy or several; ``all`` stands for every one there is, and those that cannot run
            are skipped with the reason. Without any, those the recipe names.
        seeds: How many.
        first_seed: The first of them.
        jobs: Processes.
        pool: Runs the jobs instead, e.g. on a cluster.
        done: Told of every run that is over.
        expand: Whether ``all`` stands for every policy, or for the one of that name.

    Raises:
        PolicyError: A name or a parameter is wrong, or a policy fails.
        RecipeError: A policy that was named cannot run on this recipe.
        ValueError: There are no seeds, or negative ones.
        DatasetError: The recipe's data are not there.
        WorkerLostError: A process was killed.
    """
    recipe = recipe if isinstance(recipe, TestbedRecipe) else load_recipe(recipe)
    numbers = seed_numbers(seeds, first_seed)
    wanted = [names] if isinstance(names, str) else list(dict.fromkeys(names))
    wanted = wanted or list(recipe.compare) or [recipe.policy]
    everything = expand and wanted == ["all"]
    if everything:
        wanted = list(policies.names())
    skipped = {}
    for name in list(wanted):
        if why := (unusable if everything else unmet)(recipe, name):
            if not everything:
                raise RecipeError("policy", f"{name} {why}", "take another policy")
            skipped[name] = why
            wanted.remove(name)
    oracles = [name for name in ORACLES if not unmet(recipe, name)]
    everybody = list(dict.fromkeys([*wanted, *oracles]))
    runs = run_jobs(play, recipe, everybody, numbers, jobs, pool, done)
    return Comparison(
        recipe=recipe,
        seeds=numbers,
        histories={name: runs[name] for name in wanted},
        reference={name: runs[name] for name in oracles},
        skipped=skipped,
    )


def seed_numbers(seeds: int, first_seed: int) -> tuple[int, ...]:
    """Return this many seeds from the first on.

    Raises:
        ValueError: There are none, or negative ones.
    """
    if seeds < 1:
        raise ValueError(f"seeds is {seeds}; ask for 1 or more")
    if first_seed < 0:
        raise ValueError(f"first_seed is {first_seed}; begin at 0 or later")
    return tuple(range(first_seed, first_seed + seeds))


def run_jobs(
    job: "Job[R]",
    recipe: TestbedRecipe,
    names: Sequence[str],
    seeds: Sequence[int],
    jobs: int,
    pool: "PoolOf[R] | None",
    done: Done,
) -> dict[str, tuple[R, ...]]:
    """Run every name on every seed; a run depends on nothing but its arguments.

    Raises:
        WorkerLostError: A process was killed.
    """
    tasks = [(name, seed) for seed in seeds for name in names]
    results: dict[tuple[str, int], R] = {}
    if pool is None and jobs <= 1:
        for name, seed in tasks:
            results[name, seed] = job(recipe, name, seed)
            done(name, seed, len(tasks))
    else:
        with _executor(pool, jobs) as workers:
            futures = {
                workers.submit(job, recipe, name, seed): (name, seed) for name, seed in tasks
            }
            try:
                for future in as_completed(futures):
                    results[futures[future]] = future.result()
                    done(*futures[future], len(tasks))
            finally:
                # After a failure nobody waits for the others.
                for future in futures:
                    future.cancel()
    return {name: tuple(results[name, seed] for seed in seeds) for name in names}


def _executor(
    pool: "PoolOf[R] | None", jobs: int
) -> "AbstractContextManager[PoolOf[R] | Executor]":
    return worker_pool(jobs) if pool is None else nullcontext(pool)


def _last(run: History) -> float | None:
    tested = run.accuracy[np.isfinite(run.accuracy)]
    return float(tested[-1]) if len(tested) else None


def _seconds_to(run: History, round_: int | None) -> float | None:
    return None if round_ is None else float(run.seconds[:round_].sum())
