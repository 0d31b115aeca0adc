"""`fedagent ledger`: the entries of a run, whether they add up, and all of them as a file."""

import sys
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from . import command_line, options
from .errors import MissingError, UnbalancedError, UsageError
from .output import credits_text, echo, emit, table, writing

if TYPE_CHECKING:
    from fedagent_protocol.messages import LedgerHead

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
def ledger_verify(
    *,
    witness: Annotated[
        Path | None,
        command_line.Option(
            help="Data directory of an edge, which has recorded the newest ledger entry it was "
            "sent."
        ),
    ] = None,
    full: Annotated[
        bool,
        command_line.Option("--full", help="Also recompute closed rounds from their files."),
    ] = False,
    data_dir: options.CoordinatorData = None,
    as_json: options.AsJson = False,
) -> None:
    """Check every entry: sums, reservations, outcomes, models, and the signed hash chain.

    For closed rounds the digests of their files, which are part of the chain, are checked; --full
    recomputes them. Exit code 41 if anything is wrong; each problem is one line.
    """
    from .runs import open_run  # noqa: PLC0415 - heavy imports

    head = None if witness is None else _head_at(witness)
    with open_run(data_dir) as (reader, _):
        report = reader.ledger.verify(head, full=full)
    if as_json:
        emit({"ledger_balanced": report.balanced, **asdict(report)})
        raise command_line.Exit(0 if report.balanced else UnbalancedError.exit_code)
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
def ledger_proof(
    *,
    round_: Annotated[int, command_line.Option("--round", help="The paid round.")],
    client: Annotated[
        str,
        command_line.Option(
            "--client", metavar="NAME", help="Client: its name, or the start of its id."
        ),
    ],
    data_dir: options.CoordinatorData = None,
    run: options.RunId = None,
    as_json: options.AsJson = False,
) -> None:
    """Show and check the signature of a client for the work that it was paid for.

    Exit code 41 if the proof is invalid, 43 if there is none.
    """
    from .opinions import agent_named  # noqa: PLC0415 - heavy imports
    from .runs import open_run  # noqa: PLC0415 - heavy imports

    with open_run(data_dir, run) as (reader, chosen):
        names = {row.agent: row.label or row.agent for row in reader.devices(chosen.run_id)}
        agent = agent_named(names, client)
        with reader.whole(chosen.run_id, first=round_, last=round_) as near:
            found = near.ledger.proof(chosen.run_id, round_, agent)
    if found is None:
        raise MissingError(
            f"there is no proof of {names[agent]} for round {round_}",
            "it was not paid, or the run is from a testbed: see `fedagent rounds`",
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


def _head_at(folder: Path) -> "LedgerHead":
    from fedagent_edge.store import EdgeStateError, read_memory  # noqa: PLC0415 - heavy imports

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
        raise UsageError(
            "with --json, standard output is reserved for the result", "add --out FILE"
        )
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
