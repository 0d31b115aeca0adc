"""How often somebody may be wrong about the token, and how many places one address may take."""

import time
from collections.abc import Callable, Iterable

WRONG = 10
"""Wrong tokens of one address within `WINDOW_S`; more are not looked at."""
WINDOW_S = 60.0
MAX_PEERS = 1024
PLACES = 8
"""Viewers of one address at a time."""
MAX_CONNECTIONS = 96
PATIENCE_S = 10.0
"""A connection without a request for so long is hung up, and so is a request without its end."""
SENDING_S = 30.0
"""A viewer that reads nothing for so long is cut off."""


class Tries:
    """Wrong tokens of late, by the address they came from."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._wrong: dict[str, list[float]] = {}

    def spent(self, peer: str) -> bool:
        """Return whether an address has been wrong too often to be heard."""
        since = self._now() - WINDOW_S
        return sum(at > since for at in self._wrong.get(peer, ())) >= WRONG

    def note(self, peer: str) -> None:
        """Count a wrong one; of too many addresses that of longest ago is forgotten."""
        times = self._wrong.pop(peer, [])
        self._wrong[peer] = [*times, self._now()][-WRONG:]
        if len(self._wrong) > MAX_PEERS:
            del self._wrong[next(iter(self._wrong))]


def has_place(viewers: Iterable[str], peer: str) -> bool:
    """Return whether one more of an address may look."""
    return sum(one == peer for one in viewers) < PLACES
