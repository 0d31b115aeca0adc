"""The page's way in: how many connections there are, and how long one may be without a request.

Both hold from the moment of a connection, before TLS and before anybody has said who they are:
uvicorn's own limits begin with a request, and a socket costs the coordinator a descriptor.
"""

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

MAX_CONNECTIONS = 96
PATIENCE_S = 10.0
"""A connection without a request for so long is hung up, and so is a request without its end."""


class Way(socket.socket):
    """One connection, which says when it is closed."""

    ended: Callable[[], None] | None = None
    busy = 0
    """Requests that are being answered."""

    def close(self) -> None:
        """Close it, and say so once."""
        super().close()
        ended, self.ended = self.ended, None
        if ended is not None:
            ended()


class Door(socket.socket):
    """Listens; where all places are taken the connection that has been idle for longest gives way.

    Args:
        family: AF_INET or AF_INET6.
        patience_s: How long a connection may be without a request, its handshake included.
    """

    def __init__(self, family: int, *, patience_s: float = PATIENCE_S) -> None:
        super().__init__(family, socket.SOCK_STREAM)
        self._patience_s = patience_s
        self._ways: dict[tuple[str, int], Way] = {}
        self._idle: dict[Way, asyncio.TimerHandle] = {}

    def accept(self) -> tuple[socket.socket, Any]:
        """Take the next one; asyncio calls it, in its loop.

        Raises:
            ConnectionAbortedError: It is one too many, and all others are being answered.
        """
        made, address = super().accept()
        way = Way(self.family, self.type, self.proto, fileno=made.detach())
        if len(self._ways) >= MAX_CONNECTIONS and not self._hang_up_one():
            way.close()
            raise ConnectionAbortedError
        key = (str(address[0]), int(address[1]))
        self._ways[key] = way
        way.ended = lambda: self._ended(way, key)
        self._wait_for(way)
        return way, address

    def around(self, app: "ASGIApp") -> "ASGIApp":
        """Return the application, whose connections are not idle while it answers them."""

        async def answered(scope: "Scope", receive: "Receive", send: "Send") -> None:
            way = self._ways.get(scope.get("client", ()))
            if way is None:
                await app(scope, receive, send)
                return
            way.busy += 1
            self._heard(way)
            try:
                await app(scope, receive, send)
            finally:
                way.busy -= 1
                if way.ended is not None and not way.busy:
                    self._wait_for(way)

        return answered

    def _wait_for(self, way: Way) -> None:
        self._idle[way] = asyncio.get_running_loop().call_later(self._patience_s, _hang_up, way)

    def _heard(self, way: Way) -> None:
        timer = self._idle.pop(way, None)
        if timer is not None:
            timer.cancel()

    def _hang_up_one(self) -> bool:
        way = next(iter(self._idle), None)
        if way is None:
            return False
        self._heard(way)
        _hang_up(way)
        return True

    def _ended(self, way: Way, key: tuple[str, int]) -> None:
        self._heard(way)
        self._ways.pop(key, None)


def _hang_up(way: Way) -> None:
    """End a connection; its transport sees that and closes it."""
    with suppress(OSError):
        way.shutdown(socket.SHUT_RDWR)
