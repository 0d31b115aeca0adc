"""Studies in virtual time: one policy through one world, or several on the same seeds."""

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Protocol

try:
    from threadpoolctl import threadpool_limits
except ModuleNotFoundError:  # optional package
    threadpool_limits = None

from fedagent_protocol.errors import UnknownNameError
from fedagent_task.errors import DatasetError, RecipeError
from fedagent_testbed import oracles
from fedagent_testbed.recipe import TestbedRecipe
from fedagent_testbed.recipe_file import load_recipe, world_names

from . import selection, streams
from .comparison import Comparison
from .history import History
from .jobs import Done, Pool, pool_of, run_jobs
from .matrix import POLICIES, REFERENCE, Matrix, Played

ORACLES = ("oracle", REFERENCE)


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
    if threadpool_limits is None:
        return nullcontext()
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
        if expand and wanted == ["all"]:
            wanted, skipped = selection.fed(recipe, selection.policy_names(recipe))
        for name in wanted:
            if why := selection.unmet(recipe, name):
                raise RecipeError("policy", f"{name} {why}", "take another policy")
        oracles = [name for name in ORACLES if not selection.unmet(recipe, name)]
    every = list(dict.fromkeys([*wanted, *oracles]))
    with pool_of(jobs, pool) as several:
        runs = run_jobs(play, recipe, every, numbers, pool=several, done=done)
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

    A policy that a world cannot feed, or that knows the truth, is skipped there, and a world
    without its recordings or without a policy. ``all`` stands for every world that comes with the
    testbed, and for every policy.

    Raises:
        PolicyError, RecipeError, DatasetError: As `play`; or no world is left.
        RegistryError: There is no policy of a name.
        ValueError: There are no seeds, or negative ones.
        WorkerLostError: A process was killed.
    """
    wanted = list(dict.fromkeys([worlds] if isinstance(worlds, str) else worlds))
    wanted = list(world_names()) if "all" in wanted else wanted
    recipes = [load_recipe(world, list(sets)) for world in wanted]
    numbers, failed = _seed_numbers(seeds, first_seed), list[DatasetError]()
    played, skipped = dict[str, Played](), dict[str, str]()
    with pool_of(jobs, pool) as several:
        for world, recipe in zip(wanted, recipes, strict=True):
            try:
                able, unable = _ranked(recipe, names)
            except DatasetError as error:
                failed.append(error)
                skipped[world] = str(error)
                continue
            if not able:
                skipped[world] = "; ".join(f"{name} {why}" for name, why in unable.items())
                continue
            every = [*able, REFERENCE]
            runs = run_jobs(play, recipe, every, numbers, pool=several, done=done)
            found = Comparison(recipe, numbers, runs)
            figures = {name: found.figures(name) for name in every}
            played[world] = Played(recipe.world.about, recipe.rounds.count, figures, unable)
    if played:
        return Matrix(played, skipped)
    if failed:
        raise failed[0]
    raise RecipeError("policies", "none can play", "; ".join(skipped.values()))


def _ranked(recipe: TestbedRecipe, names: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Return who plays in a world, and why others do not.

    Raises:
        UnknownNameError: There is no policy of a name.
        RecipeError: It is a world of streams.
    """
    if recipe.of_streams:
        reason = f"{recipe.name} has streams, and pairs of controls instead of policies"
        raise RecipeError("worlds", reason, f"compare it by itself: testbed compare {recipe.name}")
    known = selection.policy_names(recipe)
    for name in names:
        if name not in (*known, "all"):
            raise UnknownNameError("policy", name, known)
    asked = names or [name for name in POLICIES if name in known]
    if "all" in names:
        asked = [name for name in known if name not in oracles.registry.builtin]
    return selection.fed(recipe, dict.fromkeys(asked), truth=False)


def _seed_numbers(seeds: int, first_seed: int) -> tuple[int, ...]:
    if seeds < 1:
        raise ValueError(f"seeds is {seeds}; ask for 1 or more")
    if first_seed < 0:
        raise ValueError(f"first_seed is {first_seed}; begin at 0 or later")
    return tuple(range(first_seed, first_seed + seeds))
