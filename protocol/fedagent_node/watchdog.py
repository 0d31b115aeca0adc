"""Say that this process works, to systemd, and that its event loop stands still, to people.

The protocol is that of ``sd_notify(3)``: datagrams to the socket that ``NOTIFY_SOCKET`` names.
"""

import asyncio
import logging
import os
import socket
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

BEAT_S = 1.0
STALL_S = 5.0
"""An event loop that did nothing for so long stands still."""

_log = logging.getLogger(__name__)


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
        """Send a state; False if nobody takes it."""
        if not self._socket:
            return False
        address = "\0" + self._socket[1:] if self._socket.startswith("@") else self._socket
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.setblocking(False)
            sock.connect(address)
            sock.send(state.encode())
            return True
        return False


class Watchdog:
    """Watch the event loop from a thread, and ping systemd from the loop while it gets on.

    Args:
        name: Start of its log lines.
        hindrance: Says what does not get on although the loop turns; empty if all does.
        counters: ``loop_stalls`` and ``work_stalls`` count what was seen.
    """

    def __init__(
        self,
        name: str,
        systemd: Systemd,
        *,
        hindrance: Callable[[], str],
        counters: Counter[str],
        beat_s: float = BEAT_S,
        stall_s: float = STALL_S,
    ) -> None:
        self._name = name
        self._systemd = systemd
        self._hindrance = hindrance
        self._counters = counters
        self._period_s = min(beat_s, systemd.ping_s or beat_s)
        self._stall_s = stall_s
        self._beat_at = time.monotonic()
        self._seen_at = self._beat_at  # when the thread itself last looked
        self._pinged_at = -1e9
        self._stuck = ""
        self._loop_thread = threading.get_ident()
        self._over = threading.Event()

    async def run(self) -> None:
        """Beat until cancelled."""
        self._systemd.tell("READY=1")
        self._beat_at = self._seen_at = time.monotonic()
        watcher = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        watcher.start()
        try:
            while True:
                self._beat(time.monotonic())
                await asyncio.sleep(self._period_s)
        finally:
            self._over.set()
            self._systemd.tell("STOPPING=1")

    def _beat(self, now: float) -> None:
        still_s, self._beat_at = now - self._beat_at, now
        if still_s > self._stall_s + self._period_s:
            self._counters["loop_stalls"] += 1
            _log.warning(
                "%s: the event loop was blocked for %.0f s and runs again", self._name, still_s
            )
        stuck = self._hindrance()
        if stuck and stuck != self._stuck:
            self._counters["work_stalls"] += 1
            _log.error("%s: %s; systemd restarts it if it runs as a service", self._name, stuck)
        self._stuck = stuck
        ping_s = self._systemd.ping_s
        if ping_s is not None and not stuck and now - self._pinged_at >= ping_s:
            self._pinged_at = now
            self._systemd.tell("WATCHDOG=1")

    def _watch(self) -> None:
        said = 0.0
        while not self._over.wait(self._period_s):
            now, beat_at = time.monotonic(), self._beat_at
            stopped = now - self._seen_at > self._stall_s  # the whole process was
            self._seen_at = now
            if beat_at == said or stopped or now - beat_at <= self._stall_s:
                continue
            said = beat_at
            where = _where(self._loop_thread)
            _log.error("%s: the event loop stands still, %s", self._name, where)


def _where(thread: int) -> str:
    """Return what a thread does: its innermost line, and the innermost of ours."""
    frame = sys._current_frames().get(thread)  # noqa: SLF001 - documented, for debuggers
    if frame is None:
        return "its thread is gone"
    stack = traceback.extract_stack(frame)
    lines = [f"{Path(one.filename).name}:{one.lineno} ({one.name})" for one in stack]
    ours = [line for one, line in zip(stack, lines, strict=True) if "fedagent" in one.filename]
    return "in " + ", ".join(dict.fromkeys([*ours[-1:], lines[-1]]))
