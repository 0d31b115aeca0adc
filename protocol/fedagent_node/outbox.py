"""What was published on a connection and is not yet acknowledged."""

from collections import deque
from typing import Protocol


class Token(Protocol):
    """What the client library knows about one published message."""

    @property
    def rc(self) -> int:
        """Zero unless the message failed."""
        ...

    def is_published(self) -> bool:
        """Return whether it was acknowledged (QoS 1) or written (QoS 0)."""
        ...


class Outbox:
    """Count unacknowledged messages and bytes, without a callback per message.

    Acknowledgements come in order, so that looking at the oldest suffices.
    Used by the event loop's thread only, `settled` aside.
    """

    def __init__(self, *, limit: int, limit_bytes: int) -> None:
        self._limit = limit
        self._limit_bytes = limit_bytes
        self._waiting: deque[tuple[Token, int]] = deque()
        self._bytes = 0

    @property
    def pending_bytes(self) -> int:
        """Payload bytes that are not acknowledged."""
        self._prune()
        return self._bytes

    @property
    def settled(self) -> bool:
        """Whether nothing waits; changes nothing, so that any thread may ask."""
        return all(_done(token) for token, _ in list(self._waiting))

    def has_room(self, size: int) -> bool:
        """Return whether `size` more bytes are within the limits."""
        if len(self._waiting) > self._limit // 32 or self._bytes + size > self._limit_bytes:
            self._prune()
        return len(self._waiting) < self._limit and self._bytes + size <= self._limit_bytes

    def add(self, token: Token, size: int) -> None:
        """Note a message that was handed to the connection."""
        self._waiting.append((token, size))
        self._bytes += size

    def forget(self) -> int:
        """Drop everything with its connection; return how much was unacknowledged."""
        lost = sum(not _done(token) for token, _ in self._waiting)
        self._waiting.clear()
        self._bytes = 0
        return lost

    def _prune(self) -> None:
        while self._waiting and _done(self._waiting[0][0]):
            self._bytes -= self._waiting.popleft()[1]


def _done(token: Token) -> bool:
    # A message that met the end of its connection has an error code, and
    # `is_published` would raise it.
    return token.rc == 0 and token.is_published()
