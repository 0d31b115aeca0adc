"""`fedagent report`: any run as one HTML page."""

from pathlib import Path
from typing import Annotated

from fedagent_cli import command_line, options, places
from fedagent_cli.drawing import available
from fedagent_cli.output import echo, emit, writing
from fedagent_protocol.extras import how_to_add

Data = Annotated[
    Path | None,
    command_line.Argument(
        help="Data directory of the coordinator.",
        show_default="$FEDAGENT_HOME/coordinator",
        readable=False,  # opening it says whose it is
    ),
]
Folder = Annotated[
    Path | None, command_line.Option("--out", help="Folder for the report.", show_default="here")
]


def report(
    *,
    data_dir: Data = None,
    run: options.RunId = None,
    out: Folder = None,
    as_json: options.AsJson = False,
) -> None:
    """Write a run as report.html (one file, no outside requests) and report.json.

    It may be read while the coordinator runs. Plots need the extra `report`.
    """
    from .page import write_report  # noqa: PLC0415 - heavy imports belong to the command
    from .run_report import read_run_report  # noqa: PLC0415

    found = read_run_report(data_dir or places.data_dir("coordinator"), run)
    folder = (out or Path()).expanduser().resolve()
    with writing(folder, what="the report to ", hint="name another folder with --out"):
        html = write_report(found, folder)
    if as_json:
        emit(
            {
                "report": str(html),
                "run": found.run,
                "rounds_done": len(found.rounds),
                "accuracy": found.accuracy,
                "metrics": found.metrics,
                "ledger_balanced": found.ledger_balanced,
                "plots": available(),
            }
        )
        return
    echo(f"{html}: {len(found.rounds)} rounds of {found.recipe}")
    if not available():
        echo(f"without plots; to add them: {how_to_add('report')}")
