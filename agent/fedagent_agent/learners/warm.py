"""Compile strSAGA's loops beside the work, so that no task waits for it.

``python -m fedagent_agent.learners.warm`` compiles once on a machine, and writes a marker next
to what numba keeps; it ends after `LONGEST_S` at the latest. ``FEDAGENT_WARM=off`` starts no
such process; strSAGA then learns in numpy unless the marker is there.
"""

import fcntl
import functools
import hashlib
import logging
import os
import platform
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

_log = logging.getLogger(__name__)

VARIABLE = "FEDAGENT_WARM"
LONGEST_S = 1800
"""When the kernel ends a process that compiles still."""

_NICE = 19
_SOURCE = Path(__file__).with_name("strsaga_loops.py")
_CPU_LINES = ("model name", "flags", "Features", "CPU part")
_started: list[subprocess.Popen[bytes]] = []


def is_ready() -> bool:
    """Return whether the loops are on disk for this machine, this numba and this source."""
    try:
        return _marker().read_text(encoding="ascii") == _what()
    except (OSError, UnicodeDecodeError):
        return False


def ready_or_start() -> bool:
    """Return whether compiled loops can be used at once; start to compile them if not.

    At most one process is started by this one, and none while another compiles.
    """
    if find_spec("numba") is None:
        return False
    if is_ready():
        return True
    for process in _started:
        process.poll()  # leaves no zombie
    if os.environ.get(VARIABLE) != "off" and not _started and _is_free():
        _start()
    return False


def compile_all() -> None:
    """Compile everything and write the marker, unless another process is at it."""
    from .strsaga import warm_up  # noqa: PLC0415 - numpy comes with it
    from .strsaga_loops import compiled  # noqa: PLC0415

    with _lock() as mine:
        loops = compiled() if mine and not is_ready() else None
        if loops is None:
            return
        for ratings, many in ((False, False), (False, True), (True, False)):
            warm_up(loops, ratings=ratings, many=many)
        part = _marker().with_suffix(f".{os.getpid()}")
        part.write_text(_what(), encoding="ascii")
        part.replace(_marker())


def main() -> int:
    """Compile behind everything else on the machine."""
    signal.alarm(LONGEST_S)
    os.setpriority(os.PRIO_PROCESS, 0, _NICE)
    try:
        compile_all()
    except OSError:
        return 1
    return 0


def _start() -> None:
    command = (sys.executable, "-P", "-m", "fedagent_agent.learners.warm")
    nothing = subprocess.DEVNULL
    try:
        process = subprocess.Popen(
            command, stdin=nothing, stdout=nothing, stderr=nothing, start_new_session=True
        )
    except OSError as error:
        _log.info("strsaga learns in numpy: cannot compile its loops: %s", error.strerror)
        return
    _started.append(process)
    _log.info("strsaga learns in numpy now; its loops are being compiled for the next start")


def _is_free() -> bool:
    try:
        with _lock() as mine:
            return mine
    except OSError:
        return False


@contextmanager
def _lock() -> Iterator[bool]:
    path = _folder() / "fedagent-strsaga.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True


def _marker() -> Path:
    return _folder() / "fedagent-strsaga.ready"


def _folder() -> Path:
    """Return where numba keeps what it compiled, without importing it, or its parent."""
    named = os.environ.get("NUMBA_CACHE_DIR")
    if named:
        return Path(named)
    beside = _SOURCE.parent / "__pycache__"
    if os.access(beside if beside.exists() else beside.parent, os.W_OK):
        return beside
    caches = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(caches).expanduser() / "numba"


@functools.cache
def _what() -> str:
    """Return what machine code depends on, as one line."""
    source = hashlib.sha256(_SOURCE.read_bytes()).hexdigest()
    python = f"{platform.python_implementation()}-{platform.python_version()}"
    cpu = hashlib.sha256(f"{platform.machine()}\n{_cpu()}".encode()).hexdigest()[:16]
    return f"numba-{version('numba')} {python} {source} {cpu}\n"


def _cpu() -> str:
    """Return what the kernel says of the first processor's kind; empty where unknown."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    first: dict[str, str] = {}
    for line in lines:
        if line.startswith(_CPU_LINES):
            first.setdefault(line.partition(":")[0].strip(), line)
    return "\n".join(first.values())


if __name__ == "__main__":
    sys.exit(main())
