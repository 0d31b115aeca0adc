"""Options that several commands share, once."""

from pathlib import Path
from typing import Annotated

import typer

LINK = "Link"
PLACE = "Where"

AsJson = Annotated[
    bool,
    typer.Option("--json", help="Print JSON lines only; the last line is the result."),
]
Site = Annotated[
    str | None,
    typer.Option(help="Only members of one site see each other.", show_default="default"),
]
DataDir = Annotated[
    Path | None,
    typer.Option(
        help="Data directory: identity, outbox, database.",
        show_default="by role and name below $FEDAGENT_HOME",
        rich_help_panel=PLACE,
    ),
]
CoordinatorData = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        help="Data directory of the coordinator to read.",
        show_default="$FEDAGENT_HOME/coordinator",
    ),
]
RunId = Annotated[
    str | None,
    typer.Option("--run", help="A run by the start of its id.", show_default="the newest"),
]
ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        help="TOML or JSON file with the same keys; options win over it.",
        exists=True,
        dir_okay=False,
        rich_help_panel=PLACE,
    ),
]
LogLevel = Annotated[
    str | None,
    typer.Option(help="debug, info, warning or error.", show_default="info"),
]
PrintConfig = Annotated[
    bool,
    typer.Option("--print-config", help="Check the configuration, print it, start nothing."),
]
Discovery = Annotated[
    str | None,
    typer.Option(
        help="Find peers by zeroconf on the lan, on loopback only, or off.",
        show_default="lan",
        rich_help_panel=LINK,
    ),
]
RunBroker = Annotated[
    str | None,
    typer.Option(
        help="Own broker (auto, mosquitto, embedded), or the URL of a running one.",
        show_default="auto",
        rich_help_panel=LINK,
    ),
]
Listen = Annotated[
    str | None,
    typer.Option(
        help="Address the own broker listens on. Beyond loopback it needs certificates "
        "or --insecure.",
        show_default="127.0.0.1",
        rich_help_panel=LINK,
    ),
]
Port = Annotated[
    int | None,
    typer.Option(help="Port of the own broker; 0 takes a free one.", rich_help_panel=LINK),
]
Insecure = Annotated[
    bool | None,
    typer.Option(
        "--insecure",
        help="Allow plain MQTT beyond loopback. Logged at every start.",
        rich_help_panel=LINK,
    ),
]
TlsCa = Annotated[
    Path | None,
    typer.Option(help="Certificate authority, PEM.", rich_help_panel=LINK),
]
TlsCert = Annotated[
    Path | None,
    typer.Option(help="Own certificate, PEM.", rich_help_panel=LINK),
]
TlsKey = Annotated[
    Path | None,
    typer.Option(help="Own private key, PEM.", rich_help_panel=LINK),
]


def examples(*lines: str) -> str:
    """Return an epilogue that shows each example on a line of its own."""
    return "\n\n".join(["[bold]Examples[/bold]", *(f"[green]$[/green] {line}" for line in lines)])
