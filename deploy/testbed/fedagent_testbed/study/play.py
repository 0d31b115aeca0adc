"""Studies in virtual time: one policy through one world, or several on the same seeds."""

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

from fedagent_task.errors import DatasetError, RecipeError
from fedagent_testbed.recipe import TestbedRecipe
from fedagent_testbed.recipe_file import load_recipe, world_names

from . import selection, streams
from .comparison import Comparison
from .history import History
from .jobs import Done, Pool, run_jobs, run_tasks
from .matrix import POLICIES, REFERENCE, Matrix, Outcome, Played

ORACLES = ("oracle", REFERENCE)

Plan = tuple[TestbedRecipe, list[str], dict[str, str]]
"""A world, the policies that play in it, and why others do not."""


class Study(Protocol):
    """World, learning and policy of one run."""

    def play_round(self, t: int, history: History) -> bool:
        """Play round `t`, from 1, into the history; False ends the run: it cannot be paid."""


def play(recipe: TestbedRecipe, name: str, seed: int) -> History:
    """Run a policy for all rounds of a recipe; deterministic by seed but for `decide_ms`.

    `name` is a policy's; in the world ``bas`` it is ITERATIONS+PLACEMENT.

    Raises:
        PolicyError: The policy fails, breaks a constraint, or a parameter is wrong.
        DatasetError: The recipe's data are not there.
        RecipeError: The policy cannot run on this recipe.
    """
    with one_blas_thread():
        kind = streams.StreamStudy if recipe.of_streams else selection.SelectionStudy
        study: Study = kind(recipe, name, seed)
        history = History(name, seed)
        for t in range(1, recipe.rounds.count + 1):
            if not study.play_round(t, history):
                break
    return history


def one_blas_thread() -> AbstractContextManager[object]:
    """Keep BLAS to one thread, so that results do not depend on how many cores there are.

    A product of the shapes here gains nothing from a second thread. Without threadpoolctl
    (extra `testbed`) nothing is changed: set ``OMP_NUM_THREADS=1`` there.
    """
    if find_spec("threadpoolctl") is None:
        return nullcontext()
    from threadpoolctl import threadpool_limits  # noqa: PLC0415 - optional package

    limit: AbstractContextManager[object] = threadpool_limits(1, user_api="blas")
    return limit


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

    `names` are as of `play`; without any, those that the recipe names. Unless `expand` is off,
    ``all`` stands for every policy there is, and those that cannot run are skipped with the
    reason; of pairs, for ours, the paper's and every fixed number at every placement. `pool` runs
    the jobs instead of processes, e.g. on a cluster.

    Raises:
        PolicyError, RecipeError, DatasetError: As `play`.
        ValueError: There are no seeds, or negative ones.
        WorkerLostError: A process was killed.
    """
    recipe = recipe if isinstance(recipe, TestbedRecipe) else load_recipe(recipe)
    numbers = _seed_numbers(seeds, first_seed)
    wanted = [names] if isinstance(names, str) else list(dict.fromkeys(names))
    wanted = wanted or list(recipe.world.compare) or [recipe.decides]
    oracles, skipped = list[str](), dict[str, str]()
    if recipe.of_streams:
        wanted = streams.chosen(recipe, wanted)
    else:
        everything = expand and wanted == ["all"]
        wanted, skipped = selection.chosen(recipe, wanted, everything=everything)
        oracles = [name for name in ORACLES if not selection.unmet(recipe, name)]
    every = list(dict.fromkeys([*wanted, *oracles]))
    runs = run_jobs(play, recipe, every, numbers, jobs=jobs, pool=pool, done=done)
    return Comparison(
        recipe=recipe,
        seeds=numbers,
        histories={name: runs[name] for name in wanted},
        reference={name: runs[name] for name in oracles},
        skipped=skipped,
    )


def compare_worlds(
    worlds: str | Iterable[str] = "all",
    names: Sequence[str] = (),
    *,
    sets: Iterable[str] = (),
    seeds: int = 5,
    first_seed: int = 0,
    jobs: int = 1,
    pool: Pool | None = None,
    done: Done = lambda _name, _seed, _total: None,
) -> Matrix:
    """Run policies in several worlds, each as `compare` does, with overrides for all of them.

    A policy that a world cannot feed is skipped there, and a world without its recordings or
    without a policy. ``all`` stands for every world that comes with the testbed, and for every
    policy that knows no truth.

    Raises:
        PolicyError, RecipeError, DatasetError: As `play`; or no world is left.
        RegistryError: There is no policy of a name.
        ValueError: There are no seeds, or negative ones.
        WorkerLostError: A process was killed.
    """
    wanted = list(dict.fromkeys([worlds] if isinstance(worlds, str) else worlds))
    wanted = list(world_names()) if "all" in wanted else wanted
    numbers, changes = _seed_numbers(seeds, first_seed), list(sets)
    plans, skipped = _plans(wanted, changes, names)
    tasks = [
        (recipe, name, seed)
        for recipe, fed, _ in plans.values()
        for name in [*fed, REFERENCE]
        for seed in numbers
    ]
    runs = iter(run_tasks(play, tasks, jobs=jobs, pool=pool, done=done))
    played = dict[str, Played]()
    for world, (recipe, fed, unfed) in plans.items():
        outcomes = {
            name: Outcome.of(tuple(next(runs) for _ in numbers), recipe.world.utility)
            for name in [*fed, REFERENCE]
        }
        played[world] = Played(recipe.world.about, recipe.rounds.count, outcomes, unfed)
    return Matrix(played, skipped)


def _plans(
    worlds: Sequence[str], changes: Sequence[str], names: Sequence[str]
) -> tuple[dict[str, Plan], dict[str, str]]:
    """Return who plays in each world, and why some worlds are skipped.

    Raises:
        RegistryError: There is no policy of a name.
        RecipeError: One knows the truth, or no world is left; then also DatasetError.
    """
    skipped, plans = dict[str, str](), dict[str, Plan]()
    for world in worlds:
        recipe = load_recipe(world, changes)
        if recipe.of_streams:
            reason = f"{world} has streams, and pairs of controls instead of policies"
            raise RecipeError("worlds", reason, f"compare it by itself: testbed compare {world}")
        asked = selection.without_truth(recipe, names or _matrix(recipe), but=REFERENCE)
        try:
            able, unable = selection.fed(recipe, asked)
        except DatasetError as error:
            if not plans and world == worlds[-1]:
                raise
            skipped[world] = str(error)
            continue
        if able:
            plans[world] = recipe, able, unable
        else:
            skipped[world] = "; ".join(f"{name} {why}" for name, why in unable.items())
    if not plans:
        raise RecipeError("policies", "none can play", "; ".join(skipped.values()))
    return plans, skipped


def _matrix(recipe: TestbedRecipe) -> list[str]:
    """Return whom a matrix compares if nobody is named, of those that the recipe knows."""
    known = selection.policy_names(recipe)
    return [name for name in POLICIES if name in known]


def _seed_numbers(seeds: int, first_seed: int) -> tuple[int, ...]:
    if seeds < 1:
        raise ValueError(f"seeds is {seeds}; ask for 1 or more")
    if first_seed < 0:
        raise ValueError(f"first_seed is {first_seed}; begin at 0 or later")
    return tuple(range(first_seed, first_seed + seeds))
