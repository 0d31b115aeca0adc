"""`opinions`: what clients think of a run's models, or who volunteered after each."""

from collections.abc import Sequence
from pathlib import Path

import click

from fedagent_cli import options
from fedagent_cli.command_line import Number
from fedagent_cli.errors import MissingError
from fedagent_cli.output import echo, emit, table
from fedagent_cli.read.runs import open_run, recipe_of
from fedagent_coordinator.books.evaluations import ModelEvaluation

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
        "fedagent opinions",
        "fedagent opinions --round 12",
        "fedagent opinions --client kitchen --last 0",
    )
)
@click.option(
    "--round",
    "round_",
    type=Number(int, min=0),
    help="Show one model only: that of this round; 0 is the initial one.",
)
@click.option(
    "--client", metavar="NAME", help="Show one client only: its name, or the start of its id."
)
@options.last
@options.coordinator_data
@options.run_id
@options.as_json
def opinions(
    *,
    round_: int | None,
    client: str | None,
    last: int,
    data_dir: Path | None,
    run: str | None,
    as_json: bool,
) -> None:
    """Show what clients think of the models, or who volunteered to train.

    A row for each model that was evaluated; round 0 is the one that the run began with.
    """
    with open_run(data_dir, run) as (reader, chosen):
        first = reader.evaluations.first_of(chosen.run_id, last, round_)
        with reader.whole(chosen.run_id, first=first) as near:
            whole = near.evaluations.answered(chosen.run_id)
        names = {row.agent: row.name for row in reader.devices(chosen.run_id)}
        recipe = recipe_of(chosen)
    rows = _chosen(whole, round_) if round_ is not None else whole[-last:]
    agent = None if client is None else agent_named(names, client)
    if as_json:
        kept = rows if agent is None else [row for row in rows if _speaks(row, agent)]
        clients = {agent: names[agent]} if agent is not None else names
        records = [_record(row, agent) for row in kept]
        emit({"run": chosen.run_id, "clients": clients, "evaluations": records})
    elif not whole:
        echo(UNASKED if recipe is None or recipe.opinions.mode in ("auto", "off") else NOT_YET)
    elif agent is not None:
        _show_client(rows, agent, names[agent])
    elif round_ is not None:
        _show_round(rows[0], names)
    else:
        _show(rows, names)


def _chosen(rows: Sequence[ModelEvaluation], round_: int) -> list[ModelEvaluation]:
    found = [row for row in rows if row.round == round_]
    if not found:
        evaluated = ", ".join(str(row.round) for row in rows[-5:]) or "none"
        raise MissingError(
            f"the model of round {round_} was not evaluated",
            f"the newest evaluated ones: {evaluated}",
        )
    return found


def agent_named(names: Names, wanted: str) -> str:
    """Return the id of the one agent that has this name, or an id that begins so."""
    found = [agent for agent, name in names.items() if name == wanted]
    found = found or [agent for agent in names if wanted and agent.startswith(wanted)]
    if len(found) != 1:
        known = ", ".join(list(names.values())[:10]) or "none"
        many = "more than one client is" if found else "no client is"
        raise MissingError(f"{many} {wanted!r}", f"there are: {known}; or give the id")
    return found[0]


def _speaks(row: ModelEvaluation, agent: str) -> bool:
    return agent in row.scores or agent in row.volunteers


def _record(row: ModelEvaluation, agent: str | None) -> dict[str, object]:
    record = row.record()
    if agent is not None:
        for name in ("scores", "samples", "epsilons"):
            column = getattr(row, name)
            record[name] = {agent: column[agent]} if agent in column else {}
        record["volunteers"] = [agent] if agent in row.volunteers else []
    return record


def _show(rows: Sequence[ModelEvaluation], names: Names) -> None:
    reported = [row for row in rows if row.mode != "peers"]
    volunteered = [row for row in rows if row.mode == "peers"]
    if reported:
        _show_reported(reported)
    if volunteered:
        _show_volunteers(volunteered, names)
    newest = rows[-MATRIX:]
    known = [agent for agent in names if any(_speaks(row, agent) for row in rows)]
    echo()
    table(
        ("client", *(f"r{row.round}" for row in newest), "volunteered" if volunteered else "mean"),
        (
            (names[agent], *(_cell(row, agent) for row in newest), _whole(rows, agent))
            for agent in known
        ),
    )
    if volunteered:
        echo(PRIVATE)


def _show_reported(rows: Sequence[ModelEvaluation]) -> None:
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


def _show_round(row: ModelEvaluation, names: Names) -> None:
    if row.mode == "peers":
        _show_volunteers([row], names)
        echo(PRIVATE)
        return
    order = sorted(row.scores, key=lambda agent: (-row.scores[agent], names.get(agent, agent)))
    table(
        ("client", row.metric or "opinion", "samples", "epsilon"),
        (
            (names.get(a, a[:8]), row.scores[a], row.samples[a], row.epsilons.get(a, 0.0))
            for a in order
        ),
        unless={"epsilon": 0.0},
    )
    missing = f"; missing: {row.missing}" if row.missing else ""
    echo(
        f"round {row.round}: {row.answered} of {row.asked} answered in {row.seconds:.2f} s{missing}"
    )


def _show_client(rows: Sequence[ModelEvaluation], agent: str, name: str) -> None:
    if any(row.mode == "peers" for row in rows):
        table(
            ("round", "slot", f"{name} volunteered"),
            ((row.round, row.slot, agent in row.volunteers) for row in rows),
        )
        echo(PRIVATE)
        return
    table(
        ("round", "slot", name, "mean of all", "samples", "epsilon"),
        (
            (
                *(row.round, row.slot, row.scores.get(agent), row.mean),
                *(row.samples.get(agent), row.epsilons.get(agent, 0.0)),
            )
            for row in rows
        ),
        unless={"epsilon": 0.0},
    )


def _cell(row: ModelEvaluation, agent: str) -> str:
    if row.mode == "peers":
        return "x" if agent in row.volunteers else "."
    score = row.scores.get(agent)
    return "." if score is None else f"{score:.2f}"


def _whole(rows: Sequence[ModelEvaluation], agent: str) -> object:
    if any(row.mode == "peers" for row in rows):
        return sum(agent in row.volunteers for row in rows)
    scores = [row.scores[agent] for row in rows if agent in row.scores]
    return sum(scores) / len(scores) if scores else None
