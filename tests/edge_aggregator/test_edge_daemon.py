"""The real process on a real broker; this test plays coordinator and agents over links."""

import asyncio
import json
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from fedagent_node.broker import Broker, BrokerSpec
from fedagent_node.link import BrokerAddress
from fedagent_protocol import messages as m
from fedagent_protocol import topics
from fedagent_protocol.codec import Direction, encode
from fedagent_protocol.tensors import digest_of, encode_tensors
from fedagent_protocol.transfer import Layout
from tests.fakes.links import Peer, peer

from .harness import BODY, RUN, TASK, delta, expected_mean, model_tensors

SITE = "edge-test"
MOSQUITTO = shutil.which("mosquitto") or shutil.which("/usr/sbin/mosquitto")
BROKERS = [
    "embedded",
    pytest.param(
        "mosquitto",
        marks=[
            pytest.mark.mosquitto,
            pytest.mark.skipif(MOSQUITTO is None, reason="mosquitto is not installed"),
        ],
    ),
]


@dataclass
class EdgeProcess:
    """The daemon with its events."""

    process: asyncio.subprocess.Process
    events: list[dict[str, object]] = field(default_factory=list)

    async def event(self, name: str) -> dict[str, object]:
        """Return the next event of this name."""
        assert self.process.stdout is not None
        async with asyncio.timeout(60):
            while line := await self.process.stdout.readline():
                event: dict[str, object] = json.loads(line)
                self.events.append(event)
                if event["event"] == name:
                    return event
        raise AssertionError(f"no {name}; {self.events}")

    async def end(self, number: int = signal.SIGTERM) -> int:
        if self.process.returncode is None:
            self.process.send_signal(number)
        async with asyncio.timeout(60):
            return await self.process.wait()


@asynccontextmanager
async def edge(directory: Path, **config: object) -> AsyncIterator[EdgeProcess]:
    settings = {
        "data_dir": str(directory),
        "site": SITE,
        "discovery": "off",
        "json_events": True,
        "log_level": "warning",
        **config,
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "fedagent_edge", "--config", json.dumps(settings),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        yield EdgeProcess(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@asynccontextmanager
async def coordinator(address: BrokerAddress, edge_id: str) -> AsyncIterator[Peer]:
    filters = topics.coordinator_filters(SITE)
    reads = Direction.EDGE_TO_COORDINATOR
    async with peer(address, "the-coordinator", *filters, reads=reads) as one:
        yield one


@asynccontextmanager
async def agent(address: BrokerAddress, name: str, edge_id: str) -> AsyncIterator[Peer]:
    filters = topics.agent_filters(SITE, name)
    async with peer(address, name, *filters, reads=Direction.EDGE_TO_AGENT) as one:
        await one.message(m.EdgeBeacon, edge=edge_id)
        say(one, name, edge_id, m.Hello(agent=name))
        say(one, name, edge_id, m.ContextReport(seq=1, available=True, price=3))
        await one.message(m.Welcome)
        yield one


def say(one: Peer, name: str, edge_id: str, message: m.AgentToEdge) -> None:
    topic = topics.agent_up(SITE, name, edge_id, m.kind(message))
    assert one.link.publish(topic, encode(message))


def tell(one: Peer, edge_id: str, message: m.CoordinatorToEdge) -> None:
    topic = topics.edge_down(SITE, edge_id, m.kind(message))
    assert one.link.publish(topic, encode(message))


async def hand_over(boss: Peer, edge_id: str, model: bytes, chunk_bytes: int = 262_144) -> str:
    """Welcome the edge and let it pull the model."""
    digest, layout = digest_of(model), Layout(len(model), chunk_bytes)
    await boss.message(m.EdgeHello)
    tell(boss, edge_id, m.EdgeWelcome(run=RUN, coordinator="coord", task=TASK, body=BODY))
    await boss.message(m.EdgeStatus, run=RUN)
    offer = m.GlobalModel(
        run=RUN, digest=digest, size=len(model), chunk_bytes=chunk_bytes, first=model[:chunk_bytes]
    )
    tell(boss, edge_id, offer)
    for index in range(1, layout.count):
        start, stop = layout.span(index)
        chunk = m.Chunk(run=RUN, digest=digest, index=index, data=model[start:stop])
        tell(boss, edge_id, chunk)
    await boss.message(m.EdgeStatus, model=digest)
    return digest


def offer_of(
    order: m.TrainOrder, body: bytes, *, samples: int = 10, chunk_bytes: int = 262_144
) -> m.UpdateOffer:
    return m.UpdateOffer(
        run=order.run,
        round=order.round,
        digest=digest_of(body),
        size=len(body),
        chunk_bytes=chunk_bytes,
        base=order.model,
        task=order.task,
        first=body[:chunk_bytes],
        stats=m.TrainStats(num_samples=samples),
    )


async def upload(one: Peer, name: str, edge_id: str, order: m.TrainOrder, body: bytes) -> m.Receipt:
    """Offer an update, send what is authorised, wait for the receipt."""
    offer = offer_of(order, body)
    layout = Layout(offer.size, offer.chunk_bytes)
    say(one, name, edge_id, offer)
    answered = 0
    async with asyncio.timeout(60):
        while True:
            needs = [
                x for _, x in one.messages if isinstance(x, m.Need) and x.digest == offer.digest
            ]
            for need in needs[answered:]:
                for start, stop in need.ranges:
                    for index in range(start, stop):
                        first, last = layout.span(index)
                        chunk = m.Chunk(
                            run=order.run, round=order.round, digest=offer.digest, index=index,
                            data=body[first:last],
                        )  # fmt: skip
                        say(one, name, edge_id, chunk)
            answered = len(needs)
            for _, message in one.messages:
                if isinstance(message, m.Receipt) and message.digest == offer.digest:
                    return message
            one.fresh.clear()
            await one.fresh.wait()


def order_of(agents: tuple[str, ...], number: int = 1, **facts: object) -> m.RoundOrder:
    values: dict[str, object] = {
        "run": RUN,
        "round": number,
        "task": TASK,
        "assignments": tuple(m.Assignment(agent=a) for a in agents),
        "deadline_ms": 10_000,
        "max_wait_ms": 20_000,
        "want_model": True,
        **facts,
    }
    return m.RoundOrder(**values)  # type: ignore[arg-type]  # a test's own facts


Scene = Callable[[EdgeProcess, BrokerAddress, str], Awaitable[None]]


def on_a_shared_broker(directory: Path, kind: str, scene: Scene, **config: object) -> None:
    """Run a scene with one broker for everybody, as `--broker URL` does."""

    async def run() -> None:
        broker = Broker(BrokerSpec(data_dir=directory / "broker", kind=kind))  # type: ignore[arg-type]
        address = await broker.start()
        try:
            async with edge(directory / "edge", broker=str(address), **config) as process:
                ready = await process.event("ready")
                await scene(process, address, str(ready["id"]))
                assert await process.end() == 0
        finally:
            await broker.stop()

    asyncio.run(run())


@pytest.mark.parametrize("kind", BROKERS)
@pytest.mark.parametrize("size", [64, 300_000], ids=["small", "large"])
def test_a_round_over_a_real_broker(tmp_path: Path, kind: str, size: int) -> None:
    async def scene(process: EdgeProcess, address: BrokerAddress, edge_id: str) -> None:
        model = encode_tensors(model_tensors(size))
        async with (
            coordinator(address, edge_id) as boss,
            agent(address, "a0", edge_id) as one,
            agent(address, "a1", edge_id) as two,
        ):
            digest = await hand_over(boss, edge_id, model)
            tell(boss, edge_id, m.RoundOpen(run=RUN, round=1))
            columns = await boss.message(m.RoundColumns, round=1)
            assert isinstance(columns, m.RoundColumns)
            assert sorted(columns.new_ids) == ["a0", "a1"]
            tell(boss, edge_id, order_of(("a0", "a1")))
            for name, seat in (("a0", one), ("a1", two)):
                order = await seat.message(m.TrainOrder, round=1)
                assert isinstance(order, m.TrainOrder)
                assert (order.model, order.size) == (digest, len(model))
                body = encode_tensors(delta(name, size))
                receipt = await upload(seat, name, edge_id, order, body)
                assert receipt.status is m.ReceiptStatus.ACCEPTED
            report = await boss.message(m.RoundReport, round=1)
            assert isinstance(report, m.RoundReport)
            weights = {"a0": 10.0, "a1": 10.0}
            assert report.model == digest_of(encode_tensors(expected_mean(size, weights)))
            assert [o.status for o in report.outcomes] == ["arrived", "arrived"]
            tell(boss, edge_id, m.ReportReceipt(run=RUN, round=1))
            closed = await process.event("round_closed")
            assert (closed["used"], closed["failed"]) == (2, "")

    on_a_shared_broker(tmp_path, kind, scene)


def test_the_model_travels_on_its_topic_to_whoever_asks(tmp_path: Path) -> None:
    async def scene(process: EdgeProcess, address: BrokerAddress, edge_id: str) -> None:
        model = encode_tensors(model_tensors(300_000))
        async with (
            coordinator(address, edge_id) as boss,
            agent(address, "a0", edge_id) as seat,
        ):
            digest = await hand_over(boss, edge_id, model)
            await seat.link.subscribe(topics.model(SITE, edge_id, digest))
            tell(boss, edge_id, order_of(("a0",)))
            await seat.message(m.TrainOrder)
            say(seat, "a0", edge_id, m.Need(run=RUN, round=1, digest=digest, ranges=((0, 4),)))
            await seat.message(m.Chunk, index=3)
            say(seat, "a0", edge_id, m.Need(run=RUN, round=1, digest=digest, ranges=((4, 5),)))
            await seat.message(m.Chunk, index=4)
            chunks = [x for t, x in seat.messages if isinstance(x, m.Chunk) and "/model/" in t]
            assert b"".join(c.data for c in chunks) == model

    on_a_shared_broker(tmp_path, "embedded", scene)


def test_a_killed_edge_comes_back_with_the_receipted_update(tmp_path: Path) -> None:
    async def run() -> None:
        broker = Broker(BrokerSpec(data_dir=tmp_path / "broker", kind="embedded"))
        address = await broker.start()
        model, body = encode_tensors(model_tensors(64)), encode_tensors(delta("a0"))
        try:
            async with edge(tmp_path / "edge", broker=str(address)) as process:
                edge_id = str((await process.event("ready"))["id"])
                async with (
                    coordinator(address, edge_id) as boss,
                    agent(address, "a0", edge_id) as seat,
                    agent(address, "a1", edge_id),
                ):
                    await hand_over(boss, edge_id, model)
                    tell(boss, edge_id, order_of(("a0", "a1"), deadline_ms=4000))
                    order = await seat.message(m.TrainOrder)
                    assert isinstance(order, m.TrainOrder)
                    receipt = await upload(seat, "a0", edge_id, order, body)
                    assert receipt.status is m.ReceiptStatus.ACCEPTED
                    assert await process.end(signal.SIGKILL) == -9
                    boss.messages.clear()
                    async with edge(tmp_path / "edge", broker=str(address)) as again:
                        assert (await again.event("ready"))["id"] == edge_id
                        await boss.message(m.EdgeHello)
                        welcome = m.EdgeWelcome(run=RUN, coordinator="coord", task=TASK, body=BODY)
                        tell(boss, edge_id, welcome)
                        report = await boss.message(m.RoundReport)
                        assert isinstance(report, m.RoundReport)
                        assert [o.status for o in report.outcomes] == ["arrived", "missed"]
                        want = encode_tensors(expected_mean(64, {"a0": 10.0}))
                        assert report.model == digest_of(want)
        finally:
            await broker.stop()

    asyncio.run(run())


def test_garbage_on_every_topic_leaves_the_edge_at_work(tmp_path: Path) -> None:
    async def scene(process: EdgeProcess, address: BrokerAddress, edge_id: str) -> None:
        async with (
            coordinator(address, edge_id) as boss,
            agent(address, "a0", edge_id) as seat,
        ):
            await hand_over(boss, edge_id, encode_tensors(model_tensors(64)))
            for number in range(300):
                topic = topics.agent_up(SITE, "evil", edge_id, "update")
                seat.link.publish(topic, os.urandom(number))
                boss.link.publish(topics.edge_down(SITE, edge_id, "open"), os.urandom(number))
            tell(boss, edge_id, order_of(("a0",)))
            order = await seat.message(m.TrainOrder)
            assert isinstance(order, m.TrainOrder)
            receipt = await upload(seat, "a0", edge_id, order, encode_tensors(delta("a0")))
            assert receipt.status is m.ReceiptStatus.ACCEPTED
            tell(boss, edge_id, m.EdgeWelcome(run=RUN, coordinator="coord", task=TASK, body=BODY))
            async with asyncio.timeout(60):
                while True:
                    status = await boss.message(m.EdgeStatus)
                    assert isinstance(status, m.EdgeStatus)
                    if status.counters.get("malformed", 0) > 500:
                        break
                    boss.fresh.clear()
                    await boss.fresh.wait()
            assert "internal_errors" not in status.counters

    on_a_shared_broker(tmp_path, "embedded", scene)


@pytest.mark.parametrize("kind", BROKERS)
def test_it_runs_its_own_broker_and_leaves_no_orphan(tmp_path: Path, kind: str) -> None:
    async def run() -> None:
        async with edge(tmp_path, broker=kind) as process:
            ready = await process.event("ready")
            address = BrokerAddress.parse(str(ready["broker"]))
            assert ready["broker_kind"] == kind
            async with agent(address, "a0", str(ready["id"])):
                assert (await process.event("agent_joined"))["agent"] == "a0"
            assert await process.end() == 0
            with pytest.raises(OSError, match=r"refused|Connect"):
                await asyncio.open_connection(address.host, address.port)

    asyncio.run(run())


def test_it_ends_when_its_parent_does(tmp_path: Path) -> None:
    async def run() -> None:
        async with edge(tmp_path, broker="embedded", watch_parent=True) as process:
            await process.event("ready")
            assert process.process.stdin is not None
            process.process.stdin.close()
            async with asyncio.timeout(60):
                assert await process.process.wait() == 0

    asyncio.run(run())


def test_a_second_process_on_the_directory_refuses(tmp_path: Path) -> None:
    async def run() -> None:
        async with edge(tmp_path, broker="embedded") as process:
            await process.event("ready")
            async with edge(tmp_path, broker="embedded") as second:
                assert await second.process.wait() == 75

    asyncio.run(run())


def test_exit_codes_of_what_cannot_start(tmp_path: Path) -> None:
    async def run() -> None:
        async with edge(tmp_path, borker="auto") as process:
            assert await process.process.wait() == 2
        (tmp_path / "state.msgpack").write_bytes(b"\xc1")
        async with edge(tmp_path, broker="embedded") as process:
            assert await process.process.wait() == 21
        away: dict[str, object] = {"broker": "embedded", "listen": "203.0.113.1"}
        async with edge(tmp_path / "x", **away) as process:
            assert await process.process.wait() == 2  # it wants certificates
        async with edge(tmp_path / "x", **away, insecure=True) as process:
            assert await process.process.wait() == 20

    asyncio.run(run())
