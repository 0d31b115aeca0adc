"""`fedagent start`, `fedagent edge start`, `fedagent coordinator start`.

Their options are the fields of the role's configuration (`fedagent_protocol.option`).
"""

import socket
import sys
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from . import command_line, launch, options, places
from .errors import NoRunError, UsageError
from .output import echo, emit

AGENT = """Run this device as an agent: find the edges and train on its own stream.

It trains when an edge orders it to, and sends updates, never samples. One agent
per data directory; a second one on the same directory ends with exit code 75.
"""
EDGE = """Run an edge aggregator: a broker for the devices near it, and their average.

It advertises itself, collects updates until the deadline, averages them and
reports to the coordinator, which it finds by zeroconf.
"""
COORDINATOR = """Run the coordinator: in each round it decides who trains where, and pays for it.

The same recipe continues the run of this data directory; another one needs
--new-run. It ends with exit code 0 after the last round; --more-rounds continues.
"""

_CONNECT_S = 2.0


def mount(app: command_line.CommandGroup, *, panel: str) -> None:
    """Add the three commands to the app."""
    edge = command_line.CommandGroup(
        name="edge", help="Run an edge aggregator.", no_args_is_help=True
    )
    coordinator = command_line.CommandGroup(
        name="coordinator", help="Run the coordinator of a federation.", no_args_is_help=True
    )
    _add(
        *(app, "agent", AGENT, panel),
        "fedagent start --stream digits",
        "fedagent start --name kitchen --stream csv:/var/log/meter.csv",
        "fedagent start --stream digits --edge 192.168.1.20:1883 --insecure",
    )
    _add(
        *(edge, "edge", EDGE, ""),
        "fedagent edge start --name hall",
        "fedagent edge start --name hall --insecure --listen 0.0.0.0",
        "fedagent edge start --broker mqtt://192.168.1.10:1883 --insecure",
    )
    _add(
        *(coordinator, "coordinator", COORDINATOR, ""),
        "fedagent coordinator start --recipe digits",
        "fedagent coordinator start --recipe my.toml --policy cheapest --seed 7",
        "fedagent coordinator start --recipe digits --set rounds.count=10 --new-run",
        "fedagent coordinator start --recipe digits --more-rounds 30",
        "fedagent coordinator start --recipe digits --new-run --init digits.safetensors",
    )
    coordinator.command("page", epilog=options.examples("fedagent coordinator page"))(page)
    app.add_group(edge, panel=panel)
    app.add_group(coordinator, panel=panel)


def _add(group: command_line.CommandGroup, role: str, about: str, panel: str, *lines: str) -> None:
    def start(
        *,
        config: options.ConfigFile = None,
        print_config: options.PrintConfig = False,
        as_json: options.AsJson = False,
        **given: object,
    ) -> None:
        made = launch.merge(launch.read_config(config), launch.configuration(role, given))
        _complete(role, made)
        launch.become(role, made, print_config=print_config, as_json=as_json)

    start.__doc__ = about
    declared = partial(launch.options_of, role)
    epilog = options.examples(*lines)
    group.command("start", panel=panel, options=declared, epilog=epilog)(start)


def _complete(role: str, made: launch.Config) -> None:
    """Look for what a role cannot be without; name the data directory where nobody has."""
    if role == "agent" and "stream" not in made:
        raise UsageError("no stream to train on", "add one, e.g. --stream digits")
    if role == "coordinator":
        launch.need_coordinator("a coordinator")
        if "recipe" not in made:
            known = ", ".join(places.recipe_names())
            raise UsageError("no recipe", f"add --recipe with a file, or one of: {known}")
        made["recipe"] = str(places.find_recipe(str(made["recipe"])))
    if "data_dir" not in made:
        name = made.get("name")
        made["data_dir"] = str(places.data_dir(role, None if name is None else str(name)))


def page(*, data_dir: options.CoordinatorData = None, as_json: options.AsJson = False) -> None:
    """Show where the live page is, with the token that opens it: a link, and its QR code.

    Whoever has it sees the run, and may accept devices that wait.
    """
    from fedagent_coordinator.web.access import read_page  # noqa: PLC0415 - heavy imports

    folder = (data_dir if data_dir is not None else places.data_dir("coordinator")).expanduser()
    found = read_page(folder)
    if found is None or not found.url or not _serves(folder, found.url):
        raise NoRunError(
            f"no running coordinator of {folder} serves a live page",
            "start it (`fedagent coordinator start`, without --no-web), or give --data-dir",
        )
    if as_json:
        emit({"url": found.url, "link": found.link, "fingerprint": found.fingerprint})
        return
    if sys.stdout.isatty():
        from .enrolment import draw_qr  # noqa: PLC0415

        draw_qr(found.link)
    echo(found.link)
    if found.fingerprint:
        echo(
            "its certificate is self-signed; compare it in the browser: SHA-256 "
            f"{found.fingerprint}"
        )


def _serves(folder: Path, url: str) -> bool:
    """Return whether a coordinator holds the folder, and somebody listens at its page's address."""
    from fedagent_node.data_dir import holder_of  # noqa: PLC0415 - heavy imports

    place = urlsplit(url)
    try:
        socket.create_connection((str(place.hostname), place.port or 0), _CONNECT_S).close()
    except OSError:
        return False
    # Another program may have the port by now: it is to get no token.
    return holder_of(folder) is not None
