"""A process of ours: its start, its log, its memory, its watchdog, and its last words.

The protocol of the watchdog is that of ``sd_notify(3)``: datagrams to ``NOTIFY_SOCKET``.
"""

import argparse
import asyncio
import ctypes
import faulthandler
import gc
import json
import logging
import os
import resource
import signal
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from fedagent_protocol.errors import FedagentError

from .network import in_step
from .settings import NodeConfig, SettingError

DESCRIPTORS = 65_536
"""Open files and connections that a role may have: a shell's usual 1024 are fewer than a field."""
TEXT = "%(asctime)s %(levelname)s %(message)s"
BEAT_S = 20.0
"""A third of what systemd allows a role (`WatchdogSec`)."""
STALL_S = 5.0
"""An event loop that did nothing for so long stands still."""

_log = logging.getLogger(__name__)
C = TypeVar("C", bound=NodeConfig)
ExitCodes = Iterable[tuple[type[BaseException], int]]


def start(
    role: str, load: Callable[[str | None], C], run: Callable[[C], int], codes: ExitCodes
) -> int:
    """Run the role that the command line describes; return the exit code."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    parser = argparse.ArgumentParser(prog=f"fedagent_{role}")
    parser.add_argument("--config", help="a JSON object, or a TOML or JSON file")
    try:
        config = load(parser.parse_args().config)
    except SettingError as error:
        return end(role, error, codes, as_json=False)
    handler = logging.StreamHandler()
    as_json = config.log_format == "json"
    handler.setFormatter(JsonLines() if as_json else logging.Formatter(TEXT))
    logging.basicConfig(level=config.log_level.upper(), handlers=[handler])
    return run(config)


PIPE_BYTES = 60_000
"""What fits into a pipe whose other end is not read yet."""


def piped(config: Mapping[str, object]) -> int:
    """Return a descriptor of a child's settings, which `ps` must not show: of ``/dev/fd/N``.

    Raises:
        SettingError: They are too long.
    """
    text = json.dumps(config).encode()
    if len(text) > PIPE_BYTES:
        raise SettingError("config", f"is over {PIPE_BYTES // 1000} kB", "shorten it")
    reader, writer = os.pipe()
    os.write(writer, text)
    os.close(writer)
    return reader


class JsonLines(logging.Formatter):
    """Log lines as one JSON object each: ``at`` (UTC), ``level``, ``logger``, ``text``."""

    def format(self, record: logging.LogRecord) -> str:
        """Return a record as one line."""
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line = {
            "at": at,
            "level": record.levelname.lower(),
            "logger": record.name,
            "text": record.getMessage(),
        }
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line, separators=(",", ":"))


def end(role: str, error: BaseException, codes: ExitCodes, *, as_json: bool) -> int:
    """Write what ended a role, and return its exit code: of the first class that fits.

    `as_json`: standard output carries JSON lines, of which this is the last.
    """
    code = next(code for kind, code in codes if isinstance(error, kind))
    problem, hint = str(error) or type(error).__name__, ""
    if isinstance(error, FedagentError):
        problem, hint = error.sentence, error.hint
    problem = " ".join(problem.split())
    sys.stderr.write(f"fedagent {role}: {problem}{'; ' if hint else ''}{hint}\n")
    if as_json:
        last = {"error": problem, "hint": hint, "exit_code": code}
        # The reader of the events may be gone.
        with suppress(OSError):
            sys.stdout.write(json.dumps(last, separators=(",", ":")) + "\n")
            sys.stdout.flush()
    return code


def stop_on_signals(stop: asyncio.Event, *, watch_parent: bool) -> None:
    """Have signals set an event, and the end of standard input, which a parent holds, as well."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN or number != signal.SIGHUP:  # `nohup`
            loop.add_signal_handler(number, stop.set)
    # `fedagent start` blocks it while the role is loaded.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})

    def read() -> None:
        if not os.read(sys.stdin.fileno(), 4096):
            loop.remove_reader(sys.stdin.fileno())
            stop.set()

    if watch_parent:
        # Not every kind of stdin can be watched; a file has no parent behind it.
        with suppress(PermissionError):
            loop.add_reader(sys.stdin.fileno(), read)


def boot_id() -> str:
    """Return an id of this boot: the monotonic clock means nothing in another."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


async def keep_collecting(every_s: float = 60.0) -> None:
    """Leave what there is to the end, and look for rings among what comes, again and again.

    Exceptions and connections that a fault leaves are often rings. Python's own collector counts
    objects, of which a device that waits makes few: rings lay between blocks in use for an hour,
    and the heap grew around them. What is frozen is not looked at, so this takes milliseconds.
    """
    gc.collect()
    gc.freeze()
    while True:
        await in_step(every_s)
        gc.collect()


M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8
MAP_FROM_BYTES = 1024 * 1024
"""Above the 512 KiB of a message of chunks and its envelope."""
TRIM_BYTES = 1024 * 1024
TRIM_EVERY_S = 1.0
"""A trim takes 0.2 ms; what a round needed for a moment is spread over many pages."""


def return_freed_memory() -> None:
    """Have glibc keep few and short heaps, and a thread give back their pages that nothing uses.

    By default the first large block that is freed raises the threshold, after which
    whole models come from heaps that fragment and never shrink. Chunks do come from
    the heap: mapping each of them again costs more than all the rest of a round. Blocks that
    live for years lie between those of a round, and by default glibc gives back only what is
    free at the end of the heap: under faults a coordinator grew by megabytes an hour.
    """
    try:
        libc = ctypes.CDLL(None)
        mallopt, trim = libc.mallopt, libc.malloc_trim
    except (AttributeError, OSError):  # another library
        return
    settings = {M_MMAP_THRESHOLD: MAP_FROM_BYTES, M_TRIM_THRESHOLD: TRIM_BYTES, M_ARENA_MAX: 2}
    for name, value in settings.items():
        mallopt(name, value)

    def work() -> None:
        while True:
            time.sleep(TRIM_EVERY_S)
            trim(0)

    threading.Thread(target=work, name="trim", daemon=True).start()


class Systemd:
    """Who started us, if it wants to hear of us; children of ours inherit nothing of it."""

    def __init__(self) -> None:
        self._socket = os.environ.pop("NOTIFY_SOCKET", "")
        usec = os.environ.pop("WATCHDOG_USEC", "")
        pid = os.environ.pop("WATCHDOG_PID", "")
        mine = usec.isdigit() and pid in ("", str(os.getpid()))
        self.ping_s = int(usec) / 3e6 if mine and self._socket else None
        """How often it wants a ping: thrice in its own time; None for never."""

    def tell(self, state: str) -> bool:
        """Send a state; False if it is heard by no process."""
        if not self._socket:
            return False
        address = "\0" + self._socket[1:] if self._socket.startswith("@") else self._socket
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.setblocking(False)
            sock.connect(address)
            sock.send(state.encode())
            return True
        return False


async def watch_loop(
    name: str,
    systemd: Systemd,
    hindrance: Callable[[], str],
    counters: Counter[str],
    *,
    beat_s: float = BEAT_S,
    stall_s: float = STALL_S,
) -> None:
    """Ping systemd while the event loop, and all else, gets on; until cancelled.

    `hindrance` says what does not get on although the loop turns. What a loop that stands still
    is doing goes to standard error.
    """
    period_s = min(beat_s, systemd.ping_s or beat_s)
    before, stuck = time.monotonic(), ""
    systemd.tell("READY=1")
    try:
        while True:
            now = time.monotonic()
            if now - before > stall_s + period_s:
                counters["loop_stalls"] += 1
                _log.warning("%s: the event loop was blocked for %.0f s", name, now - before)
            before = now
            faulthandler.dump_traceback_later(stall_s + period_s, file=2)
            last, stuck = stuck, hindrance()
            if stuck and stuck != last:
                counters["work_stalls"] += 1
                _log.error("%s: %s; systemd restarts it if it runs as a service", name, stuck)
            if systemd.ping_s is not None and not stuck:
                systemd.tell("WATCHDOG=1")
            await in_step(period_s)
    finally:
        faulthandler.cancel_dump_traceback_later()
        systemd.tell("STOPPING=1")
