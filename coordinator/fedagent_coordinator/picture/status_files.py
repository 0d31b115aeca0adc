"""Small files beside the database for `fedagent status` and `fedagent devices`.

They are for people: neither synced nor missed, and a disk that refuses them stops nothing.
"""

import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import ClassVar, Self

import msgspec

from fedagent_protocol.errors import safe_text
from fedagent_protocol.messages import EdgeStatus

MAX_OF_EDGE = 5_000
"""Of how many devices the words of one edge are kept: as many as are observed in a round."""
GAP_S = 5.0
"""Least time between two writes of the devices; a second more for every thousand of them."""
TOUCH_S = 60.0
"""How often the file's time confirms that those online still are."""


class Beside(msgspec.Struct, frozen=True, kw_only=True):
    """A small file of its own name, for its owner (0600)."""

    FILE: ClassVar[str]

    @classmethod
    def read(cls, folder: Path) -> Self | None:
        """Return what was written last; None if there is nothing to read."""
        try:
            return msgspec.json.decode((folder / cls.FILE).read_bytes(), type=cls)
        except (OSError, msgspec.DecodeError):
            return None

    def write(self, folder: Path) -> None:
        """Replace the file, where the disk takes it."""
        fresh = folder / f".{self.FILE}"
        with suppress(OSError):
            fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with os.fdopen(fd, "wb") as file:
                file.write(msgspec.json.encode(self))
            fresh.replace(folder / self.FILE)


class RunStatus(Beside, frozen=True, kw_only=True):
    """What a running coordinator sees and waits for.

    One thing is decided by it: when a coordinator that was started again begins a scheduled
    round. In the same boot the file is there however the process ended; in another its
    monotonic time would mean nothing.
    """

    FILE = "run_status.json"

    run: str
    edges_live: int = 0
    waiting: str = ""  # why no round can be decided, in one word; empty while rounds go on
    detail: str = ""  # more about it, in an agent's words
    found: int = 0  # edges or agents, of so many that are waited for
    wanted: int = 0
    next_at: float = 0.0  # no round begins before, by the monotonic clock of `boot`; 0 for at once
    boot: str = ""
    others: tuple[str, ...] = ()  # coordinators that are announced at this site
    silent: tuple[str, ...] = ()  # edges that are not heard any more
    trouble: dict[str, str] = {}  # why edges that are heard take no part


class Word(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What an edge tells of a device; `seen_ms`: wall clock, and when it came if it is here."""

    seen_ms: int
    here: bool = False
    software: str = ""
    address: str = ""
    reason: str = ""


class Device(msgspec.Struct, kw_only=True):
    """A device, by the word of each edge that tells of it; edges are ids.

    One word is shown: of the edges where it is here that of `worked_at`, from which its last signed
    work came, else the newest.
    """

    words: dict[str, Word]
    worked_at: str = ""

    @property
    def by(self) -> str:
        """Whose word is shown."""
        words, at = self.words, self.worked_at
        return max(words, key=lambda one: (words[one].here, one == at, words[one].seen_ms))

    @property
    def word(self) -> Word:
        """The word that is shown."""
        return self.words[self.by]

    @property
    def edges(self) -> list[str]:
        """The edges where it has a session."""
        return [edge for edge, word in self.words.items() if word.here]

    @property
    def seen_ms(self) -> int:
        """When it came or was heard last, by any edge."""
        return max(word.seen_ms for word in self.words.values())

    def reason(self, edges: Mapping[str, str]) -> str:
        """Return why it does not take part, and which edge says so, by the names of edges."""
        why, by = self.word.reason, self.by
        return f"{why} (reported by edge {edges.get(by) or by[:8]})" if why else ""


class Known(Beside, frozen=True, kw_only=True):
    """What edges told of devices in a run: the words of each edge, those of late at the end."""

    FILE = "devices.json"

    run: str
    words: dict[str, dict[str, Word]] = {}  # by edge and device
    worked_at: dict[str, str] = {}  # the edge, by device

    @property
    def devices(self) -> dict[str, Device]:
        """All devices by id."""
        found: dict[str, Device] = {}
        for edge, told in self.words.items():
            for agent, word in told.items():
                if agent not in found:
                    found[agent] = Device(words={}, worked_at=self.worked_at.get(agent, ""))
                found[agent].words[edge] = word
        return found


class Page(Beside, frozen=True, kw_only=True):
    """Where the live page is, and what opens it."""

    FILE = "page.json"

    token: str
    url: str = ""
    port: int = 0
    fingerprint: str = ""

    @property
    def link(self) -> str:
        """The address that opens it; what follows # never leaves the browser."""
        return f"{self.url}#token={self.token}"


class DeviceBook:
    """Keeps what edges tell of devices in the run that is worked on, and its file.

    An edge with `MAX_OF_EDGE` words gives up its oldest for a new one.
    """

    def __init__(self, folder: Path, run: str) -> None:
        self._folder, found = folder, Known.read(folder)
        # The names that edges give are kept per run: of another one nobody would know who it was.
        self.known = found if found is not None and found.run == run else Known(run=run)
        for word in self._all():
            word.here = False
        self._epochs: dict[str, str] = {}
        self._changed = False
        self._write_at = self._touch_at = 0.0

    def note(self, edge: str, status: EdgeStatus, now_ms: int) -> None:
        """Update what an edge tells."""
        if status.run != self.known.run:
            return
        if self._epochs.get(edge) != status.epoch:
            self.lose(edge, now_ms)
            self._epochs[edge] = status.epoch
        for note in status.devices:
            word = self._word(edge, note.agent)
            word.here = note.here
            word.seen_ms = max(word.seen_ms, now_ms - note.age_ms)
            word.software = safe_text(note.software, limit=64)
            word.address = safe_text(note.address, limit=64)
            word.reason = safe_text(note.reason)
            self._changed = True

    def _all(self) -> Iterator[Word]:
        return (word for told in self.known.words.values() for word in told.values())

    def _word(self, edge: str, agent: str) -> Word:
        """Return an edge's word of a device, its newest from now on; another one may go for it."""
        mine = self.known.words.setdefault(edge, {})
        word = mine.pop(agent, None) or Word(seen_ms=0)
        if len(mine) >= MAX_OF_EDGE:
            del mine[next(iter(mine))]
        mine[agent] = word
        return word

    def keep(self, ids: frozenset[str], members: frozenset[str], now_ms: int) -> None:
        """Forget every device but these, and mark those that are no members any more as away.

        What an edge tells of one that was revoked, also that it left, counts for nothing.
        """
        for agent in self.known.worked_at.keys() - ids:
            del self.known.worked_at[agent]
        for mine in self.known.words.values():
            for agent in mine.keys() - ids:
                del mine[agent]
                self._changed = True
            self._leave((word for agent, word in mine.items() if agent not in members), now_ms)

    def worked(self, edge: str, agents: Collection[str]) -> None:
        """Note from which edge the newest signed work of devices came."""
        words, worked_at = self.known.words, self.known.worked_at
        # Most are told of by this edge: of a thousand edges not all are asked for each.
        near = words.get(edge, {})
        for agent in agents:
            known = agent in near or any(agent in told for told in words.values())
            if known and worked_at.get(agent) != edge:
                worked_at[agent], self._changed = edge, True

    def lose(self, edge: str, now_ms: int) -> None:
        """Mark the devices of an edge that is not heard any more as away."""
        self._epochs.pop(edge, None)
        self._leave(self.known.words.get(edge, {}).values(), now_ms)

    def _leave(self, words: Iterable[Word], now_ms: int) -> None:
        for word in words:
            if word.here:
                word.here, word.seen_ms, self._changed = False, now_ms, True

    def write(self, now: float) -> None:
        """Write the file if something has changed, at most once in `GAP_S`."""
        if self._changed and now >= self._write_at:
            self._changed = False
            self._write_at = now + GAP_S + sum(map(len, self.known.words.values())) / 1000
            self._touch_at = now + TOUCH_S
            self.known.write(self._folder)
        elif now >= self._touch_at:
            self._touch_at = now + TOUCH_S
            if any(word.here for word in self._all()):
                with suppress(OSError):
                    os.utime(self._folder / Known.FILE)

    def close(self, now_ms: int) -> None:
        """Write what is left, with every device away."""
        for edge in self.known.words:
            self.lose(edge, now_ms)
        if self._changed:
            self._changed = False
            self.known.write(self._folder)
