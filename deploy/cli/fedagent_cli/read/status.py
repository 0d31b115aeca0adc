"""`fedagent status`: one run in a few lines; its rounds, every run, and its live page."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from fedagent_cli import options
from fedagent_cli.command_line import Number
from fedagent_cli.errors import UsageError
from fedagent_cli.output import credits_text, echo, emit, rounds_text
from fedagent_cli.read.run_tables import show_rounds, show_runs
from fedagent_cli.read.runs import (
    is_running,
    metric_line,
    next_round_s,
    open_run,
    recipe_of,
    run_status_of,
)
from fedagent_cli.read.spending import epsilon_of, epsilon_text
from fedagent_cli.site.devices import SeenDevice, print_reasons, seen_devices
from fedagent_coordinator.books.reader import Reader
from fedagent_coordinator.books.rows import RunRow
from fedagent_coordinator.picture.status_files import RunStatus
from fedagent_coordinator.picture.summary import RunSummary, summarize
from fedagent_node.data_dir import holder_of

WAITING = {
    "edges": "for edges",
    "agents": "for agents",
    "declined": "the agents have just declined",
    "features": "for agents to report the features that the policy needs",
    "prices": "every agent asks more than an edge may spend",
    "budget": "every agent that is heard asks more than the run has left (budget.total)",
    "rents": "for an edge whose rent can be paid",
    "statistics": "for the devices' sample statistics (data.standardize)",
}
"""Words for the reasons of docs/coordinator.md, A round."""
MAX_NAMED = 5
"""Agents that decline, a line each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """A run as it stands: in one record for programs, and in lines for people."""

    run: RunRow
    record: dict[str, object]
    lines: list[str]
    now: RunStatus | None
    agents: list[SeenDevice]


def standing(reader: Reader, chosen: RunRow) -> Standing:
    """Return how a run stands."""
    agents = seen_devices(reader, chosen)
    summary, folder = summarize(reader, chosen), reader.folder
    pid = holder_of(folder)
    now = run_status_of(folder, chosen) if pid is not None else None
    live = _live(folder, agents, now)
    recipe, released = recipe_of(chosen), max((one.released for one in agents), default=0)
    live["epsilon"] = epsilon_of(recipe, released)
    good = metric_line(summary.measures, summary.metrics)
    lines = list(_status_lines(summary, live, now=now, pid=pid, good=good))
    if spent := epsilon_text(recipe, released):
        lines.append(f"privacy   a device has spent at most epsilon {spent}")
    record = {**summary.record(), "edges": len(summary.edges), **live}
    return Standing(run=chosen, record=record, lines=lines, now=now, agents=agents)


@click.command(
    epilog=options.examples(
        "fedagent status",
        "fedagent status --watch",
        "fedagent status --rounds 5",
        "fedagent status --all --json",
        "fedagent status --json --data-dir /srv/coordinator",
    )
)
@click.option("--watch", is_flag=True, help="Keep running: a live view, or one line per event.")
@click.option(
    "--rounds",
    type=Number(int, min=0),
    help="Show this many of the newest rounds; 0 for all: updates in time, cost and duration.",
)
@click.option("--all", "every", is_flag=True, help="List every run of the coordinator.")
@click.option("--page", is_flag=True, help="Print the link to the live page, with its token.")
@options.coordinator_data
@options.run_id
@options.as_json
def status(
    *,
    watch: bool,
    rounds: int | None,
    every: bool,
    page: bool,
    data_dir: Path | None,
    run: str | None,
    as_json: bool,
) -> None:
    """Show the state of a run in a few lines, during the run or afterwards.

    The token of --page lets its holder see the run, and accept devices that wait.
    """
    if watch + (rounds is not None) + every + page > 1:
        raise UsageError(
            "--watch, --rounds, --all and --page cannot be combined", "give one of them"
        )
    if watch:
        from fedagent_cli.read.watching import watch_run  # noqa: PLC0415 - it imports this module

        watch_run(data_dir, run, as_json=as_json)
    elif rounds is not None:
        show_rounds(data_dir, run, last=rounds, as_json=as_json)
    elif every:
        show_runs(data_dir, as_json=as_json)
    elif page:
        from fedagent_cli.read.page import show_page  # noqa: PLC0415 - the extra `web`

        show_page(data_dir, as_json=as_json)
    else:
        _show(data_dir, run, as_json=as_json)


def _show(data_dir: Path | None, run: str | None, *, as_json: bool) -> None:
    with open_run(data_dir, run) as (reader, chosen):
        found = standing(reader, chosen)
    if as_json:
        emit(found.record)
        return
    for line in found.lines:
        echo(line)
    print_reasons(found.agents, most=MAX_NAMED)


def _live(folder: Path, agents: Sequence[SeenDevice], now: RunStatus | None) -> dict[str, object]:
    """Return what a coordinator that runs sees; None where none does."""

    def reasons(field: str) -> list[dict[str, str]]:
        given = [(one, str(getattr(one, field))) for one in agents if getattr(one, field)]
        return [{"agent": one.agent, "name": one.name, "reason": why} for one, why in given]

    return {
        "running": is_running(folder),
        "agents": len(agents),
        "agents_live": sum(bool(one.online) for one in agents) if now else None,
        "declining": reasons("reason"),
        "warnings": reasons("note"),
        "edges_live": now.edges_live if now else None,
        "waiting": now.waiting if now else None,
        "found": now.found if now else None,
        "wanted": now.wanted if now else None,
        "next_round_s": next_round_s(now) if now else None,
        "other_coordinators": list(now.others) if now else [],
    }


def _status_lines(
    run: RunSummary,
    live: Mapping[str, Any],
    *,
    now: RunStatus | None,
    pid: int | None,
    good: tuple[str, str],
) -> Iterator[str]:
    process = f"coordinator is running (process {pid})" if pid else "coordinator is not running"
    if live["running"] is None:
        process = "only its owner can see whether the coordinator is running"
    ended = f"ended: {run.conclusion or run.reason}"
    yield f"run       {run.run[:12]}  {run.recipe}, policy {run.policy}"
    yield f"state     {ended if run.ended_ms else process}"
    if now is not None and now.waiting:
        what = WAITING.get(now.waiting, now.waiting)
        count = f"{now.found} of {now.wanted}" if now.wanted else now.detail
        yield f"waiting   {what}{count and ': ' + count}"
    for other in now.others if now is not None else ():
        yield f"beside    another coordinator of this site, {other}: stop one, or change its --site"
    if run.origin:
        yield f"began     from model {run.origin[:12]}"
    rounds = rounds_text(run.rounds_done, run.rounds_wanted)
    yield f"rounds    {rounds}, {run.updates_used} updates used"
    if live["next_round_s"] is not None:
        yield f"next      round in {live['next_round_s']:.0f} s"
    yield f"{good[0]:10}{good[1]}"
    yield (
        f"spent     {credits_text(run.spent_micro)} credits, "
        f"{credits_text(run.reserved_micro)} reserved"
        + (f"; {credits_text(run.rent_micro)} of it for rents" if run.rent_micro else "")
    )
    here = f"{live['agents_live']} live of " if now is not None else ""
    yield f"agents    {here}{live['agents']} seen"
    here = f"{now.edges_live} live of " if now is not None else ""
    yield f"edges     {here}{len(run.edges)} seen"
