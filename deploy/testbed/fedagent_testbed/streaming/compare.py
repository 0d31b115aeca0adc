"""Pairs of controls side by side on the same seeds: `compare_streams`, and what it returns."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from fedagent_task.errors import RecipeError
from fedagent_testbed.study.compare import Done, Figure, PoolOf, figure, run_jobs, seed_numbers
from fedagent_testbed.study.spec import TestbedRecipe

from .control import ALL, ALONE, Variant, make_iterations, make_placement
from .history import StreamHistory, StreamRound
from .play import play_stream

if TYPE_CHECKING:
    import pandas as pd

MARGIN = 0.005
"""A final loss within this of the best counts as reaching it."""


StreamPool = PoolOf[StreamHistory]


@dataclass(frozen=True, eq=False)
class StreamComparison:
    """The result of `compare_streams`.

    Attributes:
        recipe: What was studied.
        seeds: Of every pair's runs.
        histories: Pair to its runs, one per seed.
    """

    recipe: TestbedRecipe
    seeds: tuple[int, ...]
    histories: dict[str, tuple[StreamHistory, ...]]

    def figures(self, name: str) -> dict[str, Figure]:
        """Return everything that the table tells of a pair, by its key in `--json`."""
        return self._figures[name]

    @cached_property
    def _figures(self) -> dict[str, dict[str, Figure]]:
        return {name: self._figures_of(name) for name in self.histories}

    def _figures_of(self, name: str) -> dict[str, Figure]:
        """Return the figures of a pair."""
        runs, best = self.histories[name], self.best_loss
        columns = ("compute_s", "transfer_s", "aggregate_s")
        tell: dict[str, list[float | None]] = {
            "latency_s": [float(run.latency_s.sum()) for run in runs],
            **{key: [float(run.column(key).sum()) for run in runs] for key in columns},
            "final_loss": [run.final_loss for run in runs],
            "seconds_to_best": [
                run.seconds_to(best[seed] + MARGIN)
                for run, seed in zip(runs, self.seeds, strict=True)
            ],
            "rounds": [float(len(run)) for run in runs],
            "spent": [float(run.column("rent").sum()) for run in runs],
            "rho": [_mean(run, "done") for run in runs],
            "peak_s": [float(run.column("peak_s").max(initial=0.0)) for run in runs],
            "within_limit": [run.within_limit for run in runs],
            "limited": [_mean(run, "limited") for run in runs],
            "violation_s": [float(run.violation_s[-1]) if run.rows else 0.0 for run in runs],
            "edges": [float(len(np.unique(run.edges[run.edges >= 0]))) for run in runs],
            "decision_ms": [_median(run, "decide_ms") for run in runs],
            "error": [run.error for run in runs],
        }
        return {key: figure(values) for key, values in tell.items()}

    @cached_property
    def best_loss(self) -> dict[int, float]:
        """The least final loss on each seed, of all pairs that aggregate."""
        return {
            seed: min(
                (
                    runs[row].final_loss
                    for name, runs in self.histories.items()
                    if not name.endswith(f"+{ALONE}")
                ),
                default=float("inf"),
            )
            for row, seed in enumerate(self.seeds)
        }

    @property
    def persistence(self) -> Figure:
        """Error of a model of zeros, on the samples of the pair that played longest."""
        runs = max(self.histories.values(), key=lambda several: sum(map(len, several)))
        return figure([run.naive_error for run in runs])

    def reaches_best(self, name: str) -> bool:
        """Tell whether the mean final loss is within `MARGIN` of the least mean of all."""
        means = {
            other: float(np.mean([run.final_loss for run in runs]))
            for other, runs in self.histories.items()
        }
        return means[name] <= min(means.values()) + MARGIN

    def ranked(self) -> list[str]:
        """Return the pairs: those that reach the best loss first, by cumulative latency."""
        latency = {name: self.figures(name)["latency_s"].mean or 0.0 for name in self.histories}
        return sorted(self.histories, key=lambda name: (not self.reaches_best(name), latency[name]))

    def record(self) -> dict[str, object]:
        """Return everything as JSON data, by the reference in `docs/testbed.md`."""
        return {
            "recipe": self.recipe.name,
            "rounds": self.recipe.rounds.count,
            "budget": self.recipe.streaming.budget,
            "load_limit_s": self.recipe.streaming.load_limit_s,
            "seeds": list(self.seeds),
            "policies": {
                name: {
                    **{key: one.record() for key, one in self.figures(name).items()},
                    "reaches_best": self.reaches_best(name),
                    "exhausted": [run.exhausted for run in self.histories[name]],
                }
                for name in self.histories
            },
            "persistence": self.persistence.record(),
            "skipped": {},
        }

    def to_pandas(self) -> "pd.DataFrame":
        """Return one row per pair, seed and round.

        Raises:
            ModuleNotFoundError: pandas is not there: pip install pandas.
        """
        import pandas as pd  # noqa: PLC0415 - optional package

        frames = []
        for runs in self.histories.values():
            for run in runs:
                frame = pd.DataFrame({key: run.column(key) for key in _columns()})
                frame.insert(0, "round", np.arange(1, len(run) + 1))
                frame.insert(0, "seed", run.seed)
                frame.insert(0, "policy", run.policy)
                frames.append(frame)
        return pd.concat(frames, ignore_index=True)


def compare_streams(
    recipe: TestbedRecipe,
    names: str | Iterable[str] = (),
    *,
    seeds: int = 5,
    first_seed: int = 0,
    jobs: int = 1,
    pool: StreamPool | None = None,
    done: Done = lambda _name, _seed, _total: None,
) -> StreamComparison:
    """Run pairs of controls on the same seeds.

    Args:
        recipe: A study of the world ``bas``.
        names: ``ITERATIONS+PLACEMENT``, one or several; ``all`` for ours and the twelve baselines
            of the paper. Without any, those the recipe names.
        seeds: How many.
        first_seed: The first of them.
        jobs: Processes.
        pool: Runs the jobs instead, e.g. on a cluster.
        done: Told of every run that is over.

    Raises:
        PolicyError: A parameter is wrong, or a control fails.
        RecipeError: A name is none, or the recipe is of another world.
        ValueError: There are no seeds, or negative ones.
        DatasetError: The recipe's data are not there.
    """
    if recipe.world != "bas":
        raise RecipeError("world", f"is {recipe.world}", "a study of streams has world = 'bas'")
    wanted = [names] if isinstance(names, str) else list(dict.fromkeys(names))
    wanted = wanted or list(recipe.compare) or [recipe.policy]
    if wanted == ["all"]:
        wanted = list(ALL)
    for name in wanted:
        variant = Variant.parse(name)
        make_iterations(recipe, variant.iterations)
        if variant.placement != ALONE:
            make_placement(recipe, variant.placement, 0)
    numbers = seed_numbers(seeds, first_seed)
    runs = run_jobs(play_stream, recipe, wanted, numbers, jobs, pool, done)
    return StreamComparison(recipe, numbers, runs)


def _mean(run: StreamHistory, key: str) -> float | None:
    return float(run.column(key).mean()) if run.rows else None


def _median(run: StreamHistory, key: str) -> float | None:
    return float(np.median(run.column(key))) if run.rows else None


def _columns() -> Sequence[str]:
    return tuple(StreamRound.__dataclass_fields__)
