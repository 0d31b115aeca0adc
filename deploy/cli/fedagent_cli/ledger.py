"""`fedagent ledger`: the entries of a run, whether they add up, and all of them as a file."""

import sys
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated

from . import command_line, options
from .errors import UnbalancedError, UsageError
from .output import credits_text, echo, emit, table, writing

app = command_line.CommandGroup(
    name="ledger", help="Read and check the ledger.", no_args_is_help=True
)


class LedgerFormat(StrEnum):
    """Kinds of files."""

    CSV = "csv"
    JSONL = "jsonl"


@app.command(
    "show",
    epilog=options.examples("fedagent ledger show", "fedagent ledger show --last 100 --json"),
)
def ledger_show(
    *,
    last: options.Last = 20,
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
        ((e.seq, e.round, e.kind, e.source, e.target, credits_text(e.amount_micro)) for e in found),
    )


@app.command(
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
        raise command_line.Exit(0 if report.balanced else UnbalancedError.exit_code)
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


@app.command(
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
        with writing(out), out.open("w", encoding="utf-8", newline="") as file:
            for line in lines:
                file.write(line)
                count += 1
    count -= style is LedgerFormat.CSV
    if as_json:
        emit({"out": str(out), "entries": count})
    else:
        echo(f"{out}: {count} entries")
