"""The hand-over from a network thread to the event loop: bounded, batched, counted."""

import asyncio
import logging
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Arrival:
    """One message as it came in.

    Attributes:
        at: ``time.monotonic()`` taken in the network thread, so that a busy
            event loop does not make a device look slow.
    """

    topic: str
    payload: bytes
    at: float


class Inbox:
    """Carry arrivals and events, in order, with one loop wake-up per batch.

    Args:
        loop: Where `on_arrivals` and events run.
        limit: Most arrivals that wait; more are dropped and counted.
        limit_bytes: Most payload bytes that wait.
        on_arrivals: Takes a batch; what it raises is logged and counted.
        counters: Gets ``dropped_inbox`` and ``callback_errors``.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        limit: int,
        limit_bytes: int,
        on_arrivals: Callable[[list[Arrival]], None],
        counters: Counter[str],
    ) -> None:
        self._loop = loop
        self._limit = limit
        self._limit_bytes = limit_bytes
        self._on_arrivals = on_arrivals
        self._counters = counters
        self._lock = threading.Lock()
        self._waiting: list[Arrival | Callable[[], None]] = []
        self._waiting_bytes = 0
        self._woken = False

    def put(self, arrival: Arrival) -> None:
        """Queue a message; runs in the network thread."""
        size = len(arrival.payload)
        with self._lock:
            full = len(self._waiting) >= self._limit
            if full or self._waiting_bytes + size > self._limit_bytes:
                self._counters["dropped_inbox"] += 1
                return
            self._waiting_bytes += size
            self._waiting.append(arrival)
            wake, self._woken = not self._woken, True
        if wake:
            self._wake()

    def call(self, event: Callable[[], None]) -> None:
        """Queue a call in order with the messages; never dropped."""
        with self._lock:
            self._waiting.append(event)
            wake, self._woken = not self._woken, True
        if wake:
            self._wake()

    def _wake(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._drain)
        except RuntimeError:
            # The loop is closed: the process is ending and nobody listens.
            self._counters["dropped_inbox"] += 1

    def _drain(self) -> None:
        with self._lock:
            items, self._waiting = self._waiting, []
            self._waiting_bytes = 0
            self._woken = False
        batch: list[Arrival] = []
        for item in items:
            if isinstance(item, Arrival):
                batch.append(item)
                continue
            self._deliver(batch)
            batch = []
            self._guard(item)
        self._deliver(batch)

    def _deliver(self, batch: list[Arrival]) -> None:
        if batch:
            self._guard(lambda: self._on_arrivals(batch))

    def _guard(self, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception:  # noqa: BLE001 - logged once, then counted
            self._counters["callback_errors"] += 1
            if self._counters["callback_errors"] == 1:
                _log.exception("a message could not be handled; the next such errors are counted")
