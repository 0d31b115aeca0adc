"""A link with its ears open, and a broker for the length of a block."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fedagent_node.address import BrokerAddress
from fedagent_node.broker.process import Broker, BrokerSpec
from fedagent_node.link import Arrival, Link
from fedagent_protocol.codec import Direction
from fedagent_protocol.messages import AnyMessage, Message

from .voices import read

PATIENCE_S = 600.0


class Peer:
    """A link that keeps what it hears; with a direction, also the messages that it makes."""

    def __init__(
        self, address: BrokerAddress, name: str, *, reads: Direction | None = None, **settings: Any
    ) -> None:
        self.heard: list[Arrival] = []
        self.messages: list[tuple[str, AnyMessage]] = []
        self.states: list[bool] = []
        self._reads = reads
        self.fresh = asyncio.Event()
        self.link = Link(
            address,
            client_id=name,
            on_arrivals=self._arrived,
            on_state=self._state,
            **settings,
        )

    def _arrived(self, batch: list[Arrival]) -> None:
        self.heard += batch
        if self._reads is not None:
            self.messages += [(one.topic, read(self._reads, one.payload)) for one in batch]
        self.fresh.set()

    def _state(self, connected: bool) -> None:
        self.states.append(connected)
        self.fresh.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not condition():
                self.fresh.clear()
                await self.fresh.wait()

    async def message(self, kind: type[Message], **facts: object) -> AnyMessage:
        """Return the newest message like this, when there is one."""

        def found() -> list[AnyMessage]:
            return [
                message
                for _, message in self.messages
                if isinstance(message, kind)
                and all(getattr(message, name) == value for name, value in facts.items())
            ]

        await self.until(lambda: bool(found()))
        return found()[-1]

    async def up(self) -> None:
        await self.until(lambda: self.link.connected and bool(self.states) and self.states[-1])


@asynccontextmanager
async def peer(
    address: BrokerAddress, name: str, *filters: str, **settings: Any
) -> AsyncIterator[Peer]:
    one = Peer(address, name, **settings)
    await one.link.start()
    try:
        await one.up()
        if filters:
            await one.link.subscribe(*filters)
        yield one
    finally:
        await one.link.stop()


@asynccontextmanager
async def broker(kind: str, data_dir: Path, **settings: Any) -> AsyncIterator[Broker]:
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
