"""What a run has done, read beside it: `rounds` and `ledger` here, the other commands mounted."""

import sys
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated

from . import command_line, options
from .devices import devices
from .errors import UnbalancedError, UsageError
from .output import credits_text, echo, emit, table
from .status import runs, status

ledger_app = command_line.CommandGroup(
    name="ledger", help="Read and check the ledger.", no_args_is_help=True
)
Last = Annotated[int, command_line.Option(min=0, help="How many of the newest; 0 for all.")]


class LedgerFormat(StrEnum):
    """How the ledger leaves the database."""

    CSV = "csv"
    JSONL = "jsonl"


def mount(app: command_line.CommandGroup, *, panel: str) -> None:
    """Add the commands to the app."""
    for command, lines in (
        (status, ("fedagent status", "fedagent status --json --data-dir /srv/coordinator")),
        (rounds, ("fedagent rounds --last 5", "fedagent rounds --last 0 --json")),
        (devices, ("fedagent devices", "fedagent devices --run 3f2a")),
        (runs, ("fedagent runs", "fedagent runs --json --data-dir /srv/coordinator")),
    ):
        app.command(panel=panel, epilog=options.examples(*lines))(command)
    app.add_group(ledger_app, panel=panel)


def rounds(
    *,
    last: Last = 20,
    data_dir: options.CoordinatorData = None,
    run: options.RunId = None,
    as_json: options.AsJson = False,
) -> None:
    """Show the newest rounds: who came in time, what it cost, how long it took."""
    from .figures import columns  # noqa: PLC0415 - heavy imports
    from .runs import open_run  # noqa: PLC0415

    with open_run(data_dir, run) as (reader, chosen):
        found = reader.rounds(chosen.run_id, last=last or None)
        shown = columns(reader.models.measures(chosen.run_id), (row.metrics for row in found))
        names = {edge: name or edge for edge, name in reader.edges(chosen.run_id).items()}
    if as_json:
        emit({"run": chosen.run_id, "rounds": [asdict(row) for row in found]})
        return
    controlled = any(row.rented or row.iterations for row in found)
    table(
        (
            *("round", "state", "ordered", "in time", "used"),
            *(one.word for one in shown),
            *("spent", "seconds"),
            *(("rho", "edge", "rent") if controlled else ()),
            "reason",
        ),
        (
            (
                row.round,
                row.state,
                row.ordered,
                row.in_time,
                row.used,
                *(row.metrics.get(one.key) for one in shown),
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
        unless={"state": "done", "reason": ""},
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
            raise command_line.Exit(UnbalancedError.exit_code)
        return
    for problem in report.problems:
        sys.stderr.write(f"{problem}\n")
    if not report.balanced:
        raise UnbalancedError(
            f"the ledger has {len(report.problems)} problems in {report.entries} entries",
            "stop the coordinator and restore the newest whole copy of its data directory",
        )
    echo(
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
        Path | None, command_line.Option(help="File to write.", show_default="standard output")
    ] = None,
    style: Annotated[
        LedgerFormat, command_line.Option("--format", help="CSV or JSON lines.")
    ] = LedgerFormat.CSV,
    data_dir: options.CoordinatorData = None,
    as_json: options.AsJson = False,
) -> None:
    """Export every entry, oldest first, with hashes in hex.

    With --json the entries go to --out, and the result is the only line.
    """
    from .runs import open_run  # noqa: PLC0415 - heavy imports

    if as_json and out is None:
        raise UsageError("--json leaves standard output to the result", "add --out FILE")
    count = 0
    with open_run(data_dir) as (reader, _):
        lines = reader.ledger.export("csv" if style is LedgerFormat.CSV else "json")
        if out is None:
            sys.stdout.writelines(lines)
            return
        try:
            with out.open("w", encoding="utf-8", newline="") as file:
                for line in lines:
                    file.write(line)
                    count += 1
        except OSError as error:
            problem = f"cannot write {out}: {error.strerror or error}"
            raise UsageError(problem, "name another file") from error
    count -= style is LedgerFormat.CSV
    if as_json:
        emit({"out": str(out), "entries": count})
    else:
        echo(f"{out}: {count} entries")
