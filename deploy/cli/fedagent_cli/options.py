"""Options that several commands share; those of a role are its configuration's fields."""

from pathlib import Path
from typing import Annotated

from . import command_line

AsJson = Annotated[
    bool,
    command_line.Option("--json", help="Print only JSON lines; the last line is the result."),
]
CoordinatorData = Annotated[
    Path | None,
    command_line.Option(
        "--data-dir",
        help="Data directory of the coordinator to read.",
        readable=False,  # the command that opens it names its owner
        show_default="$FEDAGENT_HOME/coordinator",
    ),
]
RunId = Annotated[
    str | None,
    command_line.Option("--run", help="Start of the run's id.", show_default="the newest"),
]
Last = Annotated[int, command_line.Option(min=0, help="How many of the newest to show; 0 for all.")]
ConfigFile = Annotated[
    Path | None,
    command_line.Option(
        "--config",
        help="TOML or JSON file with the same keys; options override it.",
        exists=True,
        dir_okay=False,
        panel="Where",
    ),
]
PrintConfig = Annotated[
    bool,
    command_line.Option(
        "--print-config", help="Check and print the configuration without starting anything."
    ),
]


def examples(*lines: str) -> str:
    """Return an epilogue that shows each example on a line of its own."""
    return "\n\n".join(["Examples", *(f"$ {line}" for line in lines)])
