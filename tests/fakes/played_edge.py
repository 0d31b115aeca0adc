"""An edge that a test plays for agents that are real processes, on a real broker."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

from fedagent_node.broker.process import Broker, BrokerSpec
from fedagent_node.link import Arrival, Link
from fedagent_protocol import topics
from fedagent_protocol.codec import Direction
from fedagent_protocol.messages import (
    AnyMessage,
    Chunk,
    EdgeBeacon,
    EdgeToAgent,
    Hello,
    Need,
    Receipt,
    ReceiptStatus,
    TaskNeed,
    UpdateOffer,
    Welcome,
    kind,
)
from fedagent_protocol.tensors import encode_tensors
from fedagent_protocol.transfer import Layout
from fedagent_task.models import create
from fedagent_testbed.local import RoleProcess
from tests.fakes.hand_edge import IDLE, REAL, RUN, SITE, digest_of, order_of, served
from tests.fakes.voices import read, voice

M = TypeVar("M")
VOICE = voice("played-edge")
EDGE = VOICE.id
DIGITS = encode_tensors(create(REAL.model).init(1))


class PlayedEdge:
    """An edge whose every word the test chooses; task and model it hands out by itself."""

    def __init__(self, broker: Broker, directory: Path, period_ms: int) -> None:
        self.broker = broker
        self.directory = directory
        self.period_ms = period_ms
        self.heard: list[AnyMessage] = []
        self.task = IDLE
        self.model = b""
        self.chunk_bytes = 256 * 1024
        self.beacons = True
        self.agent = ""
        self.processes: list[RoleProcess] = []
        self._news = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        self.address = await self.broker.start()
        self.link = Link(
            self.address,
            client_id="played-edge",
            on_arrivals=self._arrived,
            on_state=lambda _: None,
        )
        await self.link.start()
        await self.link.subscribe(*topics.edge_lan_filters(SITE, EDGE))
        self._tasks.append(asyncio.create_task(self._beat()))

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.link.stop()
        for process in self.processes:
            await asyncio.to_thread(process.stop)
        await self.broker.stop()

    def device(self, name: str = "device", **config: object) -> RoleProcess:
        full = {
            "data_dir": str(self.directory / name),
            "site": SITE,
            "stream": "digits:rate=2000",
            "edges": [str(self.address)],
            "discovery": "off",
            "json_events": True,
            "watch_parent": True,
            **config,
        }
        process = RoleProcess(
            name=name, role="agent", config=full, log=self.directory / f"{name}.log"
        )
        self.processes.append(process)
        return process

    async def _beat(self) -> None:
        while True:
            if self.beacons and self.link.connected:
                beacon = EdgeBeacon(edge=EDGE, period_ms=self.period_ms)
                topic = topics.edge_beacon(SITE, EDGE)
                self.link.publish(topic, VOICE.seal(topic, beacon))
            await asyncio.sleep(self.period_ms / 1000)

    def _arrived(self, arrivals: list[Arrival]) -> None:
        for arrival in arrivals:
            message = read(Direction.AGENT_TO_EDGE, arrival.payload)
            topic = topics.parse(arrival.topic)
            assert topic.kind == kind(message)
            self.agent = topic.agent
            self.heard.append(message)
            self._serve(message)
        self._news.set()

    def _serve(self, message: AnyMessage) -> None:
        if isinstance(message, Hello):
            self.say(Welcome(edge=EDGE))
        elif isinstance(message, TaskNeed | Need):
            for answer in served(
                message, self.task, {digest_of(self.model): self.model}, self.chunk_bytes
            ):
                if isinstance(answer, Chunk):
                    topic = topics.model(SITE, EDGE, answer.digest)
                    self.link.publish(topic, VOICE.seal(topic, answer))
                else:
                    self.say(answer)

    def say(self, message: EdgeToAgent) -> None:
        topic = topics.agent_down(SITE, self.agent, EDGE, kind(message))
        assert self.link.publish(topic, VOICE.seal(topic, message))

    def order(self, number: int, model: bytes, *, give_up_ms: int = 60_000) -> None:
        self.model = model
        self.say(order_of(self.task, number, model, self.chunk_bytes, give_up_ms=give_up_ms))

    def receipt(self, offer: UpdateOffer) -> None:
        status = ReceiptStatus.ACCEPTED
        self.say(Receipt(run=offer.run, round=offer.round, digest=offer.digest, status=status))

    async def hear(
        self,
        wanted: type[M],
        where: Callable[[M], bool] = lambda _: True,
        *,
        since: int = 0,
        timeout_s: float = 600.0,
    ) -> M:
        """Wait for a message of the agent."""
        async with asyncio.timeout(timeout_s):
            while True:
                for message in self.heard[since:]:
                    if isinstance(message, wanted) and where(message):
                        return message
                self._news.clear()
                await self._news.wait()

    async def update(self, offer: UpdateOffer) -> bytes:
        """Fetch the rest of an update under credit."""
        layout = Layout(offer.size, offer.chunk_bytes)
        pieces = {0: offer.first} if offer.first else {}
        for index in range(layout.count):
            if index not in pieces:
                ranges = ((index, index + 1),)
                self.say(Need(run=RUN, round=offer.round, digest=offer.digest, ranges=ranges))
                chunk = await self.hear(Chunk, _is_chunk(offer.digest, index))
                pieces[index] = chunk.data
        return b"".join(pieces[index] for index in range(layout.count))


@asynccontextmanager
async def played(
    directory: Path, *, broker: str = "embedded", period_ms: int = 1000
) -> AsyncIterator[PlayedEdge]:
    private = Broker(BrokerSpec(data_dir=directory / "broker", kind=broker))  # type: ignore[arg-type]
    edge = PlayedEdge(private, directory, period_ms)
    await edge.start()
    try:
        yield edge
    finally:
        await edge.stop()


def on_a_broker(
    period_ms: int = 1000,
) -> Callable[[Callable[[PlayedEdge], Awaitable[None]]], Callable[[Path], None]]:
    """Make a test of a scenario with an edge that the test plays."""

    def test(scenario: Callable[[PlayedEdge], Awaitable[None]]) -> Callable[[Path], None]:
        async def run(folder: Path) -> None:
            async with played(folder, period_ms=period_ms) as edge:
                await scenario(edge)

        return lambda tmp_path: asyncio.run(run(tmp_path))

    return test


async def said(process: RoleProcess, event: str, **where: object) -> dict[str, object]:
    return await asyncio.to_thread(lambda: process.wait(event, timeout_s=600.0, **where))


def _is_chunk(digest: str, index: int) -> Callable[[Chunk], bool]:
    return lambda chunk: chunk.digest == digest and chunk.index == index


def wait_for(condition: Callable[[], bool], timeout_s: float = 600.0) -> None:
    """Poll what no event tells: another process's state."""
    until = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)
