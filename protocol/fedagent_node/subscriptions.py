"""Which topic filters a link wants, and who waits for the broker to grant them."""

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass

from .errors import SubscribeRefusedError

Waiting = list["asyncio.Future[None]"]
Send = Callable[[list[tuple[str, int]]], int | None]
"""Send one SUBSCRIBE; return its packet id, or None when there is no connection."""


@dataclass(frozen=True, slots=True)
class Granted:
    """A SUBACK: who waited for it, and what was refused."""

    waiting: Waiting
    refused: tuple[str, ...]

    def settle(self) -> None:
        """Tell those who wait; runs in the event loop."""
        for future in self.waiting:
            if future.done():
                continue
            if self.refused:
                future.set_exception(SubscribeRefusedError(self.refused))
            else:
                future.set_result(None)


class Subscriptions:
    """Filters by QoS, and the futures of what was asked for; for both threads."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._lock = threading.Lock()
        self._filters: dict[str, int] = {}
        self._asked: dict[int, tuple[tuple[str, ...], Waiting]] = {}
        self._unasked: Waiting = []

    def add(
        self, filters: tuple[str, ...], qos: int, future: "asyncio.Future[None]", *, now: bool
    ) -> None:
        """Remember filters, and ask for them if there is a connection."""
        with self._lock:
            wanted = dict.fromkeys(filters, qos)
            self._filters.update(wanted)
            if now:
                self._ask(wanted, [future])
            else:
                self._unasked.append(future)

    def remove(self, filters: tuple[str, ...]) -> None:
        """Forget filters."""
        with self._lock:
            for topic_filter in filters:
                self._filters.pop(topic_filter, None)

    def ask_all(self) -> None:
        """Ask a new connection for everything."""
        with self._lock:
            waiting, self._unasked = self._unasked, []
            if self._filters:
                self._ask(self._filters, waiting)

    def granted(self, packet_id: int, failures: list[bool]) -> Granted:
        """Note a SUBACK with one flag per filter, and return whom it concerns."""
        with self._lock:
            filters, waiting = self._asked.pop(packet_id, ((), []))
        refused = tuple(f for f, failed in zip(filters, failures, strict=False) if failed)
        return Granted(waiting, refused)

    def connection_lost(self) -> None:
        """Keep those who wait for the next connection."""
        with self._lock:
            for _, waiting in self._asked.values():
                self._unasked += [future for future in waiting if not future.done()]
            self._asked.clear()

    def cancel(self) -> None:
        """Cancel every future; runs in the event loop."""
        self.connection_lost()
        for future in self._unasked:
            future.cancel()

    def _ask(self, wanted: dict[str, int], waiting: Waiting) -> None:
        packet_id = self._send(list(wanted.items()))
        if packet_id is None:
            self._unasked += waiting
        else:
            self._asked[packet_id] = (tuple(wanted), waiting)
