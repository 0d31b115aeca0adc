"""`fedagent report`: any run as one HTML page."""

from pathlib import Path
from typing import Annotated

from fedagent_cli import command_line, options, places
from fedagent_cli.drawing import available
from fedagent_cli.errors import UsageError
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
Out = Annotated[
    Path | None,
    command_line.Option(
        "--out",
        help="Folder for the report, made if it is not there; or a file that ends in .html.",
        show_default="here",
    ),
]


def report(
    *,
    data_dir: Data = None,
    named_dir: options.CoordinatorData = None,
    run: options.RunId = None,
    out: Out = None,
    as_json: options.AsJson = False,
) -> None:
    """Write a run as report.html (one file, no outside requests) and report.json.

    It may be read while the coordinator runs. The data directory may be given as the argument
    or with --data-dir. With --out PAGE.html the files are PAGE.html and PAGE.json. Plots
    need the extra `report`.
    """
    from .page import write_report  # noqa: PLC0415 - heavy imports belong to the command
    from .run_report import read_run_report  # noqa: PLC0415

    found = read_run_report(_one_of(data_dir, named_dir) or places.data_dir("coordinator"), run)
    folder, name = _place((out or Path()).expanduser().resolve())
    with writing(folder, what="the report to ", hint="name another folder with --out"):
        html = write_report(found, folder, name=name)
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


def _one_of(argument: Path | None, option: Path | None) -> Path | None:
    """Return the data directory that was given in one of two ways.

    Raises:
        UsageError: It was given in both, and they differ.
    """
    if argument and option and argument.expanduser().resolve() != option.expanduser().resolve():
        both = f"two data directories: {argument} and --data-dir {option}"
        raise UsageError(both, "give one of them")
    return argument or option


def _place(out: Path) -> tuple[Path, str]:
    """Return the folder of the report, and what its files are called there."""
    if out.suffix.lower() == ".html" and not out.is_dir():
        return out.parent, out.stem
    return out, "report"
