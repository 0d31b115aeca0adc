"""Which topic filters a link wants, and who waits for the broker to grant them."""

import asyncio
from collections.abc import Callable

from .errors import SubscribeRefusedError

Waiting = list["asyncio.Future[None]"]


class Subscriptions:
    """Which topic filters are wanted, and who waits for the broker to grant them.

    Args:
        send: Sends one SUBSCRIBE; returns its packet id, or None without a connection.
    """

    def __init__(self, send: Callable[[list[tuple[str, int]]], int | None]) -> None:
        self._send = send
        self._filters: dict[str, int] = {}
        self._asked: dict[int, tuple[tuple[str, ...], Waiting]] = {}
        self._unasked: Waiting = []

    def add(
        self, filters: tuple[str, ...], qos: int, future: "asyncio.Future[None]", *, now: bool
    ) -> None:
        """Remember filters, and ask for them if there is a connection."""
        wanted = dict.fromkeys(filters, qos)
        self._filters.update(wanted)
        if now:
            self._ask(wanted, [future])
        else:
            self._unasked.append(future)

    def remove(self, filters: tuple[str, ...]) -> None:
        """Forget filters."""
        for topic_filter in filters:
            self._filters.pop(topic_filter, None)

    def ask_all(self) -> None:
        """Ask a new connection for everything."""
        waiting, self._unasked = self._unasked, []
        if self._filters:
            self._ask(self._filters, waiting)

    def granted(self, packet_id: int, failures: list[bool]) -> tuple[str, ...]:
        """Take a SUBACK with one flag per filter; return the filters that were refused."""
        filters, waiting = self._asked.pop(packet_id, ((), []))
        refused = tuple(f for f, failed in zip(filters, failures, strict=False) if failed)
        for future in waiting:
            if future.done():
                continue
            if refused:
                future.set_exception(SubscribeRefusedError(refused))
            else:
                future.set_result(None)
        return refused

    def connection_lost(self) -> None:
        """Keep those who wait for the next connection."""
        for _, waiting in self._asked.values():
            self._unasked += [future for future in waiting if not future.done()]
        self._asked.clear()

    def cancel(self) -> None:
        """Cancel every future."""
        self.connection_lost()
        for future in self._unasked:
            future.cancel()

    def _ask(self, wanted: dict[str, int], waiting: Waiting) -> None:
        packet_id = self._send(list(wanted.items()))
        if packet_id is None:
            self._unasked += waiting
        else:
            self._asked[packet_id] = (tuple(wanted), waiting)
