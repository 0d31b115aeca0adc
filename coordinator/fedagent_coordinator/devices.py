"""The devices that edges have told of: where they are, and why one does not take part.

For people only, like `run_status`: a small file beside the database, written when something has
changed, neither synced nor missed. Nothing is decided by it.
"""

import os
from contextlib import suppress
from pathlib import Path

import msgspec

from fedagent_protocol.errors import safe_text
from fedagent_protocol.messages import EdgeStatus

from .run_status import write_beside

FILE = "devices.json"
MAX_DEVICES = 250_000
GAP_S = 5.0
"""Least time between two writes; a second more for every thousand devices."""
TOUCH_S = 60.0
"""How often the file's time says that whoever is online still is."""


class Device(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One device.

    Attributes:
        seen_ms: When it was heard last, by the wall clock; of one that is here, when it came.
        edges: Ids of the edges where it has a session.
        reason: Why it does not take part, in words; empty if it does.
    """

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
    """Takes in what edges say, and keeps the file.

    Args:
        folder: The data directory.
        run: The run that is worked on.
    """

    def __init__(self, folder: Path, run: str) -> None:
        self._path = folder / FILE
        found = read_devices(folder)
        self.known = Known(run=run, devices=found.devices if found is not None else {})
        for device in self.known.devices.values():
            device.edges = []
        self._epochs: dict[str, str] = {}
        self._here: dict[str, set[str]] = {}
        self._changed = False
        self._write_at = self._touch_at = 0.0

    def note(self, edge: str, status: EdgeStatus, now_ms: int) -> None:
        """Take in what an edge says of its agents."""
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
        """Note that an edge is not heard any more: nobody is known to be there."""
        self._epochs.pop(edge, None)
        for agent in self._here.pop(edge, ()):
            device = self.known.devices[agent]
            device.seen_ms = now_ms
            device.edges = [one for one in device.edges if one != edge]
            self._changed = True

    def write(self, now: float) -> None:
        """Write the file if something has changed and that was not done a moment ago."""
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
        """Write what is left: from now on nobody knows who is there."""
        for edge in list(self._here):
            self.lose(edge, now_ms)
        if self._changed:
            self._changed = False
            write_beside(self._path, msgspec.json.encode(self.known))


def read_devices(folder: Path) -> Known | None:
    """Return what was written last; None if there is nothing to read."""
    try:
        return msgspec.json.decode((folder / FILE).read_bytes(), type=Known)
    except (OSError, msgspec.DecodeError):
        return None
