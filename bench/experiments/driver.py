"""Play an experiment of ``recipes.toml``: cases x policies x seeds on recipes of the testbed.

An experiment names a testbed `recipe` (or every world of `worlds.toml`), the `policies`, the
`measure` of a run, and how many `seeds` the table has, from `first_seed` on. `sets` hold for all
its cases; `cases` are sets by label, or follow from `vary`, whose values are tried in every
combination. `beside` names the policy, or the case, that the others are compared with by seed.
"""

import tomllib
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path

import msgspec

from fedagent_testbed.study import History, TestbedRecipe, load_recipe, play, world_names
from fedagent_testbed.study import streams as pairs
from fedagent_testbed.study.jobs import pool_of, run_jobs
from fedagent_testbed.study.selection import fed

from .measures import MEASURES
from .table import Line, Runs, line

RECIPES = Path(__file__).parent / "recipes.toml"
WORLDS = "worlds"
Sets = list[str]


class Experiment(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A section of the file."""

    paper: str
    recipe: str
    measure: str
    seeds: int
    policies: list[str] | dict[str, Sets]
    """Names, or by label a name and the sets that go with it."""
    first_seed: int = 0
    sets: Sets = []
    cases: dict[str, Sets] = {}
    vary: dict[str, list[int | float | str]] = {}
    beside: str = ""

    def named(self) -> dict[str, Sets]:
        """Return the policies: by label a name and sets."""
        own = self.policies
        return own if isinstance(own, dict) else {name: [name] for name in own}

    def settings(self) -> Iterator[tuple[str, str, Sets]]:
        """Yield label, testbed recipe and sets of every case."""
        if self.recipe == WORLDS:
            yield from ((name, name, self.sets) for name in world_names())
            return
        varied = [[f"{key}={value}" for value in values] for key, values in self.vary.items()]
        for label, sets in (self.cases or {"": []}).items():
            for values in product(*varied):
                words = [*filter(None, [label]), *map(short, values)]
                yield ", ".join(words), self.recipe, [*self.sets, *sets, *values]


def short(assignment: str) -> str:
    """Return an assignment with the last word of its key."""
    key, _, value = assignment.partition("=")
    return f"{key.rpartition('.')[2]}={value}"


def experiments() -> dict[str, Experiment]:
    """Return the experiments of the file by name."""
    table = tomllib.loads(RECIPES.read_text(encoding="utf-8"))
    return msgspec.convert(table, dict[str, Experiment])


def lines(
    name: str,
    one: Experiment,
    *,
    seeds: int | None = None,
    sets: Sequence[str] = (),
    only: str = "",
    jobs: int = 2,
) -> Iterator[Line]:
    """Play an experiment; yield the line of each case once its seeds, and its base, are over."""
    count = one.seeds if seeds is None else seeds
    known: dict[tuple[str, str], Runs] = {}
    for label, recipe, own in one.settings():
        if only and only not in label:
            continue
        for policy, (chosen, *params) in one.named().items():
            found = load_recipe(recipe, [*own, *params, *sets])
            numbers = range(one.first_seed, one.first_seed + count)
            every = one.recipe == WORLDS
            for each, runs in played(found, chosen, numbers, jobs, every=every):
                shown = policy if each == chosen else each
                known[label, shown] = [MEASURES[one.measure](run, found) for run in runs]
    for (label, policy), measured in known.items():
        base = known.get((label, one.beside)) or known.get((one.beside, policy)) or ()
        case = ", ".join(filter(None, [label, policy]))
        yield line(name, case, measured, () if base is measured else base)


def played(
    recipe: TestbedRecipe, policy: str, seeds: Sequence[int], jobs: int, *, every: bool
) -> Iterator[tuple[str, Sequence[History]]]:
    """Yield the runs of a policy, or of each that a word stands for.

    Of every world, those only play that the policy can see enough of.
    """
    names = [policy]
    if recipe.world.kind == "bas":
        names = pairs.chosen(recipe, names)
    elif every:
        names, _ = fed(recipe, names)
    done = lambda _name, _seed, _total: None  # noqa: E731
    with pool_of(jobs) as pool:
        yield from run_jobs(play, recipe, names, tuple(seeds), pool=pool, done=done).items()
