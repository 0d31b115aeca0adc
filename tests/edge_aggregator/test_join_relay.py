"""An edge's relay to the join service: whole where it is used, bounded where it is not."""

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest

from fedagent_edge import join_relay as relaying
from fedagent_edge.join_relay import MAX_BYTES, MAX_CONNECTIONS, join_relay
from fedagent_node.errors import JoinError
from fedagent_node.site.enrolling import Admitted, ask
from tests.coordinator.test_join_service import serving
from tests.fakes.links import eventually

HERE = "127.0.0.1"


def test_a_device_joins_through_an_edge(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path) as made:
            relay = join_relay(lambda: ["127.0.0.1:1", made.place])
            port = await relay.start(HERE, 0)
            assert isinstance(await ask(f"{HERE}:{port}", made.invited()), Admitted)
            await eventually(lambda: not relay.places)
            await made.service.listener.close()
            with pytest.raises(JoinError, match="does not answer"):
                await ask(f"{HERE}:{port}", made.invited("late"))
            await relay.close()

    asyncio.run(test())


def test_it_carries_no_more_than_a_join_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relaying, "DEADLINE_S", 0.5)
    taken = bytearray()

    async def takes(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65_536):
                taken.extend(data)
        finally:
            writer.close()

    async def test() -> None:
        server = await asyncio.start_server(takes, HERE, 0)
        place = f"{HERE}:{server.sockets[0].getsockname()[1]}"
        relay = join_relay(lambda: [place])
        port = await relay.start(HERE, 0)
        reader, writer = await asyncio.open_connection(HERE, port)
        writer.write(b"x" * 10 * MAX_BYTES)
        with suppress(ConnectionResetError):  # it hangs up with bytes on their way
            assert await reader.read() == b""
        assert len(taken) <= MAX_BYTES
        writer.close()
        # Those that say nothing are few, and end.
        opened = [await asyncio.open_connection(HERE, port) for _ in range(MAX_CONNECTIONS + 8)]
        await eventually(lambda: len(relay.places) == MAX_CONNECTIONS)
        await eventually(lambda: not relay.places)
        for _, writer in opened:
            writer.close()
        await relay.close()
        server.close()

    asyncio.run(test())
