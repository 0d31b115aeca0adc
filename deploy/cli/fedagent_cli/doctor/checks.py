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

from fedagent_agent.availability import LimitCheck, LimitsSettings
from fedagent_agent.context import Context, HostInfo, Programs
from fedagent_agent.core.opinions import PrivacySettings
from fedagent_agent.wifi import interfaces
from fedagent_cli.doctor import network as adverts
from fedagent_cli.doctor.network import Seen
from fedagent_node.broker.mosquitto import mosquitto_program
from fedagent_node.errors import JoinError, LinkError
from fedagent_node.network import MDNS_GROUP, lan_addresses
from fedagent_node.site.credentials import load_credentials
from fedagent_protocol.errors import FedagentError
from fedagent_protocol.extras import how_to_add
from fedagent_task import aggregation

RULES = ("battery", "temperature", "throttling", "metered", "memory", "load")
PACKAGES = {
    "amqtt": ("the embedded broker", "edge"),
    "rich": ("a coordinator", "coordinator"),
    "matplotlib": ("plots of comparisons", "report"),
    "torch": ("training of PyTorch models, faster convolutional networks", "torch"),
    "onnxruntime": ("faster scoring of neural networks", "onnxruntime"),
    "opendp": ("opinions with noise", "privacy"),
    "numba": ("faster training with strsaga", "fast"),
    "pyroute2": ("rate and channel of the Wi-Fi", "wifi"),
}
"""Optional package to what it gives, and its extra."""
LOOK_S = 0.3
SHOWN = 6
"""Adverts that are named; more are counted."""
MDNS_PORT = 5353
LOW_DISK_BYTES = 500 * 1024**2
MIN_DISK_BYTES = 50 * 1024**2
SLOW_FSYNC_MS = 50.0
LATE_S = 86_400.0
"""How long a renewal may be due before somebody is told."""
RELEASED = 1_760_000_000
"""A second before this version was made: a clock that shows less is wrong."""


class Level(StrEnum):
    """How bad it is."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """What one look found."""

    level: Level
    text: str
    hint: str = ""


Look = Callable[[], Finding]
fine = partial(Finding, Level.OK)
odd = partial(Finding, Level.WARN)
broken = partial(Finding, Level.FAIL)


def python() -> Finding:
    """Check the interpreter's version and word size."""
    bits = 64 if sys.maxsize > 2**32 else 32
    text = f"{'.'.join(map(str, sys.version_info[:3]))}, {bits} bit"
    return fine(text) if bits == 64 else odd(text, "use a 64-bit system where there is one")


def mdns() -> Finding:
    """Send to the zeroconf group on each network, and receive it."""
    if deaf := adverts.deaf():
        silent = ", ".join(f"on {address} ({why})" for address, why in deaf.items())
        hint = "allow UDP 5353 and multicast, or give addresses with --edge and --coordinator"
        return odd(f"multicast does not work {silent}", hint)
    networks = ", ".join(lan_addresses()) or "loopback only"
    return fine(f"multicast to {MDNS_GROUP} works on {networks}")


def reachable() -> Finding:
    """Look who is announced, and connect to each address in its advert."""
    return of_adverts(asyncio.run(adverts.look()))


def of_adverts(seen: list[Seen]) -> Finding:
    """Name who cannot be reached at any address of its advert; one of several is enough."""
    lost = [
        f"{one.name} is announced at {place}: {why}"
        for one in seen
        if not one.reached
        for place, why in one.refused.items()
    ]
    if lost:
        hint = (
            "start it with --listen and an address that this machine can reach, open the port "
            "in its firewall, or give --edge or --coordinator HOST:PORT"
        )
        return odd("; ".join(lost), hint)
    if crowded := adverts.crowded(seen):
        who = ", ".join(one.name for one in seen if one.advert.role == "coordinator")
        hint = (
            "stop one of them, or give each its own --site, and its edges and agents the same one"
        )
        return odd(f"more than one coordinator at site {', '.join(crowded)}: {who}", hint)
    who = ", ".join(f"{one.name} at {' and '.join(one.reached)}" for one in seen[:SHOWN])
    who += f" and {len(seen) - SHOWN} more" if len(seen) > SHOWN else ""
    return fine(f"reached: {who}" if seen else "no edge or coordinator is announced")


def mdns_port() -> Finding:
    """Check that port 5353 can be shared with another program (avahi)."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if hasattr(socket, "SO_REUSEPORT"):
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            probe.bind(("", MDNS_PORT))
    except OSError as error:
        hint = "set `disallow-other-stacks=no` in avahi-daemon.conf, or give addresses"
        return odd(f"port 5353 cannot be shared: {error}", hint)
    present = Path("/run/avahi-daemon").exists() or shutil.which("avahi-daemon") is not None
    return fine(f"port 5353 is shared, avahi {'is installed' if present else 'is not installed'}")


def broker() -> Finding:
    """Look for a broker that an edge or the coordinator can run."""
    path = mosquitto_program()
    if path is not None:
        answer = subprocess.run(
            [path, "-h"], capture_output=True, text=True, timeout=10, check=False
        ).stdout
        return fine(f"{answer.splitlines()[0] if answer else 'mosquitto'} at {path}")
    if find_spec("amqtt") is not None:
        text = "mosquitto is not installed; edges use the embedded broker, which is slower"
        return odd(text, "apt install mosquitto")
    return odd(
        "neither mosquitto nor the embedded broker is installed; edge and coordinator need "
        "one, an agent does not",
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
        return broken(f"no TCP on loopback: {error}", "check the firewall rules of `lo`")
    return fine(f"free TCP ports on loopback, {number} for one")


def clock() -> Finding:
    """Check that the wall clock is sane; nothing but logs and certificates needs it."""
    now = time.time()
    text = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(now))
    if now < RELEASED:
        return odd(
            f"the clock shows {text}, which is in the past", "turn on NTP: timedatectl set-ntp true"
        )
    return fine(text)


def certificates(folder: Path) -> Finding:
    """Say which sites the roles of this machine joined, and whether their certificates hold."""
    told, bad, hints = [], [], []
    for place in sorted(folder.glob("*/site/cert.pem")):
        role = place.parents[1].name
        try:
            state, hint = _standing(place.parents[1])
        except LinkError as error:
            state, hint = str(error), "delete that folder `site`, and join again with --join"
        told.append(f"{role}: {state}")
        if hint:
            bad.append(f"{role}: {state}")
            hints.append(hint)
    if bad:
        return odd("; ".join(bad), hints[0])
    return fine("; ".join(told) or "no role on this machine has joined a site")


def _standing(data_dir: Path) -> tuple[str, str]:
    """Return how a role's certificate stands, and the hint if it does not hold."""
    held = load_credentials(data_dir)
    if held is None:
        return "not joined", ""
    own, now = held.certificate, time.time()
    site = f"{own.role} of site {own.site}"
    until = time.strftime("%Y-%m-%d", time.gmtime(own.not_after))
    if held.revocations().has(own):
        return f"{site}, revoked", JoinError("revoked").hint
    if now < own.not_before:
        hint = (
            "set the clock: timedatectl set-ntp true; until then certificate dates are not "
            "checked here"
        )
        return f"{site}, certificate not valid yet by this machine's clock", hint
    if now >= own.not_after:
        hint = "start the role where it can reach the coordinator: the certificate is then renewed"
        return f"{site}, certificate expired on {until}", hint
    if now >= own.renew_at + LATE_S:
        hint = "renewal is overdue: start the role where it can reach the coordinator"
        return f"{site}, certificate until {until}", hint
    return f"{site}, certificate until {until}", ""


def disk(folder: Path) -> Finding:
    """Check free space where the data directories are."""
    free = shutil.disk_usage(_existing(folder)).free
    text = f"{free / 1024**3:.1f} GiB free for {folder}"
    if free >= LOW_DISK_BYTES:
        return fine(text)
    bad = broken if free < MIN_DISK_BYTES else odd
    return bad(text, "free some space, or set FEDAGENT_HOME elsewhere")


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
        return broken(f"cannot write below {folder}: {error}", "set FEDAGENT_HOME")
    median = sorted(took)[len(took) // 2]
    text = f"a durable write takes {median:.1f} ms"
    if median > SLOW_FSYNC_MS:
        return odd(text, "use an SSD or a better SD card for FEDAGENT_HOME")
    return fine(text)


class Rules:
    """The resource limits of an agent on this machine: would it train now, and why not?"""

    def __init__(self, limits: LimitsSettings) -> None:
        self._limits = limits

    @cached_property
    def _host(self) -> HostInfo:
        return asyncio.run(Programs.here().ask())

    @cached_property
    def _verdicts(self) -> dict[str, LimitCheck]:
        # 60 ms that only these checks need.
        context = Context(limits=self._limits)
        context.update_host(self._host)
        context.check_limits(time.monotonic())
        time.sleep(LOOK_S)  # the load is a difference
        return {verdict.rule: verdict for verdict in context.check_limits(time.monotonic())}

    def wifi(self) -> Finding:
        """Say what is known of the Wi-Fi in use."""
        radio, names = self._host.radio, ", ".join(interfaces())
        if radio is not None:
            return fine(str(radio))
        return fine(
            f"{names} is not in use, or reports no values" if names else "no Wi-Fi interface"
        )

    def check(self, rule: str) -> Finding:
        """Ask one rule."""
        verdict = self._verdicts[rule]
        if verdict.objects:
            return odd(f"no training: {verdict.text}", verdict.hint)
        return fine(verdict.text)


def package(name: str, gives: str, extra: str) -> Finding:
    """Look for one optional package; its absence is no fault."""
    if find_spec(name) is not None:
        return fine(f"installed: {gives}")
    return fine(f"not installed, optional: {gives}", how_to_add(extra))


def opinions(privacy: PrivacySettings) -> Finding:
    """Say what calls for opinions get from an agent on this machine."""
    most, total = privacy.max_epsilon, privacy.total_epsilon
    lifetime = privacy.lifetime_epsilon
    to = ", to declared neighbours only" if privacy.declared_only else ""
    if most is None and total is None and lifetime is None:
        return fine(f"sent as the task asks, with or without noise{to}")
    granted = [f"epsilon at most {most:g} each"] if most is not None else []
    granted += [f"{total:g} in a run"] if total is not None else []
    granted += [f"{lifetime:g} ever"] if lifetime is not None else []
    text = f"sent with noise only, {', '.join(granted)}{to}"
    if find_spec("opendp") is None:
        return odd(f"{text}; noise needs opendp", how_to_add("privacy"))
    return fine(text)


def strategies() -> Finding:
    """Name the aggregation strategies, and what is wrong with one that somebody installed."""
    broken = {}
    for name in aggregation.names():
        try:
            aggregation.parameters(name)
        except FedagentError as error:
            broken[name] = str(error)
    if broken:
        return odd("; ".join(broken.values()), "install that package again, or remove it")
    return fine(", ".join(aggregation.names()))


def all_checks(
    folder: Path, limits: LimitsSettings | None = None, privacy: PrivacySettings | None = None
) -> dict[str, Look]:
    """Return every check by its name, in the order of the lines."""
    rules = Rules(limits if limits is not None else LimitsSettings())
    packages = {name: partial(package, name, *words) for name, words in PACKAGES.items()}
    return {
        "python": python,
        "mdns": mdns,
        "avahi": mdns_port,
        "adverts": reachable,
        "broker": broker,
        "port": port,
        "clock": clock,
        "certificates": partial(certificates, folder),
        "disk": partial(disk, folder),
        "fsync": partial(fsync, folder),
        **{rule: partial(rules.check, rule) for rule in RULES},
        "wifi": rules.wifi,
        "opinions": partial(opinions, privacy if privacy is not None else PrivacySettings()),
        "aggregation": strategies,
        **packages,
    }


def _existing(folder: Path) -> Path:
    """Return the folder, or its nearest parent that exists."""
    return next(path for path in (folder, *folder.resolve().parents) if path.exists())
