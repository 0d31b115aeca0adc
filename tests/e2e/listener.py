"""A client of a broker that reads everything, or sends what no honest agent would."""

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

from fedagent_node.link import Arrival, BrokerAddress, Link

T = TypeVar("T")


class Listener:
    """A link in a thread of its own: subscribes to everything and keeps what it hears."""

    def __init__(
        self, broker: str, *, on_arrival: Callable[["Listener", Arrival], None] | None = None
    ) -> None:
        self.heard: list[Arrival] = []
        self._address = BrokerAddress.parse(broker)
        self._on_arrival = on_arrival
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="listener", daemon=True)
        self._thread.start()
        self.link = self._run(self._open())

    def publish(self, topic: str, payload: bytes) -> None:
        """Send anything to anywhere."""
        self._loop.call_soon_threadsafe(lambda: self.link.publish(topic, payload))

    def wait_for(self, test: Callable[[], bool], *, timeout_s: float = 60.0) -> None:
        """Wait until something holds, polling."""

        deadline = time.monotonic() + timeout_s
        while not test():
            assert time.monotonic() < deadline, "what was waited for did not come"
            time.sleep(0.02)

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
        if self._on_arrival is not None:
            for arrival in arrivals:
                self._on_arrival(self, arrival)

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._run(self.link.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        self._loop.close()
