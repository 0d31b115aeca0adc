"""`fedagent ledger`: the entries of a run, and whether they add up."""

import sys
from dataclasses import asdict
from pathlib import Path

import click
from click.exceptions import Exit

from fedagent_cli import options
from fedagent_cli.command_line import Group
from fedagent_cli.errors import UNBALANCED, CliError
from fedagent_cli.output import echo, emit, table
from fedagent_cli.read.runs import open_run
from fedagent_coordinator.books.read import Reader
from fedagent_protocol.errors import credits_text

app = Group(
    "ledger",
    help="Read and check the ledger.",
)


@app.command(
    "show",
    epilog=options.examples("fedagent ledger show", "fedagent ledger show --last 100 --json"),
)
@options.last
@options.coordinator_data
@options.run_id
@options.as_json
def ledger_show(*, last: int, data_dir: Path | None, run: str | None, as_json: bool) -> None:
    """Show the newest entries of a run, newest first."""
    with open_run(Reader, data_dir, run) as (reader, chosen):
        found = reader.ledger.show(run_id=chosen.run_id, limit=last or -1)
        if not last or len(found) < last:
            with reader.whole(chosen.run_id) as whole:
                found = whole.ledger.show(run_id=chosen.run_id, limit=last or -1)
    if as_json:
        emit({"run": chosen.run_id, "entries": [entry.record() for entry in found]})
        return
    table(
        ("entry", "round", "kind", "from", "to", "credits"),
        ((e.seq, e.round, e.kind, e.source, e.target, credits_text(e.amount_micro)) for e in found),
    )


@app.command(
    "verify",
    epilog=options.examples(
        "fedagent ledger verify",
        "fedagent ledger verify --full --json",
    ),
)
@click.option("--full", is_flag=True, help="Also look at every row of closed rounds.")
@options.coordinator_data
@options.as_json
def ledger_verify(*, full: bool, data_dir: Path | None, as_json: bool) -> None:
    """Check every entry: sums, reservations, outcomes, models, and the signed hash chain.

    Of closed rounds the digests, which are part of the chain, are checked; --full looks at every
    row. Exit code 41 if anything is wrong; each problem is one line.
    """
    with open_run(Reader, data_dir) as (reader, _):
        report = reader.ledger.verify(full=full)
    if as_json:
        emit({"ledger_balanced": report.balanced, **asdict(report)})
        raise Exit(0 if report.balanced else UNBALANCED)
    for problem in report.problems:
        sys.stderr.write(f"{problem}\n")
    if not report.balanced:
        raise CliError(
            f"the ledger has {len(report.problems)} problems in {report.entries} entries",
            "stop the coordinator and restore the newest intact backup of its data directory",
            exit_code=UNBALANCED,
        )
    echo(
        f"balanced: {report.entries} entries, {credits_text(report.granted_micro)} credits granted "
        f"= {credits_text(report.free_micro)} free + {credits_text(report.reserved_micro)} "
        f"reserved + {credits_text(report.settled_micro)} paid; the hash chain is whole"
    )
