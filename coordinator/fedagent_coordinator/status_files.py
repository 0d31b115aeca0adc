"""Two small files beside the database for `fedagent status` and `fedagent devices`.

They are for people: neither synced nor missed, and a disk that refuses them stops nothing.
"""

import os
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import msgspec

from fedagent_protocol.errors import safe_text
from fedagent_protocol.messages import EdgeStatus

S = TypeVar("S", bound=msgspec.Struct)

STATUS_FILE = "run_status.json"
DEVICES_FILE = "devices.json"
MAX_DEVICES = 250_000
GAP_S = 5.0
"""Least time between two writes of the devices; a second more for every thousand of them."""
TOUCH_S = 60.0
"""How often the file's time confirms that those online still are."""


class RunStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What a running coordinator sees and waits for.

    One thing is decided by it: when a coordinator that was started again begins a scheduled
    round. In the same boot the file is there however the process ended; in another its
    monotonic time would mean nothing.

    Attributes:
        found, wanted: How many edges or agents are there of those that are waited for; 0 and
            0 where it is no number.
        silent, trouble: Ids of edges that are not heard any more, and why those that are heard take
            no part.
        others: Other coordinators that are announced at this site, each with its address.
    """

    run: str
    edges_live: int = 0
    waiting: str = ""  # why no round can be decided, in one word; empty while rounds go on
    detail: str = ""  # more about it, in an agent's words
    found: int = 0
    wanted: int = 0
    next_at: float = 0.0  # no round begins before, by the monotonic clock of `boot`; 0 for at once
    boot: str = ""
    others: tuple[str, ...] = ()
    silent: tuple[str, ...] = ()
    trouble: dict[str, str] = {}


class Device(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A device; `seen_ms` is the wall clock, and when it came if it is here. Edges are ids."""

    seen_ms: int
    software: str = ""
    address: str = ""
    reason: str = ""
    edges: list[str] = []


class Known(msgspec.Struct, kw_only=True):
    """All devices by id, and the run in which they were heard."""

    run: str
    devices: dict[str, Device] = {}


class DeviceBook:
    """Keeps the devices that edges report in the run that is worked on, and their file."""

    def __init__(self, folder: Path, run: str) -> None:
        self._path = folder / DEVICES_FILE
        found = read_devices(folder)
        self.known = Known(run=run, devices=found.devices if found is not None else {})
        for device in self.known.devices.values():
            device.edges = []
        self._epochs: dict[str, str] = {}
        self._here: dict[str, set[str]] = {}
        self._changed = False
        self._write_at = self._touch_at = 0.0

    def note(self, edge: str, status: EdgeStatus, now_ms: int) -> None:
        """Update the devices of an edge."""
        if status.run != self.known.run:
            return
        if self._epochs.get(edge) != status.epoch:
            self.lose(edge, now_ms)
            self._epochs[edge] = status.epoch
        here = self._here.setdefault(edge, set())
        for note in status.devices:
            device = self.known.devices.get(note.agent)
            if device is None:
                if len(self.known.devices) >= MAX_DEVICES:
                    continue
                device = self.known.devices[note.agent] = Device(seen_ms=0)
            device.seen_ms = max(device.seen_ms, now_ms - note.age_ms)
            device.software = safe_text(note.software, limit=64)
            device.address = safe_text(note.address, limit=64)
            device.reason = safe_text(note.reason)
            (here.add if note.here else here.discard)(note.agent)
            others = [one for one in device.edges if one != edge]
            device.edges = [*others, edge] if note.here else others
            self._changed = True

    def lose(self, edge: str, now_ms: int) -> None:
        """Mark the devices of an edge that is not heard any more as away."""
        self._epochs.pop(edge, None)
        for agent in self._here.pop(edge, ()):
            device = self.known.devices[agent]
            device.seen_ms = now_ms
            device.edges = [one for one in device.edges if one != edge]
            self._changed = True

    def write(self, now: float) -> None:
        """Write the file if something has changed, at most once in `GAP_S`."""
        if self._changed and now >= self._write_at:
            self._changed = False
            self._write_at = now + GAP_S + len(self.known.devices) / 1000
            self._touch_at = now + TOUCH_S
            write_beside(self._path, msgspec.json.encode(self.known))
        elif now >= self._touch_at and self._here:
            self._touch_at = now + TOUCH_S
            with suppress(OSError):
                os.utime(self._path)

    def close(self, now_ms: int) -> None:
        """Write what is left, with every device away."""
        for edge in list(self._here):
            self.lose(edge, now_ms)
        if self._changed:
            self._changed = False
            write_beside(self._path, msgspec.json.encode(self.known))


def read_devices(folder: Path) -> Known | None:
    """Return what was written last; None if there is nothing to read."""
    return _read(folder / DEVICES_FILE, Known)


def write_run_status(folder: Path, run_status: RunStatus) -> None:
    """Replace the file."""
    write_beside(folder / STATUS_FILE, msgspec.json.encode(run_status))


def read_run_status(folder: Path) -> RunStatus | None:
    """Return what was written last; None if there is nothing to read."""
    return _read(folder / STATUS_FILE, RunStatus)


def write_beside(path: Path, data: bytes) -> None:
    """Replace a file for people."""
    fresh = path.with_name(f".{path.name}")
    with suppress(OSError):
        fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(data)
        fresh.replace(path)


def _read(path: Path, kind: type[S]) -> S | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.DecodeError):
        return None
