"""One picture for all viewers, soon after a commit: each gets what changed; the slow, the whole."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable

import msgspec

from fedagent_coordinator.picture.records import Field, change

EVERY_S = 1.0
"""Age of a picture that is shown although nothing was written."""
LEAST_S = 0.4
"""A look is followed by a pause of this, or of nine times the processor's time that it took."""
POLL_S = 0.08
"""How often it is asked whether something was written, and how long more of it is waited for."""
QUEUED = 4
"""Changes that a viewer may be behind; then it gets the whole field instead."""
MAX_VIEWERS = 32
QUIET_S = 15.0
"""After so long without news a viewer gets an empty line: silence would look like a dead link."""

_encode = msgspec.json.Encoder().encode


class Viewer:
    """One that looks: what it has not got yet."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[bytes] = asyncio.Queue(QUEUED)
        self.behind = True
        """Whether it needs the whole field before any change."""

    def offer(self, event: bytes) -> None:
        """Give it a change; one that has too many gets the whole field next."""
        if self.behind:
            return
        try:
            self.queue.put_nowait(event)
        except asyncio.QueueFull:
            self.behind = True
            while not self.queue.empty():
                self.queue.get_nowait()


class Feed:
    """What is shown now, and who looks. Nothing is read while nobody does."""

    def __init__(self, look: Callable[[], Field], moved: Callable[[], bool]) -> None:
        self._look, self._moved = look, moved
        self._field: Field | None = None
        self._looked_at = 0.0
        self._whole: tuple[int, bytes] = (-1, b"")
        self.viewers: set[Viewer] = set()
        self._somebody = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._over = False

    def field(self) -> Field:
        """Return a picture that is `EVERY_S` old at most."""
        if self._field is None or time.monotonic() - self._looked_at >= EVERY_S:
            self._step()
        assert self._field is not None
        return self._field

    def whole(self) -> bytes:
        """Return it encoded, once for all who ask."""
        field = self.field()
        if self._whole[0] != field.version:
            self._whole = (field.version, _encode(field))
        return self._whole[1]

    def _step(self) -> None:
        """Look again; tell viewers what changed."""
        old, self._looked_at = self._field, time.monotonic()
        new = self._look()
        if old is None or old.epoch != new.epoch:
            self._field = new
            for viewer in self.viewers:
                viewer.behind = True
            return
        found = change(old, new)
        if not found:
            return
        self._field = new
        head = {"epoch": new.epoch, "version": new.version, "at_ms": new.at_ms}
        event = _event(b"change", _encode(head | found))
        for viewer in self.viewers:
            viewer.offer(event)

    async def run(self) -> None:
        """Look after each commit and every `EVERY_S`, as long as somebody does."""
        self._loop = asyncio.get_running_loop()
        while True:
            await self._somebody.wait()
            began, used = time.monotonic(), time.thread_time()
            self._step()
            spent = time.thread_time() - used
            # Beside the rounds: a tenth of a core at most. Waiting for one is no use of it.
            await asyncio.sleep(max(LEAST_S, 9 * spent))
            while time.monotonic() < began + EVERY_S and not self._moved():  # noqa: ASYNC110 - SQLite tells nobody
                await asyncio.sleep(POLL_S)
            # What belongs together is written within a moment.
            await asyncio.sleep(POLL_S)
            if not self.viewers:
                self._somebody.clear()

    def end(self) -> None:
        """Show what there is to the last, and end all events; from any thread."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._end)

    def _end(self) -> None:
        self._over = True
        if self.viewers:
            self._step()
        for viewer in self.viewers:
            viewer.offer(b": over\n\n")

    async def events(self, viewer: Viewer) -> AsyncIterator[bytes]:
        """Yield the field, then each change, as server-sent events."""
        self.viewers.add(viewer)
        self._somebody.set()
        try:
            while True:
                if viewer.behind:
                    viewer.behind = False
                    yield _event(b"field", self.whole())
                    continue
                if self._over and viewer.queue.empty():
                    return
                try:
                    yield await asyncio.wait_for(viewer.queue.get(), QUIET_S)
                except TimeoutError:
                    yield b": nothing new\n\n"
        finally:
            self.viewers.discard(viewer)


def _event(name: bytes, data: bytes) -> bytes:
    return b"event: " + name + b"\ndata: " + data + b"\n\n"
