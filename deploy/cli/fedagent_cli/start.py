"""`fedagent start`, `fedagent edge start`, `fedagent coordinator start`.

Each command lists its own options; those that all roles have are in `options.of_a_role`.
"""

import math
from collections.abc import Mapping
from pathlib import Path

from . import command_line, launch, options, places
from .errors import UsageError

edge_app = command_line.CommandGroup(
    name="edge", help="Run an edge aggregator.", no_args_is_help=True
)
coordinator_app = command_line.CommandGroup(
    name="coordinator", help="Run the coordinator of a federation.", no_args_is_help=True
)


@options.of_a_role
def agent_start(
    *,
    stream: options.Stream = None,
    held_out: options.HeldOut = None,
    name: options.Name = None,
    price_base: options.PriceBase = None,
    price_per_compute: options.PricePerCompute = None,
    seed: options.Seed = None,
    slow_s: options.SlowS = None,
    load_limit: options.LoadLimit = None,
    nice: options.Nice = None,
    memory_limit: options.MemoryLimit = None,
    min_battery: options.MinBattery = None,
    mains_only: options.MainsOnly = None,
    max_temperature: options.MaxTemperature = None,
    when_throttled: options.WhenThrottled = None,
    metered: options.Metered = None,
    on_metered: options.OnMetered = None,
    min_memory: options.MinMemory = None,
    max_load: options.MaxLoad = None,
    max_epsilon: options.MaxEpsilon = None,
    total_epsilon: options.TotalEpsilon = None,
    lifetime_epsilon: options.LifetimeEpsilon = None,
    declared_only: options.DeclaredOnly = None,
    edges: options.Edges = None,
    broker: options.SharedBroker = None,
    peers: options.Peers = None,
    position: options.Position = None,
    **shared: object,
) -> None:
    """Run this device as an agent: find the edges, learn on the own stream.

    It trains when an edge orders it to, and sends updates, never samples. One agent
    per data directory; a second one on the same directory ends with exit code 75.
    """
    given = {
        "stream": stream,
        "held_out": held_out,
        "name": name,
        "price": {"base": price_base, "per_compute": price_per_compute},
        "seed": seed,
        "slow_s": slow_s,
        "load_limit_s": load_limit,
        "nice": nice,
        "memory_limit": memory_limit,
        "limits": {
            "min_battery": min_battery,
            "mains_only": mains_only,
            "max_temperature": max_temperature,
            "when_throttled": when_throttled,
            "metered": metered,
            "on_metered": on_metered,
            "min_memory": min_memory,
            "max_load": max_load,
        },
        "privacy": {
            "max_epsilon": max_epsilon,
            "total_epsilon": total_epsilon,
            "lifetime_epsilon": lifetime_epsilon,
            "declared_only": declared_only,
        },
        "edges": edges,
        "broker": broker,
        "peers": peers,
        "position": None if position is None else _place(position),
    }
    _start("agent", given, shared)


@edge_app.command(
    "start",
    epilog=options.examples(
        "fedagent edge start --name hall",
        "fedagent edge start --name hall --insecure --listen 0.0.0.0",
        "fedagent edge start --broker mqtt://192.168.1.10:1883 --insecure",
    ),
)
@options.of_a_role
def edge_start(
    *,
    name: options.Name = None,
    broker: options.RunBroker = None,
    listen: options.Listen = None,
    port: options.Port = None,
    coordinator: options.CoordinatorAddress = None,
    chunk_bytes: options.ChunkBytes = None,
    credit_bytes: options.CreditBytes = None,
    need_wait_ms: options.NeedWaitMs = None,
    rent: options.Rent = None,
    **shared: object,
) -> None:
    """Run an edge aggregator: a broker for the devices near it, and their average.

    It advertises itself, collects updates until the deadline, averages them and
    reports to the coordinator, which it finds by zeroconf.
    """
    given = {
        "name": name,
        "broker": broker,
        "listen": listen,
        "port": port,
        "coordinator": coordinator,
        "chunk_bytes": chunk_bytes,
        "credit_bytes": credit_bytes,
        "need_wait_ms": need_wait_ms,
        "rent": rent,
    }
    _start("edge", given, shared)


@coordinator_app.command(
    "start",
    epilog=options.examples(
        "fedagent coordinator start --recipe digits",
        "fedagent coordinator start --recipe my.toml --policy cheapest --seed 7",
        "fedagent coordinator start --recipe digits --set rounds.count=10 --new-run",
        "fedagent coordinator start --recipe digits --more-rounds 30",
        "fedagent coordinator start --recipe digits --new-run --init digits.safetensors",
    ),
)
@options.of_a_role
def coordinator_start(
    *,
    recipe: options.RecipeFile = None,
    sets: options.Sets = None,
    policy: options.Policy = None,
    seed: options.Seed = None,
    new_run: options.NewRun = None,
    more_rounds: options.MoreRounds = None,
    init: options.Init = None,
    accept_lost_history: options.AcceptLostHistory = None,
    wait_edges: options.WaitEdges = None,
    wait_agents: options.WaitAgents = None,
    grace_s: options.GraceS = None,
    linger_s: options.LingerS = None,
    broker: options.RunBroker = None,
    listen: options.Listen = None,
    port: options.Port = None,
    **shared: object,
) -> None:
    """Run the coordinator: each round it decides who trains where, and pays for it.

    The same recipe continues the run of this data directory; another one needs
    --new-run. It ends with exit code 0 after the last round; --more-rounds goes on.
    """
    given = {
        "recipe": recipe,
        "sets": sets,
        "policy": policy,
        "seed": seed,
        "new_run": new_run,
        "more_rounds": more_rounds,
        "init": init,
        "accept_lost_history": accept_lost_history,
        "wait_edges": wait_edges,
        "wait_agents": wait_agents,
        "grace_s": grace_s,
        "linger_s": linger_s,
        "broker": broker,
        "listen": listen,
        "port": port,
    }
    _start("coordinator", given, shared)


def _start(role: str, given: Mapping[str, object], shared: Mapping[str, object]) -> None:
    """Make a role's configuration of its options and its file, and become the role."""
    rest = dict(shared)
    print_config, as_json = bool(rest.pop("print_config")), bool(rest.pop("as_json"))
    file = launch.read_config(_path(rest.pop("config")))
    data_dir = _path(rest.pop("data_dir"))
    tls = launch.tls(*(_path(rest.pop(f"tls_{part}")) for part in ("ca", "cert", "key")))
    made = launch.merge(file, {**given, **rest, "tls": tls})
    if role == "agent":
        _finish_agent(made)
    elif role == "coordinator":
        _finish_coordinator(made)
    if data_dir is not None:
        made["data_dir"] = str(data_dir.expanduser().resolve())
    elif "data_dir" not in made:
        name = made.get("name")
        made["data_dir"] = str(places.data_dir(role, None if name is None else str(name)))
    launch.become(role, made, print_config=print_config, as_json=as_json)


def _finish_agent(made: launch.Config) -> None:
    """Ask for a stream."""
    if "stream" not in made:
        raise UsageError("no stream to learn from", "add one, e.g. --stream digits")


def _place(text: str) -> list[float]:
    """Return x and y of ``X_KM,Y_KM``."""
    try:
        x, y = (float(part) for part in text.split(","))
    except ValueError:
        x = y = math.nan
    if not (math.isfinite(x) and math.isfinite(y)):
        raise UsageError(f"--position: {text!r} is no place", "write e.g. 0.12,-0.4")
    return [x, y]


def _finish_coordinator(made: launch.Config) -> None:
    """Look for the packages of a coordinator, and for the recipe's file."""
    launch.need_coordinator("a coordinator")
    if "recipe" not in made:
        known = ", ".join(places.recipe_names())
        raise UsageError("no recipe", f"add --recipe with a file, or one of: {known}")
    made["recipe"] = str(places.find_recipe(str(made["recipe"])))


def _path(value: object) -> Path | None:
    return value if isinstance(value, Path) else None
