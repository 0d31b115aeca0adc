"""`fedagent report`: any run as one HTML page."""

from pathlib import Path

import click

from fedagent_cli import options, places
from fedagent_cli.output import echo, emit, writing

from .page import write_report
from .run_report import read_run_report


@click.command(
    epilog=options.examples(
        "fedagent report", "fedagent report /srv/fedagent/coordinator --out /var/www/run-7"
    )
)
@click.argument("folder", type=options.PATH, required=False)
@options.coordinator_data
@options.run_id
@click.option(
    "--out",
    type=options.PATH,
    show_default="here",
    help="Folder for the report, made if it is not there; or a file that ends in .html.",
)
@options.as_json
def report(
    *,
    folder: Path | None,
    data_dir: Path | None,
    run: str | None,
    out: Path | None,
    as_json: bool,
) -> None:
    """Write a run as report.html (one file, no outside requests) and report.json.

    It may be read while the coordinator runs. The data directory may be given as the argument
    or with --data-dir. With --out PAGE.html the files are PAGE.html and PAGE.json.
    """
    source = places.one_of(folder, data_dir) or places.data_dir("coordinator")
    found = read_run_report(source, run)
    place, name = _place((out or Path()).expanduser().resolve())
    with writing(place, what="the report to ", hint="name another folder with --out"):
        html = write_report(found, place, name=name)
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


def _place(out: Path) -> tuple[Path, str]:
    """Return the folder of the report, and what its files are called there."""
    if out.suffix.lower() == ".html" and not out.is_dir():
        return out.parent, out.stem
    return out, "report"
