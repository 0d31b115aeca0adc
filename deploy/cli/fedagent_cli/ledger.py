"""`fedagent ledger`: the entries of a run, whether they add up, and all of them as a file."""

import sys
from dataclasses import asdict
from pathlib import Path

import click
from click.exceptions import Exit

from fedagent_edge.store import EdgeStateError, read_memory
from fedagent_protocol.messages import LedgerHead

from . import options
from .command_line import Group, Number
from .errors import MissingError, UnbalancedError, UsageError
from .opinions import agent_named
from .output import credits_text, echo, emit, table, writing
from .runs import open_run

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
    with open_run(data_dir, run) as (reader, chosen):
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
        "fedagent ledger verify --witness /mnt/hall/fedagent/edge --json",
    ),
)
@click.option(
    "--witness",
    type=options.PATH,
    help="Data directory of an edge, which has recorded the newest ledger entry it was sent.",
)
@click.option("--full", is_flag=True, help="Also recompute closed rounds from their files.")
@options.coordinator_data
@options.as_json
def ledger_verify(
    *, witness: Path | None, full: bool, data_dir: Path | None, as_json: bool
) -> None:
    """Check every entry: sums, reservations, outcomes, models, and the signed hash chain.

    For closed rounds the digests of their files, which are part of the chain, are checked; --full
    recomputes them. Exit code 41 if anything is wrong; each problem is one line.
    """
    head = None if witness is None else _head_at(witness)
    with open_run(data_dir) as (reader, _):
        report = reader.ledger.verify(head, full=full)
    if as_json:
        emit({"ledger_balanced": report.balanced, **asdict(report)})
        raise Exit(0 if report.balanced else UnbalancedError.exit_code)
    for problem in report.problems:
        sys.stderr.write(f"{problem}\n")
    if not report.balanced:
        raise UnbalancedError(
            f"the ledger has {len(report.problems)} problems in {report.entries} entries",
            "stop the coordinator and restore the newest intact backup of its data directory",
        )
    echo(
        f"balanced: {report.entries} entries, {credits_text(report.granted_micro)} credits granted "
        f"= {credits_text(report.free_micro)} free + {credits_text(report.reserved_micro)} "
        f"reserved + {credits_text(report.settled_micro)} paid; the hash chain is whole"
    )


@app.command(
    "proof",
    epilog=options.examples(
        "fedagent ledger proof --round 12 --client kitchen",
        "fedagent ledger proof --round 12 --client kitchen --json > proof.json",
    ),
)
@click.option("--round", "round_", type=Number(int), required=True, help="The paid round.")
@click.option(
    "--client", required=True, metavar="NAME", help="Client: its name, or the start of its id."
)
@options.coordinator_data
@options.run_id
@options.as_json
def ledger_proof(
    *, round_: int, client: str, data_dir: Path | None, run: str | None, as_json: bool
) -> None:
    """Show and check the signature of a client for the work that it was paid for.

    Exit code 41 if the proof is invalid, 43 if there is none.
    """
    with open_run(data_dir, run) as (reader, chosen):
        names = {row.agent: row.label or row.agent for row in reader.devices(chosen.run_id)}
        agent = agent_named(names, client)
        with reader.whole(chosen.run_id, first=round_, last=round_) as near:
            found = near.ledger.proof(chosen.run_id, round_, agent)
    if found is None:
        raise MissingError(
            f"there is no proof of {names[agent]} for round {round_}",
            "it was not paid, or the run is from a testbed: see `fedagent status --rounds 20`",
        )
    if as_json:
        emit(found.record())
    if found.problem:
        raise UnbalancedError(
            f"the proof of {names[agent]} for round {round_} is invalid: {found.problem}",
            "fedagent ledger verify",
        )
    if not as_json:
        paid, work = credits_text(found.entry.amount_micro), found.work
        echo(
            f"{names[agent]} was paid {paid} credits for round {round_} (entry {found.entry.seq}); "
            f"its signature proves: update {str(work['update'])[:12]} of "
            f"{work['num_samples']} samples, {work['iterations']} iterations, for edge "
            f"{str(work['edge'])[:12]}"
        )


def _head_at(folder: Path) -> LedgerHead:
    try:
        head = read_memory(folder / "state.msgpack").head
    except EdgeStateError as error:
        raise UsageError(f"--witness: {error}", "give the data directory of an edge") from error
    if head is None:
        raise UsageError(
            f"--witness: the edge of {folder} has not recorded any ledger entry",
            "give the data directory of an edge that has reported a round",
        )
    return head


@app.command(
    "export",
    epilog=options.examples(
        "fedagent ledger export > ledger.csv", "fedagent ledger export --format jsonl --out l.jsonl"
    ),
)
@click.option("--out", type=options.PATH, show_default="standard output", help="File to write.")
@click.option(
    "--format",
    "style",
    type=click.Choice(["csv", "jsonl"]),
    default="csv",
    help="CSV or JSON lines.",
)
@options.coordinator_data
@options.as_json
def ledger_export(*, out: Path | None, style: str, data_dir: Path | None, as_json: bool) -> None:
    """Export every entry, oldest first, with hashes in hex.

    With --json the entries go to --out, and the result is the only line.
    """
    if as_json and out is None:
        raise UsageError(
            "with --json, standard output is reserved for the result", "add --out FILE"
        )
    count = 0
    with open_run(data_dir) as (reader, _):
        lines = reader.ledger.export("csv" if style == "csv" else "json")
        if out is None:
            sys.stdout.writelines(lines)
            return
        with writing(out), out.open("w", encoding="utf-8", newline="") as file:
            for line in lines:
                file.write(line)
                count += 1
    count -= style == "csv"
    if as_json:
        emit({"out": str(out), "entries": count})
    else:
        echo(f"{out}: {count} entries")
