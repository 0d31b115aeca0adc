"""`fedagent testbed run|compare|list`: studies of policies in virtual time."""

import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TypedDict

import click
from psutil import cpu_count

from fedagent_cli import options, places
from fedagent_cli.command_line import Group, Number
from fedagent_cli.errors import KilledError, MissingError, UsageError
from fedagent_cli.output import aligned, echo, emit, table
from fedagent_cli.study.drawing import check_plot
from fedagent_cli.study.full import show_full
from fedagent_cli.study.worlds import print_matrix, write_matrix
from fedagent_coordinator.errors import PolicyError
from fedagent_protocol.errors import RegistryError
from fedagent_task.errors import DatasetError, RecipeError
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
from fedagent_testbed.study.jobs import Done, Job, WorkerLostError


@click.command(
    epilog=options.examples(
        "fedagent testbed run cocs-decisions",
        "fedagent testbed run cocs-decisions --full --set rounds.count=30",
    )
)
@click.argument("recipe")
@click.option("--policy", show_default="the recipe's", help="Policy that decides.")
@click.option(
    "--seed", type=Number(int, min=0), default=0, help="Seed of the world and of the policy."
)
@click.option(
    "--full",
    is_flag=True,
    help="Whole federation: engine, edges, agents, ledger and every message, in virtual time. "
    "Slower; without training.",
)
@click.option(
    "--dir",
    "folder",
    type=options.PATH,
    help="Empty folder for the run of --full: `fedagent why` reads it.",
)
@click.option(
    "--set",
    "sets",
    multiple=True,
    metavar="KEY=VALUE",
    help="Change a key: world.radio.noise_dbm_hz=-160.",
)
@click.option(
    "--plot",
    type=options.PATH,
    help="Write the curves as .svg, .png or .pdf: utility, regret, accuracy, selections.",
)
@options.as_json
def run(
    recipe: str,
    *,
    policy: str | None,
    seed: int,
    full: bool,
    folder: Path | None,
    sets: tuple[str, ...],
    plot: Path | None,
    as_json: bool,
) -> None:
    """Run one policy on one seed, and the oracles beside it where there are any."""
    if policy is not None and not policy.strip():
        raise UsageError("--policy is empty", "leave it out for the recipe's")
    _check_plot(plot)
    made = _recipe(recipe, sets)
    name = policy or made.decides
    if full:
        if plot is not None:
            raise UsageError("--full draws no curves", "leave out --plot or --full")
        with _fixable():
            if folder is not None:
                folder = places.empty_folder(folder, hint="name another folder with --dir")
            show_full(made, name, seed, folder=folder, as_json=as_json)
        return
    if folder is not None:
        raise UsageError("--dir needs --full", "add --full, or leave it out")
    if made.of_streams and name == "all":
        raise UsageError("`all` is not a single pair", "use `testbed compare`, or name a pair")
    with _playing(1, None, quiet=as_json) as how:
        result = study.compare(made, [name], seeds=1, first_seed=seed, expand=False, **how)
    _show_comparison(result, plot, as_json=as_json)


@click.command(
    epilog=options.examples(
        "fedagent testbed compare cocs-decisions --policies adaptive,linucb,random",
        "fedagent testbed compare cocs-decisions --policies all --seeds 5 --plot all.svg",
        "fedagent testbed compare cocs-mnist --set world.radio.noise_dbm_hz=-160 --json",
        "fedagent testbed compare bas-a9a --policies all --seeds 5 --plot bas.svg",
        "fedagent testbed compare dying flips one",
        "fedagent testbed compare all --seeds 3 --plot worlds.svg",
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
@click.option(
    "--set",
    "sets",
    multiple=True,
    metavar="KEY=VALUE",
    help="Change a key in each of them: world.radio.noise_dbm_hz=-160.",
)
@click.option(
    "--plot",
    type=options.PATH,
    help="Write the curves as .svg, .png or .pdf: utility, regret, accuracy, selections; of "
    "several recipes, the shares as a heat map.",
)
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
    _check_plot(plot)
    if len(recipes) > 1 or "all" in recipes:
        with _playing(jobs, ray, quiet=as_json) as how:
            matrix = study.compare_worlds(
                recipes, names, sets=sets, seeds=seeds, first_seed=first_seed, **how
            )
        _show_matrix(matrix, plot, as_json=as_json)
        return
    made = _recipe(recipes[0], sets)
    with _playing(jobs, ray, quiet=as_json) as how:
        result = study.compare(made, names, seeds=seeds, first_seed=first_seed, **how)
    _show_comparison(result, plot, as_json=as_json)


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


def _recipe(name: str, sets: Sequence[str]) -> TestbedRecipe:
    try:
        return load_recipe(name, sets)
    except RecipeError as error:
        raise UsageError(f"recipe: {error}") from error


class _How(TypedDict):
    jobs: int
    pool: "_RayPool | None"
    done: Done


@contextmanager
def _playing(jobs: int | None, ray: str | None, *, quiet: bool) -> Iterator[_How]:
    """Yield on what runs are played, and who is told; errors are of what the user can fix."""
    with _fixable(), _ray_pool(ray) as pool, _progress(quiet=quiet) as done:
        yield {"jobs": jobs or cpu_count() or 1, "pool": pool, "done": done}


class _RayPool:
    """Submits every run as a task of its own; the cluster needs fedagent installed."""

    def submit(self, job: Job, /, *args: object) -> Future[History]:
        """Start a job."""
        import ray  # noqa: PLC0415 - optional package

        future: Future[History] = ray.remote(job).remote(*args).future()
        return future


@contextmanager
def _ray_pool(address: str | None) -> Iterator[_RayPool | None]:
    """Connect to a cluster while the block runs; ``local`` starts one here, None asks for none."""
    if address is None:
        yield None
        return
    try:
        import ray  # noqa: PLC0415 - optional package
    except ModuleNotFoundError as error:
        raise MissingError("the package ray is not installed", "pip install ray") from error
    try:
        ray.init(
            address=None if address == "local" else address,
            include_dashboard=False if address == "local" else None,
            log_to_driver=False,
        )
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise MissingError(f"no Ray cluster at {address}: {error}", "check the address") from error
    try:
        yield _RayPool()
    finally:
        ray.shutdown()


@contextmanager
def _fixable() -> Iterator[None]:
    """Make one line of whatever the user can fix."""
    try:
        yield
    except DatasetError as error:
        raise MissingError(str(error)) from error
    except WorkerLostError as error:
        raise KilledError(str(error.args[0]), error.hint) from error
    except (PolicyError, RegistryError, RecipeError) as error:
        raise UsageError(str(error)) from error


@contextmanager
def _progress(*, quiet: bool) -> Iterator[Done]:
    """Show the progress of the runs on standard error, if that is a terminal."""
    if quiet or not sys.stderr.isatty() or find_spec("rich") is None:
        yield lambda _name, _seed, _total: None
        return
    from rich.console import Console  # noqa: PLC0415 - rich costs a tenth of a second
    from rich.progress import Progress  # noqa: PLC0415

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("runs", total=None)

        def done(name: str, seed: int, total: int) -> None:
            bar.update(task, total=total, advance=1, description=f"{name}, seed {seed}")

        yield done


def _check_plot(plot: Path | None) -> None:
    if plot is not None:
        check_plot(plot)


def _show_comparison(result: Comparison, plot: Path | None, *, as_json: bool) -> None:
    def draw(path: Path) -> None:
        from fedagent_cli.study.plots import write_plots  # noqa: PLC0415 - optional package

        write_plots(result, path)

    def tell() -> None:
        aligned(rows_of(result))
        for line in notes_of(result):
            echo(line)

    _show(result.record, tell, draw, plot, as_json=as_json)


def _show_matrix(matrix: Matrix, plot: Path | None, *, as_json: bool) -> None:
    draw, tell = partial(write_matrix, matrix), partial(print_matrix, matrix)
    _show(matrix.record, tell, draw, plot, as_json=as_json)


def _show(
    record: Callable[[], dict[str, object]],
    tell: Callable[[], None],
    draw: Callable[[Path], None],
    plot: Path | None,
    *,
    as_json: bool,
) -> None:
    """Print the table or the record, and write the picture; the table also without it."""
    try:
        if plot is not None:
            draw(plot)
    finally:
        drawn = plot is not None and sys.exception() is None
        if as_json:
            where = {"plot": str(plot.expanduser().resolve())} if plot and drawn else {}
            emit(record() | where)
        else:
            tell()
    if plot is not None and not as_json:
        echo(f"{plot}: written")


app = Group("testbed", help="Compare policies in virtual time.")
for command in (run, compare, list_recipes):
    app.add_command(command)
