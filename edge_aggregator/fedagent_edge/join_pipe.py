"""A pipe from this edge's network to the coordinator's join service, which it cannot read.

Devices that reach no coordinator join through their edge. What passes is TLS between the device
and the coordinator: a pipe can end it or hold it up, and nothing else.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress

from fedagent_node.site.joining import split_place

MAX_CONNECTIONS = 16
MAX_BYTES = 32 * 1024
"""Most bytes of one connection in one direction: a handshake and a certificate are 5 kB."""
DEADLINE_S = 15.0
CONNECT_S = 3.0
LAST_WORDS_S = 0.5
_READ_BYTES = 4096


class JoinPipe:
    """Listens until closed; `places` are join services to try, the most likely first."""

    def __init__(self, places: Callable[[], Sequence[str]], counters: Counter[str]) -> None:
        self._places = places
        self._counters = counters
        self._open: dict[asyncio.Task[None], list[asyncio.StreamWriter]] = {}
        self._server: asyncio.Server | None = None

    async def start(self, listen: str, port: int) -> int:
        """Listen; return the port. `OSError` if it cannot."""
        self._server = await asyncio.start_server(
            self._serve, listen, port, limit=_READ_BYTES, backlog=MAX_CONNECTIONS
        )
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Stop listening, and hang up. Idempotent."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
        for writer in [one for ends in self._open.values() for one in ends]:
            # Not cancelled: streams of Python 3.11 log that as an error.
            writer.transport.abort()
        if self._open:
            await asyncio.wait(self._open, timeout=CONNECT_S)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._open) >= MAX_CONNECTIONS:
            self._counters["join_pipe_crowded"] += 1
            writer.transport.abort()
            return
        task = asyncio.current_task()
        assert task is not None
        self._open[task] = [writer]
        try:
            async with asyncio.timeout(DEADLINE_S):
                await self._join(reader, writer, self._open[task])
        except (TimeoutError, OSError):
            self._counters["join_pipe_broken_off"] += 1
        finally:
            for end in self._open.pop(task):
                end.close()

    async def _join(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        ends: list[asyncio.StreamWriter],
    ) -> None:
        there = await self._connected()
        if there is None:
            self._counters["join_pipe_no_coordinator"] += 1
            return
        inner, outer = there
        ends.append(outer)
        ways = [
            asyncio.create_task(_pour(reader, outer), name="join-up"),
            asyncio.create_task(_pour(inner, writer), name="join-down"),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            # What was said last still has to arrive.
            await asyncio.wait(ways, timeout=LAST_WORDS_S)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
        self._counters["join_pipe_used"] += 1

    async def _connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        for place in tuple(self._places())[:8]:
            with suppress(OSError, TimeoutError):
                async with asyncio.timeout(CONNECT_S):
                    return await asyncio.open_connection(*split_place(place), limit=_READ_BYTES)
        return None


async def _pour(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    """Carry bytes until the end or the bound."""
    left = MAX_BYTES
    while left > 0 and (data := await source.read(min(_READ_BYTES, left))):
        left -= len(data)
        sink.write(data)
        await sink.drain()
