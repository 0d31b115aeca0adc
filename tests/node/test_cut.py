"""Connections that are cut after any number of bytes, or reset again and again."""

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from fedagent_node import link as link_module
from fedagent_node import network
from fedagent_node.link import BrokerAddress
from tests.fakes.links import Peer, broker, eventually, peer

BODY = bytes(range(256)) * 8


class Cutter:
    """A proxy that passes so many bytes on from the client, and then resets the connection."""

    def __init__(self, to: BrokerAddress) -> None:
        self.to = to
        self.left: int | None = None
        self.opened = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.opened += 1
        if self.left == 0:
            return reset(writer)
        inner, outer = await asyncio.open_connection(self.to.host, self.to.port)
        back = asyncio.create_task(self._copy(inner, writer))
        try:
            while data := await reader.read(4096):
                if self.left is not None:
                    data = data[: self.left]
                    self.left -= len(data)
                outer.write(data)
                await outer.drain()
                if self.left == 0:
                    break
        finally:
            back.cancel()
            outer.close()
            reset(writer)
        return None

    @staticmethod
    async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(4096):
                writer.write(data)
                await writer.drain()


def reset(writer: asyncio.StreamWriter) -> None:
    sock = writer.get_extra_info("socket")
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.close()


@contextlib.asynccontextmanager
async def cutter(to: BrokerAddress) -> AsyncIterator[tuple[Cutter, BrokerAddress]]:
    one = Cutter(to)
    port = network.free_port("127.0.0.1")
    server = await asyncio.start_server(one.serve, "127.0.0.1", port)
    try:
        yield one, BrokerAddress("127.0.0.1", port)
    finally:
        server.close()


async def test_cut_after_any_number_of_bytes_a_message_is_whole_or_not_there(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_module, "URGENT_S", 0.2)
    async with (
        broker(kind, tmp_path) as b,
        peer(b.address, "hears", "t") as hears,
        cutter(b.address) as (cut, address),
        peer(address, "says", urgent=lambda: True) as says,
    ):
        for after in (1, 7, 60, 1000, 2055, 2060, 4000):
            await says.up()
            cut.left = after
            losses = says.link.counters["losses"]
            for _ in range(3):
                says.link.publish("t", BODY)
            await eventually(lambda n=losses: says.link.counters["losses"] > n)  # type: ignore[misc]  # bound default
            cut.left = None
        await says.up()
        assert says.link.publish("t", b"last")
        await hears.until(lambda: hears.heard[-1].payload == b"last" if hears.heard else False)
        assert {one.payload for one in hears.heard} <= {BODY, b"last"}


async def test_a_storm_of_resets_is_answered_ever_more_seldom(tmp_path: Path) -> None:
    async with broker("embedded", tmp_path) as b, cutter(b.address) as (cut, address):
        cut.left = 0
        one = Peer(address, "one", urgent=lambda: True)
        await one.link.start()
        try:
            await asyncio.sleep(4.0)
            # 0.2, 0.4, 0.8 s at most and then 2 s, of which the mean is waited.
            assert cut.opened <= 12
            assert one.link.pending_bytes == 0
            cut.left = None
            async with asyncio.timeout(60.0):
                await one.up()
        finally:
            await one.link.stop()
