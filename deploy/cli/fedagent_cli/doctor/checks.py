"""The doctor's checks: one look at one thing, one line, one hint."""

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from fedagent_agent.availability import LimitsSettings
from fedagent_agent.context import Context, HostInfo, ask_host
from fedagent_agent.wifi import interfaces
from fedagent_node.broker.mosquitto import mosquitto_program
from fedagent_protocol.extras import how_to_add

PACKAGES = {
    "amqtt": ("the embedded broker", "edge"),
    "rich": ("a coordinator", "coordinator"),
    "matplotlib": ("plots of comparisons", "plots"),
    "torch": ("training of PyTorch models, faster convolutional networks", "torch"),
    "onnxruntime": ("scoring of neural networks without torch", "onnxruntime"),
    "opendp": ("opinions with noise", "privacy"),
    "numba": ("faster training with strsaga", "fast"),
    "pyroute2": ("rate and channel of the Wi-Fi", "wifi"),
}
"""Optional package to what it gives, and its extra."""
LOOK_S = 0.3
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
    """What one look found."""

    level: Level
    text: str
    hint: str = ""


fine = partial(Finding, Level.OK)
odd = partial(Finding, Level.WARN)
broken = partial(Finding, Level.FAIL)


def python() -> Finding:
    """Check the interpreter's version and word size."""
    bits = 64 if sys.maxsize > 2**32 else 32
    text = f"{'.'.join(map(str, sys.version_info[:3]))}, {bits} bit"
    return fine(text) if bits == 64 else odd(text, "use a 64-bit system where there is one")


def broker() -> Finding:
    """Look for a broker that an edge or the coordinator can run."""
    path = mosquitto_program()
    if path is not None:
        line = [path, "-h"]
        answer = subprocess.run(line, capture_output=True, text=True, timeout=10, check=False)
        return fine(f"{(answer.stdout.splitlines() or ['mosquitto'])[0]} at {path}")
    if find_spec("amqtt") is not None:
        text = "mosquitto is not installed; edges use the embedded broker, which is slower"
        return odd(text, "apt install mosquitto")
    return odd(
        "neither mosquitto nor the embedded broker is installed; edge and coordinator need "
        "one, an agent does not",
        f"apt install mosquitto, or {how_to_add('edge')}, or give --broker URL",
    )


def clock() -> Finding:
    """Check that the wall clock is sane; nothing but logs and certificates needs it."""
    now = time.time()
    text = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(now))
    if now >= RELEASED:
        return fine(text)
    text = f"the clock shows {text}, which is in the past"
    return odd(text, "turn on NTP: timedatectl set-ntp true")


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
    took = []
    try:
        with tempfile.TemporaryFile(dir=_existing(folder)) as file:
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


def wifi(host: HostInfo) -> Finding:
    """Say what is known of the Wi-Fi in use."""
    if host.radio is not None:
        return fine(str(host.radio))
    names = ", ".join(interfaces())
    return fine(f"{names} is not in use, or reports no values" if names else "no Wi-Fi interface")


def of_machine(folder: Path, limits: LimitsSettings) -> Iterator[tuple[str, Finding]]:
    """Yield each check of this machine by its name, in the order of the lines."""
    yield "python", python()
    yield "broker", broker()
    yield "clock", clock()
    yield "disk", disk(folder)
    yield "fsync", fsync(folder)
    # Would an agent train here now, and why not?
    host, context = asyncio.run(ask_host()), Context(limits=limits)
    context.host = host
    context.check_limits(time.monotonic())
    time.sleep(LOOK_S)  # the load is a difference
    for one in context.check_limits(time.monotonic()):
        said = odd(f"no training: {one.text}", one.hint) if one.objects else fine(one.text)
        yield one.rule, said
    yield "wifi", wifi(host)
    for name, (gives, extra) in PACKAGES.items():
        if find_spec(name) is not None:
            yield name, fine(f"installed: {gives}")
        else:
            yield name, fine(f"not installed, optional: {gives}", how_to_add(extra))


def _existing(folder: Path) -> Path:
    return next(path for path in (folder, *folder.resolve().parents) if path.exists())
