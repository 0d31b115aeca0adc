"""`fedagent testbed run|compare|list`: studies of policies in virtual time."""

import os
import sys
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import TypedDict

import click
from psutil import cpu_count

from fedagent_cli import options
from fedagent_cli.command_line import Group, Number
from fedagent_cli.errors import MissingError, UsageError
from fedagent_cli.extras import need, optional
from fedagent_cli.output import echo, emit, style_of, table
from fedagent_testbed import study
from fedagent_testbed.study import (
    Comparison,
    History,
    Matrix,
    TestbedRecipe,
    load_recipe,
    recipe_names,
)
from fedagent_testbed.study.comparison import notes_of, rows_of
from fedagent_testbed.study.jobs import Done, Job

WITHOUT_DATE = {".svg": ("Date",), ".pdf": ("CreationDate",), ".png": ()}
"""Kinds of pictures, and the keys of the time of day, which is kept out of them."""
plot_option = click.option(
    "--plot",
    type=options.PATH,
    help="Write the curves as .svg, .png or .pdf: utility, regret, accuracy, selections.",
)


@click.command(
    epilog=options.examples(
        "fedagent testbed run cocs-decisions",
        "fedagent testbed run cocs-decisions --policy linucb --set rounds.count=30",
    )
)
@click.argument("recipe")
@click.option("--policy", show_default="the recipe's", help="Policy that decides.")
@click.option(
    "--seed", type=Number(int, min=0), default=0, help="Seed of the world and of the policy."
)
@options.sets
@plot_option
@options.as_json
def run(
    recipe: str,
    *,
    policy: str | None,
    seed: int,
    sets: tuple[str, ...],
    plot: Path | None,
    as_json: bool,
) -> None:
    """Run one policy on one seed, and the oracles beside it where there are any."""
    if policy is not None and not policy.strip():
        raise UsageError("--policy is empty", "leave it out for the recipe's")
    made = load_recipe(recipe, sets)
    _check_plot(plot, made)
    name = policy or made.decides
    if made.of_streams and name == "all":
        raise UsageError("`all` is not a single pair", "use `testbed compare`, or name a pair")
    with _playing(1, None, quiet=as_json) as how:
        result = study.compare(made, [name], seeds=1, first_seed=seed, expand=False, **how)
    _show(result, plot, as_json=as_json)


@click.command(
    epilog=options.examples(
        "fedagent testbed compare cocs-decisions --policies adaptive,linucb,random",
        "fedagent testbed compare cocs-decisions --policies all --seeds 5 --plot all.svg",
        "fedagent testbed compare cocs-mnist --set world.radio.noise_dbm_hz=-160 --json",
        "fedagent testbed compare bas-a9a --policies all --seeds 5",
        "fedagent testbed compare dying flips one",
        "fedagent testbed compare all --seeds 3",
    )
)
@click.argument("recipes", nargs=-1, required=True)
@click.option(
    "--policies",
    metavar="NAMES",
    show_default="the recipe's; in several, who needs no opinions",
    help="Names separated by commas, or `all`.",
)
@click.option(
    "--seeds", type=Number(int, min=1, max=10000), default=5, help="Paired runs per policy."
)
@click.option("--first-seed", type=Number(int, min=0), default=0, help="The first seed.")
@click.option(
    "--jobs", type=Number(int, min=1, max=512), show_default="one per core", help="Processes."
)
@click.option(
    "--ray", metavar="ADDRESS", help="Run on this Ray cluster; `local` starts one on this machine."
)
@options.sets
@plot_option
@options.as_json
def compare(
    recipes: tuple[str, ...],
    *,
    policies: str | None,
    seeds: int,
    first_seed: int,
    jobs: int | None,
    ray: str | None,
    sets: tuple[str, ...],
    plot: Path | None,
    as_json: bool,
) -> None:
    """Run policies on the same seeds: means with 95 % intervals, regret, fairness, costs.

    On one recipe, or on several, or on `all` worlds: then it shows what share of the best policy's
    utility each policy has in each, its rank, and which devices are ordered in vain or left out.
    --policies `all` takes every policy that can play there, and lists those that cannot. In
    studies of streams a policy is ITERATIONS+PLACEMENT, e.g. by-progress+budgeted-ucb.
    """
    names = [name.strip() for name in (policies or "").split(",") if name.strip()]
    if policies is not None and not names:
        raise UsageError("--policies is empty", "leave it out for the recipe's")
    if len(recipes) > 1 or "all" in recipes:
        if plot is not None:
            raise UsageError("several recipes have no picture", "take their figures from --json")
        with _playing(jobs, ray, quiet=as_json) as how:
            matrix = study.compare_worlds(
                recipes, names, sets=sets, seeds=seeds, first_seed=first_seed, **how
            )
        _show(matrix, None, as_json=as_json)
        return
    made = load_recipe(recipes[0], sets)
    _check_plot(plot, made)
    with _playing(jobs, ray, quiet=as_json) as how:
        result = study.compare(made, names, seeds=seeds, first_seed=first_seed, **how)
    _show(result, plot, as_json=as_json)


@click.command("list", epilog=options.examples("fedagent testbed list"))
@options.as_json
def list_recipes(*, as_json: bool) -> None:
    """List the recipes that come with the testbed."""
    made = [load_recipe(name) for name in recipe_names()]
    if as_json:
        emit({"recipes": [{"name": one.name, "about": one.world.about} for one in made]})
        return
    table(
        ("recipe", "rounds", "about"),
        [(one.name, one.rounds.count, one.world.about) for one in made],
    )


class _How(TypedDict):
    jobs: int
    pool: "_RayPool | None"
    done: Done


@contextmanager
def _playing(jobs: int | None, address: str | None, *, quiet: bool) -> Iterator[_How]:
    pool = None
    show = sys.stderr.isatty() and not quiet
    try:
        pool = None if address is None else _RayPool(address)
        yield {"jobs": jobs or cpu_count() or 1, "pool": pool, "done": _Progress(show=show)}
    finally:
        if pool is not None:
            pool.close()


class _RayPool:
    """Submits every run as a task of its own; the cluster needs fedagent installed.

    The address ``local`` starts one here.
    """

    def __init__(self, address: str) -> None:
        need("ray", hint="pip install ray")
        self._ray, local = optional("ray", "ray"), address == "local"
        try:
            self._ray.init(
                address=None if local else address,
                include_dashboard=False if local else None,
                log_to_driver=False,
            )
        except (ConnectionError, ValueError, RuntimeError) as error:
            reason = f"no Ray cluster at {address}: {error}"
            raise MissingError(reason, "check the address") from error

    def submit(self, job: Job, /, *args: object) -> Future[History]:
        """Start a job."""
        future: Future[History] = self._ray.remote(job).remote(*args).future()
        return future

    def close(self) -> None:
        """Leave the cluster."""
        self._ray.shutdown()


class _Progress:
    """Counts the runs on standard error, in one line of a terminal."""

    def __init__(self, *, show: bool) -> None:
        self._show, self._count = show, 0

    def __call__(self, name: str, seed: int, total: int) -> None:
        """Take note of a run that is done."""
        self._count += 1
        if self._show:
            end = "\n" if self._count == total else ""
            sys.stderr.write(f"\r\033[K{self._count} of {total} runs: {name}, seed {seed}{end}")
            sys.stderr.flush()
        self._count %= total  # the next world begins


def _check_plot(path: Path | None, made: TestbedRecipe) -> None:
    """Refuse a picture that could not be written, before anything is computed for it."""
    if path is None:
        return
    if made.of_streams:
        raise UsageError("a study of streams has no picture", "take its figures from --json")
    need("matplotlib", "plots")
    style_of(path, *WITHOUT_DATE)
    folder = path.expanduser().absolute().parent
    if not os.path.isdir(folder):  # noqa: PTH112 - false where it may not be looked into
        said = f"--plot {path} is in {folder}, which is not a folder"
        raise UsageError(said, "name a file in a folder that exists")


def _show(result: Comparison | Matrix, plot: Path | None, *, as_json: bool) -> None:
    """Print the table or the record, and write the picture; the table also without it."""
    drawn: dict[str, str] = {}
    try:
        if plot is not None:
            optional("fedagent_cli.study.plots", "matplotlib", "plots").write_plots(result, plot)
            drawn = {"plot": str(plot.expanduser().resolve())}
    finally:
        if as_json:
            emit(result.record() | drawn)
        else:
            _print(result)
    if plot is not None and not as_json:
        echo(f"{plot}: written")


def _print(result: Comparison | Matrix) -> None:
    if isinstance(result, Comparison):
        tables, notes = [rows_of(result)], notes_of(result)
    else:
        tables, notes = [result.rows(), result.coverage_rows()], result.notes()
    for number, (head, *rows) in enumerate(tables):
        if number and rows:
            echo()
        if rows:
            table(head, rows)
    for line in notes:
        echo(line)


app = Group("testbed", help="Compare policies in virtual time.")
for command in (run, compare, list_recipes):
    app.add_command(command)
