"""`status`, `rounds`, `devices` and `ledger`: what a run has done, read beside it."""

import sys
from collections.abc import Mapping
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from . import options, places
from .errors import UnbalancedError
from .output import credits_text, emit, say, table

if TYPE_CHECKING:
    from fedagent_coordinator.audit import Balance
    from fedagent_coordinator.reader import Run
    from fedagent_coordinator.situation import Situation

ledger_app = typer.Typer(name="ledger", help="Read and check the ledger.", no_args_is_help=True)
WAITING = {
    "edges": "for edges",
    "agents": "for agents that want to train",
    "declined": "the agents have just declined",
    "features": "for agents to measure what the policy needs",
    "prices": "every agent asks more than an edge may spend",
    "rents": "for an edge whose rent can be paid",
}
"""Words for the reasons of docs/coordinator.md, A round."""
Last = Annotated[int, typer.Option(min=0, help="How many of the newest; 0 for all.")]


class Format(StrEnum):
    """How the ledger leaves the database."""

    CSV = "csv"
    JSONL = "jsonl"


def mount(app: typer.Typer, *, panel: str) -> None:
    """Add the commands to the app."""
    for command, lines in (
        (status, ("fedagent status", "fedagent status --json --data-dir /srv/coordinator")),
        (rounds, ("fedagent rounds --last 5", "fedagent rounds --last 0 --json")),
        (devices, ("fedagent devices", "fedagent devices --run 3f2a")),
    ):
        app.command(rich_help_panel=panel, epilog=options.examples(*lines))(command)
    app.add_typer(ledger_app, rich_help_panel=panel)


def status(
    *,
    data_dir: options.CoordinatorData = None,
    run: options.RunId = None,
    as_json: options.AsJson = False,
) -> None:
    """Show a run in a few lines, while the coordinator runs or afterwards."""
    from fedagent_coordinator.results import conclusion  # noqa: PLC0415 - heavy imports

    from .runs import holder, open_run, recipe_of, situation_of  # noqa: PLC0415

    folder = data_dir if data_dir is not None else places.data_dir("coordinator")
    with open_run(folder, run) as (reader, chosen):
        recipe = recipe_of(chosen)
        settled = [row for row in reader.rounds(chosen.run_id) if row.state == "done"]
        balance = reader.balance(chosen.run_id)
        edges = reader.edges(chosen.run_id)
        used = reader.updates_used(chosen.run_id)
        agents = reader.devices(chosen.run_id)
        rents = sum(reader.rents(chosen.run_id).values())
        final = reader.last_global(chosen.run_id)
    ended = conclusion(
        chosen.end_reason or "",
        placed=recipe is not None and recipe.placement.name != "coordinator",
        rent_micro=rents,
        rounds_done=len(settled),
        model=final.digest if final else "",
    )
    judged = [row.metrics["accuracy"] for row in settled if "accuracy" in row.metrics]
    pid = holder(folder)
    now = situation_of(folder, chosen) if pid is not None else None
    record = {
        "run": chosen.run_id,
        "recipe": recipe.name if recipe else chosen.recipe_digest,
        "policy": settled[-1].policy if settled else recipe.policy.name if recipe else None,
        "running": pid is not None,
        "ended": chosen.ended_ms is not None,
        "end_reason": chosen.end_reason,
        "conclusion": ended,
        "rounds_done": len(settled),
        "rounds": recipe.rounds.count if recipe else None,
        "accuracy": judged[-1] if judged else None,
        "spent": balance.settled_micro,
        "rents": rents,
        "reserved": balance.reserved_micro,
        "agents": len(agents),
        "edges": len(edges),
        "edges_live": now.edges_live if now else None,
        "waiting": now.waiting if now else None,
        "updates_used": used,
    }
    if as_json:
        emit(record)
        return
    _say_status(chosen, record, balance, rents=rents, now=now, pid=pid)


def _say_status(
    chosen: "Run",
    record: Mapping[str, object],
    balance: "Balance",
    *,
    rents: int,
    now: "Situation | None",
    pid: int | None,
) -> None:
    """Say in a few lines what `status` found."""
    process = f"coordinator runs (process {pid})" if pid else "coordinator does not run"
    ended = f"ended: {record['conclusion'] or chosen.end_reason}"
    accuracy = record["accuracy"]
    say(f"run       {chosen.run_id[:12]}  {record['recipe']}, policy {record['policy']}")
    say(f"state     {ended if chosen.ended_ms else process}")
    if now is not None and now.waiting:
        say(f"waiting   {WAITING.get(now.waiting, now.waiting)}{now.detail and ': ' + now.detail}")
    say(
        f"rounds    {record['rounds_done']} of {record['rounds'] or '?'}, "
        f"{record['updates_used']} updates used"
    )
    say(f"accuracy  {'not measured yet' if accuracy is None else f'{accuracy:.3f}'}")
    say(
        f"spent     {credits_text(balance.settled_micro)} credits, "
        f"{credits_text(balance.reserved_micro)} reserved"
        + (f"; {credits_text(rents)} of it rents" if rents else "")
    )
    live = f", {now.edges_live} of them live" if now is not None else ""
    say(f"seen      {record['agents']} agents, {record['edges']} edges{live}")


def rounds(
    *,
    last: Last = 20,
    data_dir: options.CoordinatorData = None,
    run: options.RunId = None,
    as_json: options.AsJson = False,
) -> None:
    """Show the newest rounds: who came in time, what it cost, how long it took."""
    from .runs import open_run  # noqa: PLC0415 - heavy imports

    with open_run(data_dir, run) as (reader, chosen):
        found = reader.rounds(chosen.run_id, last=last or None)
        names = {edge: name or edge for edge, name in reader.edges(chosen.run_id).items()}
    if as_json:
        emit({"run": chosen.run_id, "rounds": [asdict(row) for row in found]})
        return
    controlled = any(row.rented or row.iterations for row in found)
    scored = any("device_score" in row.metrics for row in found)
    table(
        (
            *("round", "state", "ordered", "in time", "used", "accuracy"),
            *(("on devices",) if scored else ()),
            *("spent", "seconds"),
            *(("rho", "edge", "rent") if controlled else ()),
            "why",
        ),
        (
            (
                row.round,
                row.state,
                row.ordered,
                row.in_time,
                row.used,
                row.metrics.get("accuracy"),
                *((row.metrics.get("device_score"),) if scored else ()),
                credits_text(row.paid_micro),
                sum(row.timing_ms.values()) / 1000 if row.timing_ms else None,
                *(
                    (
                        row.iterations or "-",
                        names.get(row.rented, "-"),
                        credits_text(row.rent_micro),
                    )
                    if controlled
                    else ()
                ),
                row.reason,
            )
            for row in found
        ),
        unless={"state": "done", "why": ""},
    )


def devices(
    *,
    data_dir: options.CoordinatorData = None,
    run: options.RunId = None,
    as_json: options.AsJson = False,
) -> None:
    """Show every agent of the run: how often ordered, in time, used, and paid."""
    from .runs import open_run  # noqa: PLC0415 - heavy imports

    with open_run(data_dir, run) as (reader, chosen):
        found = reader.devices(chosen.run_id)
    if as_json:
        emit({"run": chosen.run_id, "devices": [asdict(row) for row in found]})
        return
    table(
        ("agent", "name", "ordered", "in time", "used", "paid", "last round", "last outcome"),
        (
            (
                row.agent,
                row.label or "-",
                row.selected,
                row.in_time,
                row.used,
                credits_text(row.paid_micro),
                row.last_round,
                row.last_status,
            )
            for row in found
        ),
    )


@ledger_app.command(
    "show",
    epilog=options.examples("fedagent ledger show", "fedagent ledger show --last 100 --json"),
)
def ledger_show(
    *,
    last: Last = 20,
    data_dir: options.CoordinatorData = None,
    run: options.RunId = None,
    as_json: options.AsJson = False,
) -> None:
    """Show the newest entries of a run, newest first."""
    from .runs import open_run  # noqa: PLC0415 - heavy imports

    with open_run(data_dir, run) as (reader, chosen):
        found = reader.ledger.show(run_id=chosen.run_id, limit=last or -1)
    if as_json:
        entries = [
            {**asdict(entry), "prev_hash": entry.prev_hash.hex(), "hash": entry.hash.hex()}
            for entry in found
        ]
        emit({"run": chosen.run_id, "entries": entries})
        return
    table(
        ("entry", "round", "kind", "from", "to", "credits"),
        (
            (
                entry.seq,
                entry.round,
                entry.kind,
                entry.source,
                entry.target,
                credits_text(entry.amount_micro),
            )
            for entry in found
        ),
    )


@ledger_app.command(
    "verify",
    epilog=options.examples("fedagent ledger verify", "fedagent ledger verify --json"),
)
def ledger_verify(
    *, data_dir: options.CoordinatorData = None, as_json: options.AsJson = False
) -> None:
    """Check every entry: sums, reservations, outcomes, and the hash chain.

    Exit code 41 if anything is wrong; each problem is one line.
    """
    from .runs import open_run  # noqa: PLC0415 - heavy imports

    with open_run(data_dir) as (reader, _):
        report = reader.ledger.verify()
    if as_json:
        emit({"ledger_balanced": report.balanced, **asdict(report)})
        if not report.balanced:
            raise typer.Exit(UnbalancedError.exit_code)
        return
    for problem in report.problems:
        sys.stderr.write(f"{problem}\n")
    if not report.balanced:
        raise UnbalancedError(
            f"the ledger has {len(report.problems)} problems in {report.entries} entries",
            "stop the coordinator and restore the newest whole copy of its data directory",
        )
    say(
        f"balanced: {report.entries} entries, {credits_text(report.granted_micro)} credits granted "
        f"= {credits_text(report.free_micro)} free + {credits_text(report.reserved_micro)} "
        f"reserved + {credits_text(report.settled_micro)} paid; the hash chain is whole"
    )


@ledger_app.command(
    "export",
    epilog=options.examples(
        "fedagent ledger export > ledger.csv", "fedagent ledger export --format jsonl --out l.jsonl"
    ),
)
def ledger_export(
    *,
    out: Annotated[
        Path | None, typer.Option(help="File to write.", show_default="standard output")
    ] = None,
    style: Annotated[Format, typer.Option("--format", help="CSV or JSON lines.")] = Format.CSV,
    data_dir: options.CoordinatorData = None,
    as_json: options.AsJson = False,
) -> None:
    """Export every entry, oldest first, with hashes in hex.

    With --json the entries go to --out, and the result is the only line.
    """
    from .errors import UsageError  # noqa: PLC0415 - only here
    from .runs import open_run  # noqa: PLC0415 - heavy imports

    if as_json and out is None:
        raise UsageError("--json leaves standard output to the result", "add --out FILE")
    count = 0
    with open_run(data_dir) as (reader, _):
        lines = reader.ledger.export("csv" if style is Format.CSV else "json")
        if out is None:
            sys.stdout.writelines(lines)
            return
        with out.open("w", encoding="utf-8", newline="") as file:
            for line in lines:
                file.write(line)
                count += 1
    count -= style is Format.CSV
    if as_json:
        emit({"out": str(out), "entries": count})
    else:
        say(f"{out}: {count} entries")
