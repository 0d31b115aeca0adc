"""`fedagent start`, `fedagent edge start`, `fedagent coordinator start`.

Their options are the fields of the role's configuration (`fedagent_protocol.option`).
"""

from collections.abc import Mapping
from functools import partial
from pathlib import Path

from . import command_line, launch, options, places
from .errors import UsageError

edge_app = command_line.CommandGroup(
    name="edge", help="Run an edge aggregator.", no_args_is_help=True
)
coordinator_app = command_line.CommandGroup(
    name="coordinator", help="Run the coordinator of a federation.", no_args_is_help=True
)


def mount(app: command_line.CommandGroup, *, panel: str) -> None:
    """Add the three commands to the app."""
    app.command(
        "start",
        panel=panel,
        options=partial(launch.options_of, "agent"),
        epilog=options.examples(
            "fedagent start --stream digits",
            "fedagent start --name kitchen --stream csv:/var/log/meter.csv",
            "fedagent start --stream digits --edge 192.168.1.20:1883 --insecure",
        ),
    )(agent_start)
    app.add_group(edge_app, panel=panel)
    app.add_group(coordinator_app, panel=panel)


def agent_start(
    *,
    config: options.ConfigFile = None,
    print_config: options.PrintConfig = False,
    as_json: options.AsJson = False,
    **given: object,
) -> None:
    """Run this device as an agent: find the edges, learn on the own stream.

    It trains when an edge orders it to, and sends updates, never samples. One agent
    per data directory; a second one on the same directory ends with exit code 75.
    """
    made = _configuration("agent", given, config)
    if "stream" not in made:
        raise UsageError("no stream to learn from", "add one, e.g. --stream digits")
    _become("agent", made, print_config=print_config, as_json=as_json)


@edge_app.command(
    "start",
    options=partial(launch.options_of, "edge"),
    epilog=options.examples(
        "fedagent edge start --name hall",
        "fedagent edge start --name hall --insecure --listen 0.0.0.0",
        "fedagent edge start --broker mqtt://192.168.1.10:1883 --insecure",
    ),
)
def edge_start(
    *,
    config: options.ConfigFile = None,
    print_config: options.PrintConfig = False,
    as_json: options.AsJson = False,
    **given: object,
) -> None:
    """Run an edge aggregator: a broker for the devices near it, and their average.

    It advertises itself, collects updates until the deadline, averages them and
    reports to the coordinator, which it finds by zeroconf.
    """
    made = _configuration("edge", given, config)
    _become("edge", made, print_config=print_config, as_json=as_json)


@coordinator_app.command(
    "start",
    options=partial(launch.options_of, "coordinator"),
    epilog=options.examples(
        "fedagent coordinator start --recipe digits",
        "fedagent coordinator start --recipe my.toml --policy cheapest --seed 7",
        "fedagent coordinator start --recipe digits --set rounds.count=10 --new-run",
        "fedagent coordinator start --recipe digits --more-rounds 30",
        "fedagent coordinator start --recipe digits --new-run --init digits.safetensors",
    ),
)
def coordinator_start(
    *,
    config: options.ConfigFile = None,
    print_config: options.PrintConfig = False,
    as_json: options.AsJson = False,
    **given: object,
) -> None:
    """Run the coordinator: each round it decides who trains where, and pays for it.

    The same recipe continues the run of this data directory; another one needs
    --new-run. It ends with exit code 0 after the last round; --more-rounds goes on.
    """
    made = _configuration("coordinator", given, config)
    launch.need_coordinator("a coordinator")
    if "recipe" not in made:
        known = ", ".join(places.recipe_names())
        raise UsageError("no recipe", f"add --recipe with a file, or one of: {known}")
    made["recipe"] = str(places.find_recipe(str(made["recipe"])))
    _become("coordinator", made, print_config=print_config, as_json=as_json)


def _configuration(role: str, given: Mapping[str, object], file: Path | None) -> launch.Config:
    """Return the keys of a role's file, overridden by the options that were given."""
    return launch.merge(launch.read_config(file), launch.configuration(role, given))


def _become(role: str, made: launch.Config, *, print_config: bool, as_json: bool) -> None:
    """Name the data directory where nobody has, and become the role."""
    if "data_dir" not in made:
        name = made.get("name")
        made["data_dir"] = str(places.data_dir(role, None if name is None else str(name)))
    launch.become(role, made, print_config=print_config, as_json=as_json)
