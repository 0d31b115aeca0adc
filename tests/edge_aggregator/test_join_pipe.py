"""An edge's pipe to the join service: whole where it is used, bounded where it is not."""

import asyncio
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

from fedagent_edge import join_pipe
from fedagent_edge.join_pipe import MAX_BYTES, MAX_CONNECTIONS, JoinPipe
from fedagent_node.errors import JoinUnreachableError
from fedagent_node.site.join_client import Admitted, ask
from tests.coordinator.test_join_service import serving
from tests.fakes.links import eventually

HERE = "127.0.0.1"


def test_a_device_joins_through_an_edge(tmp_path: Path) -> None:
    async def test() -> None:
        counters: Counter[str] = Counter()
        async with serving(tmp_path) as made:
            pipe = JoinPipe(lambda: ["127.0.0.1:1", made.place], counters)
            port = await pipe.start(HERE, 0)
            found = await ask(f"{HERE}:{port}", made.invited())
            assert isinstance(found, Admitted)
            await eventually(lambda: counters["join_pipe_used"] == 1)
            await pipe.close()
            with pytest.raises(JoinUnreachableError):
                await ask(f"{HERE}:{port}", made.invited("late"))

    asyncio.run(test())


def test_without_a_coordinator_it_hangs_up(tmp_path: Path) -> None:
    async def test() -> None:
        counters: Counter[str] = Counter()
        pipe = JoinPipe(list, counters)
        port = await pipe.start(HERE, 0)
        reader, writer = await asyncio.open_connection(HERE, port)
        assert await reader.read() == b""
        assert counters["join_pipe_no_coordinator"] == 1
        writer.close()
        await pipe.close()

    asyncio.run(test())


def test_it_carries_no_more_than_a_join_needs() -> None:
    async def test() -> None:
        taken = bytearray()

        async def takes(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while data := await reader.read(65_536):
                taken.extend(data)
            writer.close()

        server = await asyncio.start_server(takes, HERE, 0)
        place = f"{HERE}:{server.sockets[0].getsockname()[1]}"
        pipe = JoinPipe(lambda: [place], Counter())
        port = await pipe.start(HERE, 0)
        reader, writer = await asyncio.open_connection(HERE, port)
        writer.write(b"x" * 10 * MAX_BYTES)
        with suppress(ConnectionResetError):  # it hangs up with bytes on their way
            assert await reader.read() == b""
        assert len(taken) <= MAX_BYTES
        writer.close()
        await pipe.close()
        server.close()

    asyncio.run(test())


def test_idle_connections_are_few_and_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(join_pipe, "DEADLINE_S", 0.5)

    async def test() -> None:
        over = asyncio.Event()

        async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await over.wait()
            writer.close()

        server = await asyncio.start_server(silent, HERE, 0)
        place = f"{HERE}:{server.sockets[0].getsockname()[1]}"
        counters: Counter[str] = Counter()
        pipe = JoinPipe(lambda: [place], counters)
        port = await pipe.start(HERE, 0)
        opened = [await asyncio.open_connection(HERE, port) for _ in range(MAX_CONNECTIONS + 8)]
        await eventually(lambda: counters["join_pipe_crowded"] == 8)
        await eventually(lambda: counters["join_pipe_broken_off"] == MAX_CONNECTIONS)
        assert not pipe._open
        for _, writer in opened:
            writer.close()
        over.set()
        await pipe.close()
        server.close()

    asyncio.run(test())
