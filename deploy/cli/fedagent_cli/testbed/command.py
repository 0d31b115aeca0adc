"""`fedagent testbed run|compare|recipes`: studies of policies in virtual time."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypedDict

from fedagent_cli import command_line, options, places
from fedagent_cli.errors import KilledError, MissingError, UsageError
from fedagent_cli.output import aligned, echo, emit, table

if TYPE_CHECKING:
    from concurrent.futures import Future

    from fedagent_testbed.study import Comparison, History, Matrix, TestbedRecipe
    from fedagent_testbed.study.jobs import Done, Job


testbed_app = command_line.CommandGroup(
    name="testbed", help="Compare policies in virtual time.", no_args_is_help=True
)
RecipeName = Annotated[
    str,
    command_line.Argument(
        help="A recipe of the testbed (see `fedagent testbed recipes`) or a file."
    ),
]
OptionalRecipe = Annotated[
    str | None,
    command_line.Argument(
        help="A recipe of the testbed (see `fedagent testbed recipes`) or a file."
    ),
]
Sets = Annotated[
    list[str] | None,
    command_line.Option(
        "--set", metavar="KEY=VALUE", help="Change a key: radio.noise_dbm_hz=-160."
    ),
]
Plot = Annotated[
    Path | None,
    command_line.Option(
        help="Write the curves as .svg, .png or .pdf: utility, regret, accuracy, selections."
    ),
]
Jobs = Annotated[
    int | None, command_line.Option(min=1, max=512, help="Processes.", show_default="one per core")
]
Ray = Annotated[
    str | None,
    command_line.Option(
        metavar="ADDRESS", help="Run on this Ray cluster; `local` starts one on this machine."
    ),
]
Worlds = Annotated[
    str | None,
    command_line.Option(
        metavar="NAMES",
        help="Instead of a recipe: worlds separated by commas, e.g. dying,flips, or `all`.",
    ),
]
Policies = Annotated[
    str | None,
    command_line.Option(
        metavar="NAMES",
        help="Names separated by commas, or `all`.",
        show_default="the recipe's; in worlds, who needs no opinions",
    ),
]
Seeds = Annotated[int, command_line.Option(min=1, max=10_000, help="Paired runs per policy.")]
SetsInEach = Annotated[
    list[str] | None,
    command_line.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Change a key, with --worlds in each of them: radio.noise_dbm_hz=-160.",
    ),
]
PlotOfWorlds = Annotated[
    Path | None,
    command_line.Option(
        help="Write the curves as .svg, .png or .pdf: utility, regret, accuracy, selections; "
        "with --worlds, the shares as a heat map."
    ),
]


def mount(app: command_line.CommandGroup, *, panel: str) -> None:
    """Add the commands to the app."""
    for command, lines in (
        (
            run,
            (
                "fedagent testbed run cocs-decisions",
                "fedagent testbed run cocs-decisions --full --set rounds.count=30",
            ),
        ),
        (
            compare,
            (
                "fedagent testbed compare cocs-decisions --policies adaptive,linucb,random",
                "fedagent testbed compare cocs-decisions --policies all --seeds 5 --plot all.svg",
                "fedagent testbed compare cocs-mnist --set world.radio.noise_dbm_hz=-160 --json",
                "fedagent testbed compare bas-a9a --policies all --seeds 5 --plot bas.svg",
                "fedagent testbed compare --worlds all --seeds 3 --plot worlds.svg",
            ),
        ),
        (recipes, ("fedagent testbed recipes",)),
    ):
        testbed_app.command(epilog=options.examples(*lines))(command)
    app.add_group(testbed_app, panel=panel)


def run(
    recipe: RecipeName,
    *,
    policy: Annotated[
        str | None, command_line.Option(help="Policy that decides.", show_default="the recipe's")
    ] = None,
    seed: Annotated[
        int, command_line.Option(min=0, help="Seed of the world and of the policy.")
    ] = 0,
    full: Annotated[
        bool,
        command_line.Option(
            "--full",
            help="Whole federation: engine, edges, agents, ledger and every message, in "
            "virtual time. Slower; without training.",
        ),
    ] = False,
    folder: Annotated[
        Path | None,
        command_line.Option(
            "--dir", help="Empty folder for the run of --full: `fedagent why` reads it."
        ),
    ] = None,
    sets: Sets = None,
    plot: Plot = None,
    as_json: options.AsJson = False,
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
        from .full import show_full  # noqa: PLC0415 - heavy imports

        with _fixable():
            if folder is not None:
                folder = places.empty_folder(folder, hint="name another folder with --dir")
            show_full(made, name, seed, folder=folder, as_json=as_json)
        return
    if folder is not None:
        raise UsageError("--dir needs --full", "add --full, or leave it out")
    if made.of_streams and name == "all":
        raise UsageError("`all` is not a single pair", "use `testbed compare`, or name a pair")
    from fedagent_testbed import study  # noqa: PLC0415 - heavy imports

    with _playing(1, None, quiet=as_json) as how:
        result = study.compare(made, [name], seeds=1, first_seed=seed, expand=False, **how)
    _show_comparison(result, plot, as_json=as_json)


def compare(
    recipe: OptionalRecipe = None,
    *,
    worlds: Worlds = None,
    policies: Policies = None,
    seeds: Seeds = 5,
    first_seed: Annotated[int, command_line.Option(min=0, help="The first seed.")] = 0,
    jobs: Jobs = None,
    ray: Ray = None,
    sets: SetsInEach = None,
    plot: PlotOfWorlds = None,
    as_json: options.AsJson = False,
) -> None:
    """Run policies on the same seeds: means with 95 % intervals, regret, fairness, costs.

    On one recipe, or in several worlds: --worlds shows what share of the best policy's utility
    each policy has in each world, its rank, and which devices are ordered in vain or left out.
    --policies `all` takes every policy that can play there, and lists those that cannot. In
    studies of streams a policy is ITERATIONS+PLACEMENT, e.g. by-progress+budgeted-ucb.
    """
    names = [name.strip() for name in (policies or "").split(",") if name.strip()]
    if policies is not None and not names:
        raise UsageError("--policies is empty", "leave it out for the recipe's")
    _check_plot(plot)
    if (recipe is None) == (worlds is None):
        problem = (
            "no recipe to compare on is given"
            if recipe is None
            else "a recipe and --worlds cannot be combined"
        )
        raise UsageError(problem, "name a recipe, or --worlds (see `fedagent testbed recipes`)")
    from fedagent_testbed import study  # noqa: PLC0415 - heavy imports

    if recipe is None:
        chosen = [name.strip() for name in str(worlds).split(",") if name.strip()]
        if not chosen:
            raise UsageError("--worlds is empty", "give `all`, or names from `testbed recipes`")
        with _playing(jobs, ray, quiet=as_json) as how:
            matrix = study.compare_worlds(
                chosen, names, sets=sets or (), seeds=seeds, first_seed=first_seed, **how
            )
        _show_matrix(matrix, plot, as_json=as_json)
        return
    made = _recipe(recipe, sets)
    with _playing(jobs, ray, quiet=as_json) as how:
        result = study.compare(made, names, seeds=seeds, first_seed=first_seed, **how)
    _show_comparison(result, plot, as_json=as_json)


def recipes(*, as_json: options.AsJson = False) -> None:
    """List the recipes that come with the testbed."""
    from fedagent_testbed.study import load_recipe, recipe_names  # noqa: PLC0415 - heavy imports

    made = [load_recipe(name) for name in recipe_names()]
    if as_json:
        emit({"recipes": [{"name": one.name, "about": one.world.about} for one in made]})
        return
    table(
        ("recipe", "rounds", "about"),
        [(one.name, one.rounds.count, one.world.about) for one in made],
    )


def _recipe(name: str, sets: list[str] | None) -> "TestbedRecipe":
    from fedagent_task.errors import RecipeError  # noqa: PLC0415 - heavy imports
    from fedagent_testbed.study import load_recipe  # noqa: PLC0415

    try:
        return load_recipe(name, sets or ())
    except RecipeError as error:
        raise UsageError(f"recipe: {error}") from error


class _How(TypedDict):
    jobs: int
    pool: "_RayPool | None"
    done: "Done"


@contextmanager
def _playing(jobs: int | None, ray: str | None, *, quiet: bool) -> Iterator[_How]:
    """Yield on what runs are played, and who is told; errors are of what the user can fix."""
    from psutil import cpu_count  # noqa: PLC0415 - heavy imports belong to the command

    with _fixable(), _ray_pool(ray) as pool, _progress(quiet=quiet) as done:
        yield {"jobs": jobs or cpu_count() or 1, "pool": pool, "done": done}


class _RayPool:
    """Submits every run as a task of its own; the cluster needs fedagent installed."""

    def submit(self, job: "Job", /, *args: object) -> "Future[History]":
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
def _fixable() -> "Iterator[None]":
    """Make one line of whatever the user can fix."""
    from fedagent_coordinator.errors import PolicyError  # noqa: PLC0415 - heavy imports
    from fedagent_protocol.errors import RegistryError  # noqa: PLC0415
    from fedagent_task.errors import DatasetError, RecipeError  # noqa: PLC0415
    from fedagent_testbed.study.jobs import WorkerLostError  # noqa: PLC0415

    try:
        yield
    except DatasetError as error:
        raise MissingError(str(error)) from error
    except WorkerLostError as error:
        raise KilledError(str(error.args[0]), error.hint) from error
    except (PolicyError, RegistryError, RecipeError) as error:
        raise UsageError(str(error)) from error


@contextmanager
def _progress(*, quiet: bool) -> "Iterator[Done]":
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
        from fedagent_cli.drawing import check_plot  # noqa: PLC0415 - heavy imports

        check_plot(plot)


def _show_comparison(result: "Comparison", plot: Path | None, *, as_json: bool) -> None:
    from fedagent_testbed.study.comparison import notes_of, rows_of  # noqa: PLC0415 - heavy imports

    def draw(path: Path) -> None:
        from .plots import write_plots  # noqa: PLC0415 - optional package

        write_plots(result, path)

    def tell() -> None:
        aligned(rows_of(result))
        for line in notes_of(result):
            echo(line)

    _show(result.record, tell, draw, plot, as_json=as_json)


def _show_matrix(matrix: "Matrix", plot: Path | None, *, as_json: bool) -> None:
    from .worlds import print_matrix, write_matrix  # noqa: PLC0415 - heavy imports

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
