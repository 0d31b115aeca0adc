"""`fedagent testbed learn-world`: a world for `compare`, fitted to a recorded run."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from fedagent_cli import command_line, options
from fedagent_cli.errors import UnsupportedError, UsageError
from fedagent_cli.output import echo, emit, writing

if TYPE_CHECKING:
    from fedagent_testbed.worlds.learnt import Learnt

Run = Annotated[
    str | None,
    command_line.Argument(
        metavar="RUN",
        help="A folder of demos, a study or a coordinator, or the start of a run's id.",
    ),
]
MAX_CREDITS = 1e9
"""What a recipe of the testbed takes for no limit at all."""
COMPARED = ("adaptive", "linucb", "round-robin", "cheapest", "random")


def learn_world(
    run: Run = None,
    *,
    out: Annotated[
        Path,
        command_line.Option(
            help="Recipe file to write; the world is written next to it, as .world."
        ),
    ] = Path("learnt.toml"),
    data_dir: options.CoordinatorData = None,
    as_json: options.AsJson = False,
) -> None:
    """Fit a world to a recorded run, and write a recipe to compare policies in it.

    Rates, prices and willingness are dealt anew as they were recorded. Whether an order is in
    time, and how long it takes, is drawn from what the run's orders showed of devices, edges and
    features, with what goes wrong together. Nobody is ordered.
    """
    from fedagent_cli.replay import opened  # noqa: PLC0415 - heavy imports
    from fedagent_coordinator.database.models import recipe_in  # noqa: PLC0415
    from fedagent_task.spec import MICRO  # noqa: PLC0415
    from fedagent_testbed.fit_world import TooShortError, fit_world, never_ordered  # noqa: PLC0415
    from fedagent_testbed.worlds.learnt import write_learnt  # noqa: PLC0415

    if out.suffix != ".toml":
        raise UsageError(f"{out} is not a recipe file", "name a .toml file with --out")
    with opened(run, data_dir) as (reader, chosen):
        try:
            tape = fit_world(reader.logged(chosen.run_id))
        except TooShortError as error:
            raise UnsupportedError(error.sentence, error.hint) from error
    recipe = recipe_in(chosen.recipe)
    budget = MAX_CREDITS if recipe is None else recipe.budget.per_edge_micro / MICRO
    world = out.with_suffix(".world").expanduser().resolve()
    with writing(out, what="to "):
        write_learnt(tape, world)
        out.write_text(_recipe(tape, world, chosen.run_id, budget), encoding="utf-8")
    guessed = never_ordered(tape)
    edge, own, stays = tape.together.tolist()
    if as_json:
        facts = {"rounds": tape.rounds, "clients": len(tape.client), "edges": len(tape.edge)}
        together = {"edge": edge, "client": own, "stays": stays}
        record = {"run": chosen.run_id, "recipe": str(out), "world": str(world), **facts}
        emit({**record, "never_ordered": guessed, "together": together})
        return
    echo(f"run {chosen.run_id[:8]}: {tape.rounds} rounds, {len(tape.client)} devices")
    echo(
        f"  what goes together: {edge:.2f} at an edge in a round, {own:.2f} in a device over rounds"
    )
    if guessed:
        echo(f"  {guessed} devices were never ordered: the mean of the others is used for them")
    echo(f"{out}: written; next: fedagent testbed compare {out}")


def _recipe(tape: "Learnt", world: Path, run_id: str, budget: float) -> str:
    names = ", ".join(f'"{name}"' for name in COMPARED)
    return (
        f'name = "learnt-{run_id[:8]}"\n'
        f'about = "A world learnt from {tape.rounds} rounds of run {run_id[:8]}."\n'
        'world = "learnt"\n'
        f"clients = {len(tape.client)}\nedges = {len(tape.edge)}\ncompare = [{names}]\n\n"
        f"[rounds]\ncount = {tape.rounds}\n\n"
        f"[budget]\nper_edge = {min(budget, MAX_CREDITS):.6f}\n\n"
        f"[learnt]\nfile = '{world}'\n"
    )
