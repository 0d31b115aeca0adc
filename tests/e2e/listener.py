"""A client of a broker that reads everything."""

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from fedagent_node.address import BrokerAddress
from fedagent_node.broker.process import Broker, BrokerSpec
from fedagent_node.link import Arrival, Link

T = TypeVar("T")


class Background:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(600)

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(5)
        self.loop.close()


@contextmanager
def shared_broker(directory: Path, *, kind: str = "auto") -> Iterator[str]:
    """Run a broker; give its address."""
    background = Background()
    broker = Broker(BrokerSpec(data_dir=directory, kind=kind))  # type: ignore[arg-type]  # from a parameter
    try:
        background.run(broker.start())
        yield f"mqtt://{broker.address}"
    finally:
        background.run(broker.stop())
        background.close()


class Listener:
    """A link that subscribes to everything, and keeps what it hears."""

    def __init__(self, broker: str) -> None:
        self.heard: list[Arrival] = []
        self._address = BrokerAddress.parse(broker)
        self._background = Background()
        self.link = self._background.run(self._open())

    async def _open(self) -> Link:
        up = asyncio.Event()
        link = Link(
            self._address,
            client_id=f"listener-{id(self):x}",
            on_arrivals=self._hear,
            on_state=lambda connected: up.set() if connected else None,
        )
        await link.start()
        await link.subscribe("#")
        await up.wait()
        return link

    def _hear(self, arrivals: list[Arrival]) -> None:
        self.heard.extend(arrivals)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._background.run(self.link.stop())
        self._background.close()
