"""A link with its ears open, and a broker for the length of a block."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fedagent_node.broker import Broker, BrokerSpec
from fedagent_node.link import Arrival, BrokerAddress, Link

PATIENCE_S = 60.0


class Peer:
    """A link that keeps what it hears."""

    def __init__(self, address: BrokerAddress, name: str, **settings: Any) -> None:
        self.heard: list[Arrival] = []
        self.states: list[bool] = []
        self._changed = asyncio.Event()
        self.link = Link(
            address,
            client_id=name,
            on_arrivals=self._arrived,
            on_state=self._state,
            **settings,
        )

    def _arrived(self, batch: list[Arrival]) -> None:
        self.heard += batch
        self._changed.set()

    def _state(self, connected: bool) -> None:
        self.states.append(connected)
        self._changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition on what was heard."""
        async with asyncio.timeout(PATIENCE_S):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    async def up(self) -> None:
        await self.until(lambda: self.link.connected and bool(self.states) and self.states[-1])


@asynccontextmanager
async def peer(address: BrokerAddress, name: str, **settings: Any) -> AsyncIterator[Peer]:
    """A connected peer."""
    one = Peer(address, name, **settings)
    await one.link.start()
    try:
        await one.up()
        yield one
    finally:
        await one.link.stop()


@asynccontextmanager
async def broker(kind: str, data_dir: Path, **settings: Any) -> AsyncIterator[Broker]:
    """A private broker that is up."""
    one = Broker(BrokerSpec(kind=kind, data_dir=data_dir, **settings))  # type: ignore[arg-type]  # from a parameter
    await one.start()
    try:
        yield one
    finally:
        await one.stop()


async def eventually(condition: Callable[[], bool]) -> None:
    """Wait for something that nobody announces: another process, a counter."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 - see above
            await asyncio.sleep(0.02)
