"""The options of the commands, each defined once."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

from . import command_line

LINK = "Link"
PLACE = "Where"

AsJson = Annotated[
    bool,
    command_line.Option("--json", help="Print JSON lines only; the last line is the result."),
]
Site = Annotated[
    str | None,
    command_line.Option(help="Only members of one site see each other.", show_default="default"),
]
DataDir = Annotated[
    Path | None,
    command_line.Option(
        help="Data directory: identity, outbox, database.",
        show_default="by role and name below $FEDAGENT_HOME",
        panel=PLACE,
    ),
]
CoordinatorData = Annotated[
    Path | None,
    command_line.Option(
        "--data-dir",
        help="Data directory of the coordinator to read.",
        readable=False,  # whoever opens it says whose it is
        show_default="$FEDAGENT_HOME/coordinator",
    ),
]
RunId = Annotated[
    str | None,
    command_line.Option("--run", help="A run by the start of its id.", show_default="the newest"),
]
ConfigFile = Annotated[
    Path | None,
    command_line.Option(
        "--config",
        help="TOML or JSON file with the same keys; options win over it.",
        exists=True,
        dir_okay=False,
        panel=PLACE,
    ),
]
LogLevel = Annotated[
    str | None,
    command_line.Option(help="debug, info, warning or error.", show_default="info"),
]
PrintConfig = Annotated[
    bool,
    command_line.Option("--print-config", help="Check the configuration, print it, start nothing."),
]
Discovery = Annotated[
    str | None,
    command_line.Option(
        help="Find peers by zeroconf on the lan, on loopback only, or off.",
        show_default="lan",
        panel=LINK,
    ),
]
RunBroker = Annotated[
    str | None,
    command_line.Option(
        help="Own broker (auto, mosquitto, embedded), or the URL of a running one.",
        show_default="auto",
        panel=LINK,
    ),
]
Listen = Annotated[
    str | None,
    command_line.Option(
        help="Address the own broker listens on. Beyond loopback it needs certificates "
        "or --insecure.",
        show_default="127.0.0.1",
        panel=LINK,
    ),
]
Port = Annotated[
    int | None,
    command_line.Option(help="Port of the own broker; 0 takes a free one.", panel=LINK),
]
Insecure = Annotated[
    bool | None,
    command_line.Option(
        "--insecure",
        help="Allow plain MQTT beyond loopback. Logged at every start.",
        panel=LINK,
    ),
]
PasswordFile = Annotated[
    Path | None,
    command_line.Option(
        help="Password of a broker whose address names a user (mqtt://USER@HOST).",
        show_default="$FEDAGENT_MQTT_PASSWORD",
        panel=LINK,
    ),
]
TlsCa = Annotated[
    Path | None,
    command_line.Option(help="Certificate authority, PEM.", panel=LINK),
]
TlsCert = Annotated[
    Path | None,
    command_line.Option(help="Own certificate, PEM.", panel=LINK),
]
TlsKey = Annotated[
    Path | None,
    command_line.Option(help="Own private key, PEM.", panel=LINK),
]

Name = Annotated[
    str | None,
    command_line.Option(help="A name for people; it also names the data directory."),
]
Seed = Annotated[int | None, command_line.Option(help="Seed of everything random.")]

# ------------------------------------------------------------------- the agent's

Edges = Annotated[
    list[str] | None,
    command_line.Option(
        "--edge",
        metavar="HOST:PORT",
        help="Address of an edge, where zeroconf does not reach. Repeatable.",
        panel=LINK,
    ),
]
SharedBroker = Annotated[
    str | None,
    command_line.Option(
        metavar="URL",
        help="One shared broker that carries the edges.",
        panel=LINK,
    ),
]
Peers = Annotated[
    list[str] | None,
    command_line.Option(
        "--peer",
        metavar="ID[:KM]",
        help="A neighbour to decide with, where a task has neighbours declared. Repeatable.",
        panel=LINK,
    ),
]
Position = Annotated[
    str | None,
    command_line.Option(
        metavar="X_KM,Y_KM",
        help="Where this device is, in kilometres; edges see it, and join the nearest.",
        panel=LINK,
    ),
]
Stream = Annotated[
    str | None,
    command_line.Option(help="What to learn from: `digits`, a CSV file that grows, an MQTT topic."),
]
HeldOut = Annotated[
    str | None,
    command_line.Option(
        metavar="STREAM",
        help="A second stream that opinions rest on; nobody learns from it.",
        show_default="what is not learnt from yet",
    ),
]
PriceBase = Annotated[
    float | None,
    command_line.Option(help="Credits this device asks for one round.", show_default="0.1"),
]
PricePerCompute = Annotated[
    float | None,
    command_line.Option(help="Credits on top for each core that is free.", show_default="0.2"),
]
SlowS = Annotated[
    float | None,
    command_line.Option(
        help="Extra seconds of training, to rehearse a slow device.", show_default="0"
    ),
]

LIMITS = "Resource limits"

LoadLimit = Annotated[
    float | None,
    command_line.Option(
        metavar="SECONDS",
        help="Seconds of computation that one round may take; 0 for no limit.",
        show_default="0",
        panel=LIMITS,
    ),
]
Nice = Annotated[
    int | None,
    command_line.Option(help="Niceness of the training, 0 to 19.", show_default="10", panel=LIMITS),
]
MemoryLimit = Annotated[
    int | None,
    command_line.Option(
        metavar="MB",
        help="Memory that a training may take; 0 for no limit.",
        show_default="half of the machine's",
        panel=LIMITS,
    ),
]
MinBattery = Annotated[
    float | None,
    command_line.Option(
        metavar="PERCENT",
        help="Do not train on battery below this charge; 0 for any.",
        show_default="30",
        panel=LIMITS,
    ),
]
MainsOnly = Annotated[
    bool | None,
    command_line.Option("--mains-only", help="Never train on battery.", panel=LIMITS),
]
MaxTemperature = Annotated[
    float | None,
    command_line.Option(
        metavar="CELSIUS",
        help="Do not train while the device is hotter; 0 for any.",
        show_default="85",
        panel=LIMITS,
    ),
]
WhenThrottled = Annotated[
    bool | None,
    command_line.Option(
        "--when-throttled",
        help="Train also while the device slows itself down.",
        panel=LIMITS,
    ),
]
Metered = Annotated[
    str | None,
    command_line.Option(
        metavar="auto|yes|no",
        help="Whether the link costs money; auto asks NetworkManager.",
        show_default="auto",
        panel=LIMITS,
    ),
]
OnMetered = Annotated[
    bool | None,
    command_line.Option("--on-metered", help="Train also over a metered link.", panel=LIMITS),
]
MinMemory = Annotated[
    int | None,
    command_line.Option(
        metavar="MB",
        help="Do not train with less memory free; 0 for any.",
        show_default="64",
        panel=LIMITS,
    ),
]
MaxLoad = Annotated[
    float | None,
    command_line.Option(
        metavar="PERCENT",
        help="Do not train while other programs use more of the processors; 100 for any.",
        show_default="100",
        panel=LIMITS,
    ),
]

PRIVACY = "Privacy of opinions"

MaxEpsilon = Annotated[
    float | None,
    command_line.Option(
        metavar="EPSILON",
        help="Maximum epsilon per opinion. When set, opinions without noise are never sent.",
        show_default="any",
        panel=PRIVACY,
    ),
]
TotalEpsilon = Annotated[
    float | None,
    command_line.Option(
        metavar="EPSILON",
        help="Total epsilon budget per run. When set, opinions without noise are never sent.",
        show_default="any",
        panel=PRIVACY,
    ),
]
LifetimeEpsilon = Annotated[
    float | None,
    command_line.Option(
        metavar="EPSILON",
        help="Total epsilon budget of this device. When set, opinions without noise are not sent.",
        show_default="any",
        panel=PRIVACY,
    ),
]
DeclaredOnly = Annotated[
    bool | None,
    command_line.Option(
        "--declared-only",
        help="Tell opinions to neighbours given with --peer alone, and to no edge.",
        panel=PRIVACY,
    ),
]

# -------------------------------------------------------------------- the edge's

CoordinatorAddress = Annotated[
    str | None,
    command_line.Option(
        metavar="HOST:PORT",
        help="Address of the coordinator, where zeroconf does not reach.",
        panel=LINK,
    ),
]
ChunkBytes = Annotated[
    int | None, command_line.Option(help="Size of a model chunk.", show_default="262144")
]
CreditBytes = Annotated[
    int | None,
    command_line.Option(
        help="Upload bytes on the way at once, all agents.", show_default="4194304"
    ),
]
NeedWaitMs = Annotated[
    int | None,
    command_line.Option(
        help="Wait of a model for agents that have not answered.", show_default="50"
    ),
]
Rent = Annotated[
    float | None,
    command_line.Option(
        help="Credits this edge asks for aggregating one round of a placed run.",
        show_default="0",
    ),
]

# ------------------------------------------------------------- the coordinator's

RecipeFile = Annotated[
    str | None, command_line.Option(help="Recipe: a TOML file, or the name of a bundled one.")
]
Sets = Annotated[
    list[str] | None,
    command_line.Option("--set", metavar="KEY=VALUE", help="Override a recipe key. Repeatable."),
]
Policy = Annotated[
    str | None, command_line.Option(help="Who trains: override the recipe's policy.")
]
NewRun = Annotated[
    bool | None,
    command_line.Option("--new-run", help="Start over, although this directory holds a run."),
]
MoreRounds = Annotated[
    int | None,
    command_line.Option(min=1, help="Let a run that has ended go on for so many more rounds."),
]
Init = Annotated[
    str | None,
    command_line.Option(
        metavar="MODEL",
        help="Begin a new run from this model: an exported .safetensors file, or a digest "
        "of `fedagent models list`.",
        show_default="the seed's model",
    ),
]
AcceptLostHistory = Annotated[
    bool | None,
    command_line.Option("--accept-lost-history", help="Go on with a database older than it was."),
]
WaitEdges = Annotated[
    int | None,
    command_line.Option(help="Edges that must be there before round 1.", show_default="1"),
]
WaitAgents = Annotated[
    int | None,
    command_line.Option(help="Agents that must be there before round 1.", show_default="1"),
]
GraceS = Annotated[
    float | None,
    command_line.Option(help="Seconds beyond max_wait for an edge's report.", show_default="2"),
]
LingerS = Annotated[
    float | None,
    command_line.Option(help="Seconds to tell the edges that the run has ended.", show_default="1"),
]

ROLE: dict[str, tuple[object, object]] = {
    "discovery": (Discovery, None),
    "insecure": (Insecure, None),
    "password_file": (PasswordFile, None),
    "tls_ca": (TlsCa, None),
    "tls_cert": (TlsCert, None),
    "tls_key": (TlsKey, None),
    "site": (Site, None),
    "data_dir": (DataDir, None),
    "config": (ConfigFile, None),
    "log_level": (LogLevel, None),
    "print_config": (PrintConfig, False),
    "as_json": (AsJson, False),
}
"""What every role's start takes: name of the parameter, kind, default."""


def of_a_role(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of `ROLE`, in place of its ``**shared``."""
    own = inspect.signature(command)
    kept = [p for p in own.parameters.values() if p.kind is not p.VAR_KEYWORD]
    more = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
        for name, (kind, default) in ROLE.items()
    ]
    # `command_line` reads the signature; `inspect` lets a function state one of its own.
    command.__signature__ = own.replace(  # type: ignore[attr-defined] # functions take attributes
        parameters=[*kept, *more]
    )
    return command


def examples(*lines: str) -> str:
    """Return an epilogue that shows each example on a line of its own."""
    return "\n\n".join(["Examples", *(f"$ {line}" for line in lines)])
