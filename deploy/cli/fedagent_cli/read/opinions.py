"""`opinions`: what clients think of a run's models, or who volunteered after each."""

from collections.abc import Sequence
from pathlib import Path

import click

from fedagent_cli import options
from fedagent_cli.command_line import Number
from fedagent_cli.errors import MissingError
from fedagent_cli.output import echo, emit, table
from fedagent_coordinator.books.evaluations import PEERS, ModelEvaluation
from fedagent_coordinator.books.read import Reader

from .runs import open_run, recipe_of

Names = dict[str, str]
MATRIX = 10
"""Columns of the table of clients by rounds."""
UNASKED = (
    'no model of this run was evaluated; set opinions.mode = "report" in the recipe to ask for it'
)
NOT_YET = (
    "no model has been evaluated yet; the first one is evaluated once edges and agents are "
    "connected (fedagent status)"
)
PRIVATE = "opinions never left the devices: the coordinator only knows who volunteered"


@click.command(
    epilog=options.examples(
        "fedagent opinions", "fedagent opinions --round 12", "fedagent opinions --last 0 --json"
    )
)
@click.option(
    "--round",
    "round_",
    type=Number(int, min=0),
    help="Show one model only: that of this round; 0 is the initial one.",
)
@options.last
@options.coordinator_data
@options.run_id
@options.as_json
def opinions(
    *, round_: int | None, last: int, data_dir: Path | None, run: str | None, as_json: bool
) -> None:
    """Show what clients think of the models, or who volunteered to train.

    A row for each model that was evaluated; round 0 is the one that the run began with.
    """
    with open_run(Reader, data_dir, run) as (reader, chosen):
        first = reader.evaluations.first_of(chosen.run_id, last) if round_ is None else round_
        with reader.whole(chosen.run_id, first=first) as near:
            whole = near.evaluations.answered(chosen.run_id)
        names = {row.agent: row.name for row in reader.devices(chosen.run_id)}
        recipe = recipe_of(chosen)
    rows = whole[-last:] if round_ is None else [row for row in whole if row.round == round_]
    if not rows and round_ is not None:
        evaluated = ", ".join(str(row.round) for row in whole[-5:]) or "none"
        raise MissingError(
            f"the model of round {round_} was not evaluated",
            f"the newest evaluated ones: {evaluated}",
        )
    if as_json:
        records = [row.record() for row in rows]
        emit({"run": chosen.run_id, "clients": names, "evaluations": records})
    elif not whole:
        echo(UNASKED if recipe is None or recipe.opinions.mode in ("auto", "off") else NOT_YET)
    else:
        (_show_volunteers if rows[0].mode == PEERS else _show_reported)(rows, names)


def agent_named(names: Names, wanted: str) -> str:
    """Return the id of the one agent that has this name, or an id that begins so."""
    found = [agent for agent, name in names.items() if name == wanted]
    found = found or [agent for agent in names if wanted and agent.startswith(wanted)]
    if len(found) != 1:
        shown = ", ".join(f"{names[one]} ({one[:12]})" for one in (found or list(names))[:10])
        many = "more than one client is" if found else "no client is"
        raise MissingError(f"{many} {wanted!r}", f"give the start of an id: {shown or 'none'}")
    return found[0]


def _show_reported(rows: Sequence[ModelEvaluation], names: Names) -> None:
    table(
        (
            *("round", "slot", "mean", "least", "most", "answered", "asked"),
            *("metric", "epsilon", "seconds", "missing"),
        ),
        (
            (
                *(row.round, row.slot, row.mean, row.least, row.most, row.answered, row.asked),
                *(row.metric or "-", row.epsilon, row.seconds, row.missing),
            )
            for row in rows
        ),
        unless={"missing": "", "epsilon": 0.0},
    )
    newest, lines = rows[-MATRIX:], []
    for agent, name in names.items():
        if scores := [row.scores[agent] for row in rows if agent in row.scores]:
            cells = (f"{row.scores[agent]:.2f}" if agent in row.scores else "." for row in newest)
            lines.append((name, *cells, sum(scores) / len(scores)))
    echo()
    table(("client", *(f"r{row.round}" for row in newest), "mean"), lines)


def _show_volunteers(rows: Sequence[ModelEvaluation], names: Names) -> None:
    table(
        ("round", "slot", "volunteers", "asked", "seconds", "who"),
        (
            (
                *(row.round, row.slot, row.answered, row.asked, row.seconds),
                ", ".join(names.get(agent, agent[:8]) for agent in row.volunteers) or "-",
            )
            for row in rows
        ),
    )
    echo(PRIVATE)
