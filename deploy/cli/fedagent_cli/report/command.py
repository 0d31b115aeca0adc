"""`fedagent report`: any run as one HTML page."""

from pathlib import Path

import click

from fedagent_cli import options
from fedagent_cli.output import echo, emit, writing

from .page import write_report
from .run_report import read_run_report


@click.command(
    epilog=options.examples(
        "fedagent report",
        "fedagent report --data-dir /srv/fedagent/coordinator --out /var/www/run-7",
    )
)
@options.coordinator_data
@options.run_id
@click.option(
    "--out",
    type=options.PATH,
    show_default="here",
    help="Folder for the report, made if it is not there.",
)
@options.as_json
def report(
    *,
    data_dir: Path | None,
    run: str | None,
    out: Path | None,
    as_json: bool,
) -> None:
    """Write a run as report.html (one file, no outside requests) and report.json.

    It may be read while the coordinator runs.
    """
    found = read_run_report(data_dir, run)
    place = (out or Path()).expanduser().resolve()
    with writing(place, what="the report to ", hint="name another folder with --out"):
        html = write_report(found, place)
    if as_json:
        emit(
            {
                "report": str(html),
                "run": found.summary.run,
                "rounds_done": len(found.rounds),
                "accuracy": found.summary.accuracy,
                "metrics": found.summary.metrics,
                "ledger_balanced": found.ledger_balanced,
            }
        )
        return
    echo(f"{html}: {len(found.rounds)} rounds of {found.summary.recipe}")
