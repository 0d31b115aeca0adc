"""A relay from this edge's network to the coordinator's join service, which it cannot read.

Devices that reach no coordinator join through their edge. What passes is TLS between the device
and the coordinator: the relay can end it or hold it up, and nothing else.
"""

import asyncio
from collections.abc import Callable, Sequence

from fedagent_node.network import Listener
from fedagent_node.site.joining import split_place

MAX_CONNECTIONS = 16
MAX_BYTES = 32 * 1024
"""Most bytes of one connection in one direction: a handshake and a certificate are 5 kB."""
DEADLINE_S = 15.0
CONNECT_S = 3.0


def join_relay(places: Callable[[], Sequence[str]]) -> Listener:
    """Return a relay to the first of these join services that answers, the most likely first."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, _: str) -> None:
        for place in tuple(places())[:8]:
            try:
                async with asyncio.timeout(CONNECT_S):
                    inner, outer = await asyncio.open_connection(*split_place(place))
            except (OSError, TimeoutError):
                continue
            try:
                await asyncio.gather(_pour(reader, outer), _pour(inner, writer))
            finally:
                outer.close()
            return

    return Listener(serve, most=MAX_CONNECTIONS, deadline_s=DEADLINE_S)


async def _pour(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    """Carry bytes until the end or the bound, and hang up then: all is said."""
    left = MAX_BYTES
    while left > 0 and (data := await source.read(min(4096, left))):
        left -= len(data)
        sink.write(data)
        await sink.drain()
    sink.close()
