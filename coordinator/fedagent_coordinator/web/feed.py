"""One picture for all viewers, soon after a commit: each gets what changed since its last one."""

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
MAX_VIEWERS = 32
QUIET_S = 15.0
"""After so long without news a viewer gets an empty line: silence would look like a dead link."""

_encode = msgspec.json.Encoder().encode


class Feed:
    """What is shown now, and how many look. Nothing is read while nobody does."""

    def __init__(self, look: Callable[[], Field], moved: Callable[[], bool]) -> None:
        self._look, self._moved = look, moved
        self._field: Field | None = None
        self._looked_at = 0.0
        self._made: dict[tuple[int, int], bytes] = {}
        """The newest events, by the versions from which and to which they lead."""
        self.viewers = 0
        self._somebody = asyncio.Event()
        self._news = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._over = False

    def field(self) -> Field:
        """Return a picture that is `EVERY_S` old at most."""
        if self._field is None or time.monotonic() - self._looked_at >= EVERY_S:
            self._step()
        assert self._field is not None
        return self._field

    def _step(self) -> None:
        """Look again; wake the viewers where something has changed."""
        old, self._looked_at = self._field, time.monotonic()
        new = self._look()
        if old is None or old.epoch != new.epoch or change(old, new):
            self._field = new
            self._made.clear()
            self._wake()

    def _wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

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
        self._wake()

    async def events(self) -> AsyncIterator[bytes]:
        """Yield the field, then what has changed, as server-sent events.

        A slow viewer gets fewer of them, each of which has all that it has missed.
        """
        self.viewers += 1
        self._somebody.set()
        shown: Field | None = None
        try:
            while True:
                news, field = self._news, self.field() if shown is None else self._field
                assert field is not None
                if field is not shown:
                    event = self._event(shown, field)
                    shown = field
                    yield event
                    continue
                if self._over:
                    return
                try:
                    await asyncio.wait_for(news.wait(), QUIET_S)
                except TimeoutError:
                    yield b": nothing new\n\n"
        finally:
            self.viewers -= 1

    def _event(self, shown: Field | None, field: Field) -> bytes:
        """Return the event that leads to a field, made once for all who need it."""
        known = shown is not None and shown.epoch == field.epoch
        key = (shown.version if shown is not None and known else -1, field.version)
        if key not in self._made:
            if shown is not None and known:
                head = {"epoch": field.epoch, "version": field.version, "at_ms": field.at_ms}
                name, data = b"change", _encode(head | change(shown, field))
            else:
                name, data = b"field", _encode(field)
            self._made[key] = b"event: " + name + b"\ndata: " + data + b"\n\n"
        return self._made[key]
