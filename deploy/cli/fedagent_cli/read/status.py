"""`fedagent status`: one run in a few lines; its rounds, every run, and its live page."""

import socket
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from urllib.parse import urlsplit

import click

from fedagent_cli import options, places
from fedagent_cli.command_line import Number
from fedagent_cli.errors import UsageError, no_run
from fedagent_cli.extras import draw_qr
from fedagent_cli.output import echo, emit, moment, number_text, rounds_text, table
from fedagent_coordinator.books.queries import Queries
from fedagent_coordinator.books.rows import RoundRow
from fedagent_coordinator.picture.status_files import Page
from fedagent_coordinator.picture.summary import RunSummary, summarize
from fedagent_node.data_dir import holder_of
from fedagent_protocol.errors import credits_text

from .look import look_at, print_reasons
from .runs import columns, is_running, open_run
from .watching import watch_run

_CONNECT_S = 2.0
MAX_NAMED = 5
"""Agents that decline, a line each."""


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
        watch_run(data_dir, run, as_json=as_json)
    elif rounds is not None:
        _show_rounds(data_dir, run, last=rounds, as_json=as_json)
    elif every:
        _show_runs(data_dir, as_json=as_json)
    elif page:
        _show_page(data_dir, as_json=as_json)
    else:
        with open_run(Queries, data_dir, run) as (reader, chosen):
            look = look_at(reader, chosen)
        if as_json:
            emit(look.record())
            return
        for line in look.lines():
            echo(line)
        print_reasons(look.agents, most=MAX_NAMED)


def _show_rounds(data_dir: Path | None, run: str | None, *, last: int, as_json: bool) -> None:
    with open_run(Queries, data_dir, run) as (reader, chosen):
        first = reader.last_round(chosen.run_id) - last + 1 if last else 1
        with reader.whole(chosen.run_id, first=first) as near:
            found = near.rounds(chosen.run_id, last=last or None)
        shown = columns(reader.models.measures(chosen.run_id), (row.metrics for row in found))
        names = {edge: name or edge for edge, name in reader.edges(chosen.run_id).items()}
    if as_json:
        emit({"run": chosen.run_id, "rounds": [asdict(row) for row in found]})
        return
    controlled = any(row.rented or row.iterations for row in found)
    more = ("rho", "edge", "rent") if controlled else ()
    table(
        (
            *("round", "state", "ordered", "in time", "used", *(one.word for one in shown)),
            *("spent", "seconds", *more, "reason"),
        ),
        (
            (
                *(row.round, row.state, row.ordered, row.in_time, row.used),
                *(row.metrics.get(one.key) for one in shown),
                credits_text(row.paid_micro),
                row.seconds if row.timing_ms else None,
                *(_controls(row, names) if controlled else ()),
                row.reason,
            )
            for row in found
        ),
        unless={"state": "done", "reason": ""},
    )


def _controls(row: RoundRow, names: Mapping[str, str]) -> tuple[object, ...]:
    return (row.iterations or "-", names.get(row.rented, "-"), credits_text(row.rent_micro))


def _show_runs(data_dir: Path | None, *, as_json: bool) -> None:
    with open_run(Queries, data_dir) as (reader, _):
        found = [summarize(reader, run) for run in reader.runs()]
    running = is_running(reader.folder)
    if as_json:
        records = [
            {**one.record(), "running": running if one.ended_ms is None else False} for one in found
        ]
        emit({"runs": records})
        return
    unended = "running" if running else "not ended"
    table(
        ("run", "recipe", "policy", "started", "ended", "rounds", "evaluated by", "spent"),
        (
            (
                *(one.run[:12], one.recipe, one.policy, moment(one.begun_ms / 1000)),
                unended if one.ended_ms is None else moment(one.ended_ms / 1000),
                rounds_text(one.rounds_done, one.rounds_wanted),
                _good(one),
                credits_text(one.spent_micro),
            )
            for one in found
        ),
    )


def _good(run: RunSummary) -> str:
    by = run.measures[0] if run.measures else None
    if by is None or by.key not in run.metrics:
        return "not measured"
    return f"{by.word} {number_text(run.metrics[by.key])}"


def _show_page(data_dir: Path | None, *, as_json: bool) -> None:
    """Print the link to the live page, with the token that opens it, and draw its QR code."""
    folder = places.coordinator_dir(data_dir)
    found = Page.read(folder)
    if found is None or not found.url or not _serves(folder, found.url):
        raise no_run(
            f"no running coordinator of {folder} serves a live page",
            "start it (`fedagent coordinator start`, without --no-web), or give --data-dir",
        )
    if as_json:
        emit({"url": found.url, "link": found.link, "fingerprint": found.fingerprint})
        return
    if sys.stdout.isatty():
        draw_qr(found.link)
    echo(found.link)
    if found.fingerprint:
        echo(
            "its certificate is self-signed; compare it in the browser: SHA-256 "
            f"{found.fingerprint}"
        )


def _serves(folder: Path, url: str) -> bool:
    """Return whether a coordinator holds the folder, and its page's address answers."""
    place = urlsplit(url)
    try:
        socket.create_connection((str(place.hostname), place.port or 0), _CONNECT_S).close()
    except OSError:
        return False
    # Another program may have the port by now: it gets no token.
    return holder_of(folder) is not None
