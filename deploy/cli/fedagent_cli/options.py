"""Options that several commands share; those of a role are its configuration's fields."""

from pathlib import Path

import click

from .command_line import Number

PATH: click.Path = click.Path(path_type=Path, readable=False)
"""Whether it can be read says the command that opens it, with its owner."""
FILE: click.Path = click.Path(exists=True, dir_okay=False, path_type=Path)

JSON = "Print only JSON lines; the last line is the result."
CONFIG = "TOML or JSON file with the same keys; options override it."

as_json = click.option("--json", "as_json", is_flag=True, help=JSON)
coordinator_data = click.option(
    "--data-dir",
    type=PATH,
    show_default="$FEDAGENT_HOME/coordinator",
    help="Data directory of the coordinator to read.",
)
run_id = click.option("--run", show_default="the newest", help="Start of the run's id.")
last = click.option(
    "--last",
    type=Number(int, min=0),
    default=20,
    help="How many of the newest to show; 0 for all.",
)
config_file = click.option("--config", type=FILE, help=CONFIG)
sets = click.option(
    "--set",
    "sets",
    multiple=True,
    metavar="KEY=VALUE",
    help="Change a key, such as alpha=0.5 of a policy or rounds.count=30 of a recipe. Repeatable.",
)


def examples(*lines: str) -> str:
    """Return an epilogue that shows each example on a line of its own; a mark keeps the lines."""
    return "\n".join(["\b", "Examples:", *(f"  $ {line}" for line in lines)])
