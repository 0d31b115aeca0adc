"""The doctor's checks: one look at one thing, one line, one hint."""

import asyncio
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property, partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from fedagent_agent.availability import LimitsSettings
from fedagent_agent.core.opinions import PrivacySettings
from fedagent_node.broker import mosquitto_program
from fedagent_node.network import lan_addresses
from fedagent_protocol.extras import how_to_add

if TYPE_CHECKING:
    from fedagent_agent.availability import LimitCheck

    from .adverts import Seen

RULES = ("battery", "temperature", "throttling", "metered", "memory", "load")
LOOK_S = 0.3
SHOWN = 6
"""Adverts that are named; more are counted."""
MDNS_PORT = 5353
LOW_DISK_BYTES = 500 * 1024**2
MIN_DISK_BYTES = 50 * 1024**2
SLOW_FSYNC_MS = 50.0
RELEASED = 1_760_000_000
"""A second before this version was made: a clock that shows less is wrong."""


class Level(StrEnum):
    """How bad it is."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found."""

    check: str
    level: Level
    text: str
    hint: str = ""


def python() -> Finding:
    """Check the interpreter's version and word size."""
    version = ".".join(map(str, sys.version_info[:3]))
    bits = 64 if sys.maxsize > 2**32 else 32
    if bits < 64:
        return Finding(
            "python", Level.WARN, f"{version}, {bits} bit", "use a 64-bit system where there is one"
        )
    return Finding("python", Level.OK, f"{version}, {bits} bit")


def mdns() -> Finding:
    """Say something to the zeroconf group on each network, and hear it."""
    from . import adverts  # noqa: PLC0415 - for this check only

    deaf = adverts.deaf()
    if deaf:
        silent = ", ".join(f"on {address} ({why})" for address, why in deaf.items())
        return Finding(
            "mdns",
            Level.WARN,
            f"multicast does not work {silent}",
            "allow UDP 5353 and multicast, or give addresses with --edge and --coordinator",
        )
    networks = ", ".join(lan_addresses()) or "loopback alone"
    return Finding("mdns", Level.OK, f"multicast to {adverts.MDNS_GROUP} works on {networks}")


def reachable() -> Finding:
    """Look who is announced, and connect to each address that is told."""
    from . import adverts  # noqa: PLC0415 - for this check only

    return of_adverts(asyncio.run(adverts.look()))


def of_adverts(seen: "list[Seen]") -> Finding:
    """Say who cannot be reached at any address that is told; one of several is enough."""
    from . import adverts  # noqa: PLC0415 - for this check only

    lost = [
        f"{one.name} is announced at {place}: {why}"
        for one in seen
        if not one.reached
        for place, why in one.refused.items()
    ]
    if lost:
        return Finding(
            "adverts",
            Level.WARN,
            "; ".join(lost),
            "start it with --listen and an address that this machine reaches, open the port in "
            "its firewall, or give --edge or --coordinator HOST:PORT",
        )
    if crowded := adverts.crowded(seen):
        return Finding(
            "adverts",
            Level.WARN,
            f"more than one coordinator at site {', '.join(crowded)}: "
            + ", ".join(one.name for one in seen if one.advert.role == "coordinator"),
            "stop one of them, or give each a --site of its own, and its edges and agents the same",
        )
    who = ", ".join(f"{one.name} at {' and '.join(one.reached)}" for one in seen[:SHOWN])
    who += f" and {len(seen) - SHOWN} more" if len(seen) > SHOWN else ""
    return Finding(
        "adverts", Level.OK, f"reached: {who}" if seen else "no edge or coordinator is announced"
    )


def mdns_port() -> Finding:
    """Check that port 5353 can be shared with whoever has it already (avahi)."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if hasattr(socket, "SO_REUSEPORT"):
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            probe.bind(("", MDNS_PORT))
    except OSError as error:
        return Finding(
            "avahi",
            Level.WARN,
            f"port 5353 cannot be shared: {error}",
            "set `disallow-other-stacks=no` in avahi-daemon.conf, or give addresses",
        )
    present = Path("/run/avahi-daemon").exists() or shutil.which("avahi-daemon") is not None
    return Finding(
        "avahi", Level.OK, f"port 5353 is shared, avahi {'is here' if present else 'is not here'}"
    )


def broker() -> Finding:
    """Look for a broker that an edge or the coordinator can run."""
    path = mosquitto_program()
    if path is not None:
        told = subprocess.run(
            [path, "-h"], capture_output=True, text=True, timeout=10, check=False
        ).stdout
        first = told.splitlines()[0] if told else "mosquitto"
        return Finding("broker", Level.OK, f"{first} at {path}")
    if find_spec("amqtt") is not None:
        return Finding(
            "broker",
            Level.WARN,
            "no mosquitto; edges use the embedded broker, which is slower",
            "apt install mosquitto",
        )
    return Finding(
        "broker",
        Level.WARN,
        "no mosquitto and no embedded broker; an agent needs none, edge and coordinator do",
        f"apt install mosquitto, or {how_to_add('edge')}, or give --broker URL",
    )


def port() -> Finding:
    """Bind a free TCP port on loopback and connect to it."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            number = server.getsockname()[1]
            with socket.create_connection(("127.0.0.1", number), timeout=2):
                pass
    except OSError as error:
        return Finding(
            "port", Level.FAIL, f"no TCP on loopback: {error}", "look at the firewall of `lo`"
        )
    return Finding("port", Level.OK, f"free TCP ports on loopback, {number} for one")


def clock() -> Finding:
    """Check that the wall clock is sane; nothing but logs and certificates needs it."""
    now = time.time()
    if now < RELEASED:
        return Finding(
            "clock",
            Level.WARN,
            time.strftime("%Y-%m-%d %H:%M UTC is in the past", time.gmtime(now)),
            "turn on NTP: timedatectl set-ntp true",
        )
    return Finding("clock", Level.OK, time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(now)))


def disk(folder: Path) -> Finding:
    """Check free space where the data directories are."""
    free = shutil.disk_usage(_existing(folder)).free
    text = f"{free / 1024**3:.1f} GiB free for {folder}"
    if free < MIN_DISK_BYTES:
        return Finding("disk", Level.FAIL, text, "free some space, or set FEDAGENT_HOME elsewhere")
    if free < LOW_DISK_BYTES:
        return Finding("disk", Level.WARN, text, "free some space, or set FEDAGENT_HOME elsewhere")
    return Finding("disk", Level.OK, text)


def fsync(folder: Path) -> Finding:
    """Measure how long a durable write takes where the data directories are."""
    try:
        with tempfile.TemporaryFile(dir=_existing(folder)) as file:
            took = []
            for _ in range(8):
                start = time.perf_counter()
                file.write(b"x" * 4096)
                file.flush()
                os.fsync(file.fileno())
                took.append((time.perf_counter() - start) * 1000)
    except OSError as error:
        return Finding(
            "fsync", Level.FAIL, f"cannot write below {folder}: {error}", "set FEDAGENT_HOME"
        )
    median = sorted(took)[len(took) // 2]
    text = f"a durable write takes {median:.1f} ms"
    if median > SLOW_FSYNC_MS:
        return Finding(
            "fsync", Level.WARN, text, "use an SSD or a better SD card for FEDAGENT_HOME"
        )
    return Finding("fsync", Level.OK, text)


class Rules:
    """What the rules of an agent on this machine say now: would it train, and why not?"""

    def __init__(self, limits: LimitsSettings) -> None:
        self._limits = limits

    @cached_property
    def _verdicts(self) -> "dict[str, LimitCheck]":
        # 60 ms that only these checks need.
        from fedagent_agent.context import Context, Programs  # noqa: PLC0415

        context = Context(limits=self._limits)
        context.update_host(asyncio.run(Programs.here().ask()))
        context.check_limits(time.monotonic())
        time.sleep(LOOK_S)  # the load is a difference
        return {verdict.rule: verdict for verdict in context.check_limits(time.monotonic())}

    def check(self, rule: str) -> Finding:
        """Ask one rule."""
        said = self._verdicts[rule]
        if said.objects:
            return Finding(rule, Level.WARN, f"no training: {said.text}", said.hint)
        return Finding(rule, Level.OK, said.text)


def package(name: str, gives: str, install: str) -> Finding:
    """Look for one optional package; its absence is no fault."""
    if find_spec(name) is not None:
        return Finding(name, Level.OK, f"installed: {gives}")
    return Finding(name, Level.OK, f"not installed, optional: {gives}", install)


def opinions(privacy: PrivacySettings) -> Finding:
    """Say what calls for opinions get from an agent on this machine."""
    most, total = privacy.max_epsilon, privacy.total_epsilon
    lifetime = privacy.lifetime_epsilon
    to = ", to declared neighbours only" if privacy.declared_only else ""
    if most is None and total is None and lifetime is None:
        return Finding("opinions", Level.OK, f"given as a task wants them, noised or not{to}")
    granted = [f"epsilon at most {most:g} each"] if most is not None else []
    granted += [f"{total:g} in a run"] if total is not None else []
    granted += [f"{lifetime:g} ever"] if lifetime is not None else []
    text = f"given with noise only, {', '.join(granted)}{to}"
    if find_spec("opendp") is None:
        return Finding("opinions", Level.WARN, f"{text}; noise needs opendp", how_to_add("privacy"))
    return Finding("opinions", Level.OK, text)


def all_checks(
    folder: Path, limits: LimitsSettings | None = None, privacy: PrivacySettings | None = None
) -> list[Callable[[], Finding]]:
    """Return every check, in the order of the lines."""
    rules = Rules(limits if limits is not None else LimitsSettings())
    return [
        python,
        mdns,
        mdns_port,
        reachable,
        broker,
        port,
        clock,
        lambda: disk(folder),
        lambda: fsync(folder),
        *(partial(rules.check, rule) for rule in RULES),
        lambda: opinions(privacy if privacy is not None else PrivacySettings()),
        lambda: package("amqtt", "the embedded broker", how_to_add("edge")),
        lambda: package("rich", "a coordinator", how_to_add("coordinator")),
        lambda: package("matplotlib", "plots in reports", how_to_add("report")),
        lambda: package("torch", "convolutional networks learnt faster", how_to_add("torch")),
        lambda: package("onnxruntime", "neural networks scored faster", how_to_add("onnxruntime")),
        lambda: package("opendp", "opinions with noise", how_to_add("privacy")),
        lambda: package("numba", "strsaga learnt faster", how_to_add("fast")),
    ]


def _existing(folder: Path) -> Path:
    """Return the folder, or its nearest parent that exists."""
    return next(path for path in (folder, *folder.resolve().parents) if path.exists())
