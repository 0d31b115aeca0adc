"""`fedagent demo`: ask, run, and tell what came of it."""

from pathlib import Path
from typing import Any

import click
from click.exceptions import Exit

from fedagent_cli import extras, options
from fedagent_cli.command_line import Number
from fedagent_testbed.local_fleet import remembered, tidy

from .plan import prepare
from .result import conclude
from .run import run_demo


@click.command(
    epilog=options.examples(
        "fedagent demo",
        "fedagent demo --policy cheapest --rounds 30",
        "fedagent demo --agents 12 --edges 3",
        "fedagent demo --rounds 5 --json",
        "fedagent demo --recipe bas-digits",
        "fedagent demo --recipe fa-digits",
    )
)
@click.option(
    "--agents",
    type=Number(int, min=1, max=64),
    show_default="8; 10 where clients evaluate the model",
    help="Devices.",
)
@click.option(
    "--edges",
    type=Number(int, min=1, max=16),
    show_default="2; 3 where the recipe rents them, 1 where neighbours decide",
    help="Edge aggregators.",
)
@click.option(
    "--rounds",
    type=Number(int, min=1, max=100000),
    show_default="that of the recipe",
    help="Rounds.",
)
@click.option("--policy", show_default="that of the recipe", help="Policy that chooses who trains.")
@click.option(
    "--seed",
    type=Number(int, min=0),
    show_default="that of the recipe",
    help="Seed of all random numbers.",
)
@click.option("--recipe", default="demo", help="Recipe for digits: a file or a bundled name.")
@click.option(
    "--dir",
    "folder",
    type=options.PATH,
    show_default="fedagent-demo/<time>-<id>",
    help="Folder for logs, report and all data directories.",
)
@click.option("--web", is_flag=True, help="Serve the live page, and open it if there is a screen.")
@options.as_json
def demo(*, folder: Path | None, as_json: bool, **asked: Any) -> None:
    """Run a whole federation on this machine and watch it.

    A coordinator, edges and devices as separate processes find each other by zeroconf
    on loopback, learn handwritten digits over MQTT, two digits per device, with a
    budget for about six of eight. One device is too slow, one is killed half way.
    Where clients evaluate the model (fa-digits, da-digits), some hold all ten digits.
    Your own model and data run the same way from Python, with fedagent.run_local.
    Ctrl-C ends everything cleanly and still writes the report.
    """
    extras.need("rich", "coordinator")
    # A signal has its clean end and its result from here on.
    with remembered() as caught:
        made = prepare(folder=folder, **asked)
        heard = run_demo(made, caught=caught, as_json=as_json)
        code = conclude(made, heard, as_json=as_json)
        if folder is None:
            tidy(made.directory, (*made.edges, *made.agents))
    raise Exit(code)
