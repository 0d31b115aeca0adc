"""`fedagent start`, `fedagent edge start`, `fedagent coordinator start`."""

from pathlib import Path
from typing import Annotated

import typer

from . import launch, options, places
from .errors import UsageError

edge_app = typer.Typer(name="edge", help="Run an edge aggregator.", no_args_is_help=True)
coordinator_app = typer.Typer(
    name="coordinator", help="Run the coordinator of a federation.", no_args_is_help=True
)

Name = Annotated[
    str | None,
    typer.Option(help="A name for people; it also names the data directory."),
]
Edges = Annotated[
    list[str] | None,
    typer.Option(
        "--edge",
        metavar="HOST:PORT",
        help="Address of an edge, where zeroconf does not reach. Repeatable.",
        rich_help_panel=options.LINK,
    ),
]
SharedBroker = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="One shared broker that carries the edges.",
        rich_help_panel=options.LINK,
    ),
]
Stream = Annotated[
    str | None,
    typer.Option(help="What to learn from: `digits`, a CSV file that grows, an MQTT topic."),
]
PriceBase = Annotated[
    float | None,
    typer.Option(help="Credits this device asks for one round.", show_default="0.1"),
]
PricePerCompute = Annotated[
    float | None,
    typer.Option(help="Credits on top for each core that is free.", show_default="0.2"),
]
SlowS = Annotated[
    float | None,
    typer.Option(help="Extra seconds of training, to rehearse a slow device.", show_default="0"),
]
Seed = Annotated[int | None, typer.Option(help="Seed of everything random.")]


def agent_start(
    *,
    stream: Stream = None,
    name: Name = None,
    price_base: PriceBase = None,
    price_per_compute: PricePerCompute = None,
    seed: Seed = None,
    slow_s: SlowS = None,
    edges: Edges = None,
    broker: SharedBroker = None,
    discovery: options.Discovery = None,
    insecure: options.Insecure = None,
    tls_ca: options.TlsCa = None,
    tls_cert: options.TlsCert = None,
    tls_key: options.TlsKey = None,
    site: options.Site = None,
    data_dir: options.DataDir = None,
    config: options.ConfigFile = None,
    log_level: options.LogLevel = None,
    print_config: options.PrintConfig = False,
    as_json: options.AsJson = False,
) -> None:
    """Run this device as an agent: find the edges, learn on the own stream.

    It trains when an edge orders it to, and sends updates, never samples. One agent
    per data directory; a second one on the same directory ends with exit code 75.
    """
    file = launch.read_config(config)
    price: launch.Config = {}
    if isinstance(file.get("price"), dict):
        price.update(file["price"])  # type: ignore[call-overload]  # checked above
    price = launch.merge(price, {"base": price_base, "per_compute": price_per_compute})
    made = launch.merge(
        file,
        {
            "data_dir": _data_dir("agent", name, data_dir, file),
            "stream": stream,
            "name": name,
            "price": price or None,
            "seed": seed,
            "slow_s": slow_s,
            "edges": edges,
            "broker": broker,
            "discovery": discovery,
            "insecure": insecure,
            "tls": launch.tls(tls_ca, tls_cert, tls_key),
            "site": site,
            "log_level": log_level,
        },
    )
    if "stream" not in made:
        raise UsageError("no stream to learn from", "add one, e.g. --stream digits")
    launch.become("agent", made, print_config=print_config, as_json=as_json)


@edge_app.command(
    "start",
    epilog=options.examples(
        "fedagent edge start --name hall",
        "fedagent edge start --name hall --insecure --listen 0.0.0.0",
        "fedagent edge start --broker mqtt://192.168.1.10:1883 --insecure",
    ),
)
def edge_start(
    *,
    name: Name = None,
    broker: options.RunBroker = None,
    listen: options.Listen = None,
    port: options.Port = None,
    coordinator: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Address of the coordinator, where zeroconf does not reach.",
            rich_help_panel=options.LINK,
        ),
    ] = None,
    discovery: options.Discovery = None,
    insecure: options.Insecure = None,
    tls_ca: options.TlsCa = None,
    tls_cert: options.TlsCert = None,
    tls_key: options.TlsKey = None,
    chunk_bytes: Annotated[
        int | None, typer.Option(help="Size of a model chunk.", show_default="262144")
    ] = None,
    credit_bytes: Annotated[
        int | None,
        typer.Option(help="Upload bytes on the way at once, all agents.", show_default="8388608"),
    ] = None,
    need_wait_ms: Annotated[
        int | None,
        typer.Option(help="Wait of a model for agents that have not answered.", show_default="50"),
    ] = None,
    site: options.Site = None,
    data_dir: options.DataDir = None,
    config: options.ConfigFile = None,
    log_level: options.LogLevel = None,
    print_config: options.PrintConfig = False,
    as_json: options.AsJson = False,
) -> None:
    """Run an edge aggregator: a broker for the devices near it, and their average.

    It advertises itself, collects updates until the deadline, averages them and
    reports to the coordinator, which it finds by zeroconf.
    """
    file = launch.read_config(config)
    made = launch.merge(
        file,
        {
            "data_dir": _data_dir("edge", name, data_dir, file),
            "name": name,
            "broker": broker,
            "listen": listen,
            "port": port,
            "coordinator": coordinator,
            "discovery": discovery,
            "insecure": insecure,
            "tls": launch.tls(tls_ca, tls_cert, tls_key),
            "chunk_bytes": chunk_bytes,
            "credit_bytes": credit_bytes,
            "need_wait_ms": need_wait_ms,
            "site": site,
            "log_level": log_level,
        },
    )
    launch.become("edge", made, print_config=print_config, as_json=as_json)


@coordinator_app.command(
    "start",
    epilog=options.examples(
        "fedagent coordinator start --recipe digits",
        "fedagent coordinator start --recipe my.toml --policy cheapest --seed 7",
        "fedagent coordinator start --recipe digits --set rounds.count=10 --new-run",
    ),
)
def coordinator_start(
    *,
    recipe: Annotated[
        str | None, typer.Option(help="Recipe: a TOML file, or the name of a bundled one.")
    ] = None,
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Override a recipe key. Repeatable."),
    ] = None,
    policy: Annotated[
        str | None, typer.Option(help="Who trains: override the recipe's policy.")
    ] = None,
    seed: Seed = None,
    new_run: Annotated[
        bool | None,
        typer.Option("--new-run", help="Start over, although this directory holds a run."),
    ] = None,
    accept_lost_history: Annotated[
        bool | None,
        typer.Option("--accept-lost-history", help="Go on with a database older than it was."),
    ] = None,
    wait_edges: Annotated[
        int | None, typer.Option(help="Edges wanted before round 1.", show_default="1")
    ] = None,
    wait_agents: Annotated[
        int | None, typer.Option(help="Agents wanted before round 1.", show_default="1")
    ] = None,
    grace_s: Annotated[
        float | None,
        typer.Option(help="Seconds beyond max_wait for an edge's report.", show_default="2"),
    ] = None,
    linger_s: Annotated[
        float | None, typer.Option(help="Seconds to tell the edges that the run has ended.")
    ] = None,
    broker: options.RunBroker = None,
    listen: options.Listen = None,
    port: options.Port = None,
    discovery: options.Discovery = None,
    insecure: options.Insecure = None,
    tls_ca: options.TlsCa = None,
    tls_cert: options.TlsCert = None,
    tls_key: options.TlsKey = None,
    site: options.Site = None,
    data_dir: options.DataDir = None,
    config: options.ConfigFile = None,
    log_level: options.LogLevel = None,
    print_config: options.PrintConfig = False,
    as_json: options.AsJson = False,
) -> None:
    """Run the coordinator: each round it decides who trains where, and pays for it.

    The same recipe continues the run of this data directory; another one needs
    --new-run. It ends with exit code 0 after the last round.
    """
    file = launch.read_config(config)
    wanted = recipe if recipe is not None else file.get("recipe")
    if wanted is None:
        known = ", ".join(places.recipe_names())
        raise UsageError("no recipe", f"add --recipe with a file, or one of: {known}")
    made = launch.merge(
        file,
        {
            "data_dir": _data_dir("coordinator", None, data_dir, file),
            "recipe": places.find_recipe(str(wanted)),
            "sets": sets,
            "policy": policy,
            "seed": seed,
            "new_run": new_run,
            "accept_lost_history": accept_lost_history,
            "grace_s": grace_s,
            "wait_edges": wait_edges,
            "wait_agents": wait_agents,
            "linger_s": linger_s,
            "broker": broker,
            "listen": listen,
            "port": port,
            "discovery": discovery,
            "insecure": insecure,
            "tls": launch.tls(tls_ca, tls_cert, tls_key),
            "site": site,
            "log_level": log_level,
        },
    )
    launch.become("coordinator", made, print_config=print_config, as_json=as_json)


def _data_dir(role: str, name: str | None, given: Path | None, file: launch.Config) -> Path | None:
    """Return the data directory: the option, else the file's own (None), else by name."""
    if given is not None:
        return given.expanduser().resolve()
    if "data_dir" in file:
        return None
    own = name if name is not None else file.get("name")
    return places.data_dir(role, None if own is None else str(own))
