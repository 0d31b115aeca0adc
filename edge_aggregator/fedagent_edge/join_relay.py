"""A relay from this edge's network to the coordinator's join service, which it cannot read.

Devices that reach no coordinator join through their edge. What passes is TLS between the device
and the coordinator: the relay can end it or hold it up, and nothing else.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress

from fedagent_node.network import take_place
from fedagent_node.site.joining import split_place

MAX_CONNECTIONS = 16
MAX_BYTES = 32 * 1024
"""Most bytes of one connection in one direction: a handshake and a certificate are 5 kB."""
DEADLINE_S = 15.0
CONNECT_S = 3.0


class JoinRelay:
    """Listens until closed; `places` are join services to try, the most likely first."""

    def __init__(self, places: Callable[[], Sequence[str]]) -> None:
        self._places = places
        self._open: set[asyncio.StreamWriter] = set()
        self._from: dict[asyncio.StreamWriter, str] = {}
        self._server: asyncio.Server | None = None

    async def start(self, listen: str, port: int) -> int:
        """Listen; return the port. `OSError` if it cannot."""
        self._server = await asyncio.start_server(self._serve, listen, port)
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Stop listening, and hang up. Idempotent."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
        for writer in self._open:
            # Not cancelled: streams of Python 3.11 log that as an error.
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ends = {writer}
        take_place(self._from, writer, MAX_CONNECTIONS)
        try:
            self._open |= ends
            async with asyncio.timeout(DEADLINE_S):
                for place in tuple(self._places())[:8]:
                    with suppress(OSError, TimeoutError):
                        async with asyncio.timeout(CONNECT_S):
                            inner, outer = await asyncio.open_connection(*split_place(place))
                        ends.add(outer)
                        self._open.add(outer)
                        await asyncio.gather(_pour(reader, outer), _pour(inner, writer))
                        return
        except (OSError, TimeoutError):
            return
        finally:
            self._open -= ends
            self._from.pop(writer, None)
            for end in ends:
                end.close()


async def _pour(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    """Carry bytes until the end or the bound, and hang up then: all is said."""
    left = MAX_BYTES
    while left > 0 and (data := await source.read(min(4096, left))):
        left -= len(data)
        sink.write(data)
        await sink.drain()
    sink.close()
