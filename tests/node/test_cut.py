"""Connections that are reset again and again."""

import asyncio
import contextlib
import socket
import struct
from pathlib import Path

from fedagent_node import network
from fedagent_node.address import BrokerAddress
from tests.fakes.links import Peer, broker


async def test_a_storm_of_resets_is_answered_ever_more_seldom(tmp_path: Path) -> None:
    opened = 0

    async def reset(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal opened
        opened += 1
        sock = writer.get_extra_info("socket")
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.close()

    address = BrokerAddress("127.0.0.1", network.free_port("127.0.0.1"))
    one = Peer(address, "one", urgent=lambda: True)
    async with await asyncio.start_server(reset, address.host, address.port):
        await one.link.start()
        await asyncio.sleep(4.0)
        # 0.2, 0.4, 0.8 s at most and then 2 s, of which the mean is waited.
        assert 2 <= opened <= 12
        assert one.link.pending_bytes == 0
    try:
        # What is open bounds the pause, so that it is back soon.
        async with broker("embedded", tmp_path, port=address.port):
            await one.up()
    finally:
        await one.link.stop()
