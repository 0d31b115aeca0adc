"""The real process on a real broker; this test plays coordinator and agents over links."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import pytest

from fedagent_edge.config import EdgeConfig
from fedagent_edge.daemon import EdgeDaemon
from fedagent_node.address import BrokerAddress
from fedagent_node.discovery.advert import Advert
from fedagent_protocol import messages as m
from fedagent_protocol import topics
from fedagent_protocol.codec import Direction
from fedagent_protocol.signed import is_proved
from fedagent_protocol.tensors import digest_of, encode_tensors
from fedagent_protocol.transfer import Layout
from fedagent_testbed.local import RoleProcess
from tests.e2e.support import BROKERS
from tests.fakes.links import Peer, broker, peer
from tests.fakes.voices import Voice, voice

from .harness import BODY, RUN, TASK, delta, expected_mean, model_tensors, offer_of


async def said(process: RoleProcess, event: str) -> dict[str, object]:
    return await asyncio.to_thread(lambda: process.wait(event, timeout_s=600.0))


SITE = "edge-test"
CHUNK_BYTES = 262_144
M = TypeVar("M", bound=m.Message)
VOICES = {one.id: one for one in (voice("a0"), voice("a1"))}
A0, A1 = sorted(VOICES)


@contextmanager
def edge(directory: Path, **facts: object) -> Iterator[RoleProcess]:
    config = {
        "data_dir": str(directory),
        "site": SITE,
        "discovery": "off",
        "json_events": True,
        "log_level": "warning",
        **facts,
    }
    directory.mkdir(exist_ok=True)
    process = RoleProcess(name="edge", role="edge", config=config, log=directory / "log")
    try:
        yield process
    finally:
        process.kill()
        process.close()


@dataclass
class Seat:
    """The coordinator's or an agent's end of the wire to one edge."""

    peer: Peer
    edge: str
    voice: Voice
    agent: str = ""

    def say(self, message: m.AnyMessage) -> None:
        name = m.kind(message)
        if self.agent:
            topic = topics.agent_up(SITE, self.agent, self.edge, name)
        else:
            topic = topics.edge_down(SITE, self.edge, name)
        assert self.peer.link.publish(topic, self.voice.seal(topic, message))

    async def hear(self, kind: type[M], **facts: object) -> M:
        message = await self.peer.message(kind, **facts)
        assert isinstance(message, kind)
        return message

    def heard(self, kind: type[M], digest: str) -> list[M]:
        found = [message for _, message in self.peer.messages if isinstance(message, kind)]
        return [one for one in found if getattr(one, "digest", "") == digest]

    async def hand_over(self, model: bytes) -> str:
        """Welcome the edge and let it pull the model."""
        digest, layout = digest_of(model), Layout(len(model), CHUNK_BYTES)
        await self.hear(m.EdgeHello)
        self.say(m.EdgeWelcome(run=RUN, coordinator=self.voice.id, task=TASK, body=BODY))
        await self.hear(m.EdgeStatus, run=RUN)
        first = model[:CHUNK_BYTES]
        size = len(model)
        self.say(
            m.GlobalModel(run=RUN, digest=digest, size=size, chunk_bytes=CHUNK_BYTES, first=first)
        )
        for index in range(1, layout.count):
            start, stop = layout.span(index)
            self.say(m.Chunk(run=RUN, digest=digest, index=index, data=model[start:stop]))
        await self.hear(m.EdgeStatus, model=digest)
        return digest

    async def fetch(self, digest: str, number: int) -> bytes:
        """Return a model of five chunks, as it comes on its topic."""
        await self.peer.link.subscribe(topics.model(SITE, self.edge, digest))
        for first, stop in ((0, 4), (4, 5)):
            self.say(m.Need(run=RUN, round=number, digest=digest, ranges=((first, stop),)))
            await self.hear(m.Chunk, index=stop - 1)
        chunks = [x for t, x in self.peer.messages if isinstance(x, m.Chunk) and "/model/" in t]
        return b"".join(chunk.data for chunk in chunks)

    async def upload(self, order: m.TrainOrder, body: bytes) -> m.ReceiptStatus:
        """Offer an update, send what is authorised, wait for the receipt."""
        offer = self.voice.claim(offer_of(order, body, chunk_bytes=CHUNK_BYTES), self.edge)
        layout = Layout(offer.size, offer.chunk_bytes)
        facts = {"run": order.run, "round": order.round, "digest": offer.digest}
        self.say(offer)
        answered = 0

        def news() -> bool:
            needs = self.heard(m.Need, offer.digest)
            return len(needs) > answered or bool(self.heard(m.Receipt, offer.digest))

        while not self.heard(m.Receipt, offer.digest):
            await self.peer.until(news)
            needs = self.heard(m.Need, offer.digest)
            for start, stop in (span for need in needs[answered:] for span in need.ranges):
                for index in range(start, stop):
                    first, last = layout.span(index)
                    self.say(m.Chunk(**facts, index=index, data=body[first:last]))  # type: ignore[arg-type]
            answered = len(needs)
        return self.heard(m.Receipt, offer.digest)[0].status


@asynccontextmanager
async def coordinator(address: BrokerAddress, edge_id: str) -> AsyncIterator[Seat]:
    filters, reads = topics.coordinator_filters(SITE), Direction.EDGE_TO_COORDINATOR
    async with peer(address, "the-coordinator", *filters, reads=reads) as one:
        yield Seat(one, edge_id, voice("coordinator"))


@asynccontextmanager
async def agent(address: BrokerAddress, name: str, edge_id: str) -> AsyncIterator[Seat]:
    filters, reads = topics.agent_filters(SITE, name), Direction.EDGE_TO_AGENT
    async with peer(address, name, *filters, reads=reads) as one:
        seat = Seat(one, edge_id, VOICES[name], name)
        await seat.hear(m.EdgeBeacon, edge=edge_id)
        seat.say(m.Hello(agent=name))
        seat.say(m.ContextReport(seq=1, available=True, price=3))
        await seat.hear(m.Welcome)
        yield seat


def order_of(*agents: str, **facts: object) -> m.RoundOrder:
    values: dict[str, object] = {
        "run": RUN,
        "round": 1,
        "task": TASK,
        "assignments": tuple(m.Assignment(agent=a) for a in agents),
        "deadline_ms": 10_000,
        "max_wait_ms": 20_000,
        "want_model": True,
        **facts,
    }
    return m.RoundOrder(**values)  # type: ignore[arg-type]  # a test's own facts


Scene = Callable[[RoleProcess, Seat, Seat, Seat], Awaitable[None]]


def on_a_shared_broker(directory: Path, kind: str, scene: Scene) -> None:
    """Run a scene of a coordinator and two agents on one broker, as `--broker URL` has it."""

    async def run() -> None:
        async with broker(kind, directory / "broker") as shared:
            address = shared.address
            with edge(directory / "edge", broker=str(address)) as process:
                edge_id = str((await said(process, "ready"))["id"])
                async with (
                    coordinator(address, edge_id) as boss,
                    agent(address, A0, edge_id) as one,
                    agent(address, A1, edge_id) as two,
                ):
                    await scene(process, boss, one, two)

    asyncio.run(run())


@pytest.mark.parametrize("kind", BROKERS)
@pytest.mark.parametrize("size", [64, 300_000], ids=["small", "large"])
def test_a_round_over_a_real_broker(tmp_path: Path, kind: str, size: int) -> None:
    async def scene(process: RoleProcess, boss: Seat, one: Seat, two: Seat) -> None:
        model = encode_tensors(model_tensors(size))
        digest = await boss.hand_over(model)
        boss.say(m.RoundOpen(run=RUN, round=1))
        columns = await boss.hear(m.RoundColumns, round=1)
        assert sorted(columns.new_ids) == [A0, A1]
        boss.say(order_of(A0, A1))
        for seat in (one, two):
            order = await seat.hear(m.TrainOrder, round=1)
            assert (order.model, order.size) == (digest, len(model))
            if size > CHUNK_BYTES and seat is one:
                assert await seat.fetch(digest, 1) == model
            body = encode_tensors(delta(seat.agent, size))
            assert await seat.upload(order, body) is m.ReceiptStatus.ACCEPTED
        report = await boss.hear(m.RoundReport, round=1)
        weights = {A0: 10.0, A1: 10.0}
        assert report.model == digest_of(encode_tensors(expected_mean(size, weights)))
        assert [o.status for o in report.outcomes] == ["arrived", "arrived"]
        for outcome in report.outcomes:
            assert is_proved(outcome, run=RUN, round_=1, edge=boss.edge, task=TASK)
        boss.say(m.ReportReceipt(run=RUN, round=1))
        closed = await said(process, "round_closed")
        assert (closed["used"], closed["failed"]) == (2, "")

    on_a_shared_broker(tmp_path, kind, scene)


def test_garbage_on_every_topic_leaves_the_edge_at_work(tmp_path: Path) -> None:
    async def scene(process: RoleProcess, boss: Seat, one: Seat, two: Seat) -> None:
        await boss.hand_over(encode_tensors(model_tensors(64)))
        for number in range(300):
            garbage = os.urandom(number)
            for seat in (one, boss):
                topic = topics.agent_up(SITE, A0, boss.edge, "update")
                topic = topic if seat is one else topics.edge_down(SITE, boss.edge, "open")
                seat.peer.link.publish(topic, garbage)
                seat.peer.link.publish(topic, seat.voice.seal_bytes(topic, garbage))
        boss.say(order_of(A0))
        order = await one.hear(m.TrainOrder)
        body = encode_tensors(delta(A0))
        assert await one.upload(order, body) is m.ReceiptStatus.ACCEPTED
        boss.say(m.EdgeWelcome(run=RUN, coordinator=boss.voice.id, task=TASK, body=BODY))

        def counters() -> dict[str, int]:
            found = [x for _, x in boss.peer.messages if isinstance(x, m.EdgeStatus)]
            return found[-1].counters

        await boss.peer.until(lambda: counters().get("malformed", 0) > 500)
        assert counters()["refused_unsigned"] > 500
        assert "internal_errors" not in counters()

    on_a_shared_broker(tmp_path, "embedded", scene)


@pytest.mark.parametrize("kind", BROKERS)
async def test_it_runs_its_own_broker_and_leaves_no_orphan(tmp_path: Path, kind: str) -> None:
    with edge(tmp_path, broker=kind) as process:
        ready = await said(process, "ready")
        address = BrokerAddress.parse(str(ready["broker"]))
        assert ready["broker_kind"] == kind
        async with agent(address, A0, str(ready["id"])):
            assert (await said(process, "agent_joined"))["agent"] == A0
        assert await asyncio.to_thread(process.stop) == 0
        with pytest.raises(OSError, match=r"refused|Connect"):
            await asyncio.open_connection(address.host, address.port)


def test_it_ends_when_its_parent_does(tmp_path: Path) -> None:
    with edge(tmp_path, broker="embedded", watch_parent=True) as process:
        process.wait("ready")
        assert process.popen.stdin is not None
        process.popen.stdin.close()
        assert process.wait_exit() == 0


def test_exit_codes_of_what_cannot_start(tmp_path: Path) -> None:
    def code(name: str, **facts: object) -> int:
        with edge(tmp_path / name, **facts) as process:
            return process.wait_exit()

    assert code("x", borker="auto") == 2
    away: dict[str, object] = {"broker": "embedded", "listen": "203.0.113.1"}
    assert code("x", **away) == 2, "it wants certificates"
    assert code("x", **away, insecure=True) == 20
    with edge(tmp_path / "x", broker="embedded") as process:
        process.wait("ready")
        assert code("x", broker="embedded") == 75, "another process is on the directory"
    (tmp_path / "x" / "state.msgpack").write_bytes(b"\xc1")
    assert code("x", broker="embedded") == 21


def test_a_strangers_coordinator_is_tried_last_and_is_no_rival(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    daemon = EdgeDaemon(EdgeConfig(name="hall", data_dir=str(tmp_path)))
    adverts = [
        Advert("coordinator", name, "default", BrokerAddress(host, 1883, "mqtts"), 1)
        for name, host in (("aa", "10.0.0.9"), ("bb", "10.0.0.1"))
    ]
    daemon._on_adverts(frozenset([replace(adverts[0], refused=True), adverts[1]]))
    assert [place.host for place in daemon._seen] == ["10.0.0.1", "10.0.0.9"]
    assert not caplog.records
    daemon._on_adverts(frozenset(adverts))
    assert "more than one coordinator" in caplog.text
