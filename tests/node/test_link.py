"""What a link promises, on both kinds of broker."""

import asyncio
import contextlib
import itertools
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from fedagent_node import link as link_module
from fedagent_node.address import BrokerAddress
from fedagent_node.broker.process import Broker
from fedagent_node.link import Arrival, Link
from tests.fakes.links import PATIENCE_S, Peer, broker, eventually, peer


@contextlib.asynccontextmanager
async def pair(kind: str, folder: Path) -> AsyncIterator[tuple[Broker, Peer, Peer]]:
    async with (
        broker(kind, folder) as b,
        peer(b.address, "one") as one,
        peer(b.address, "two") as two,
    ):
        yield b, one, two


@contextlib.asynccontextmanager
async def dialled(address: BrokerAddress) -> AsyncIterator[Link]:
    """A link that may get nowhere."""
    link = Peer(address, "one").link
    await link.start()
    try:
        yield link
    finally:
        await link.stop()


async def test_subscriptions_come_back_after_the_broker_was_killed(
    kind: str, tmp_path: Path
) -> None:
    async with pair(kind, tmp_path) as (b, one, two):
        await two.link.subscribe("t")
        before = b.address
        os.kill(b.pids[-1], signal.SIGKILL)
        await asyncio.gather(
            one.until(lambda: False in one.states), two.until(lambda: False in two.states)
        )
        waiting = two.link.subscribe("late")
        assert not waiting.done()
        await asyncio.gather(one.up(), two.up())
        assert b.address == before
        await waiting
        for topic in ("t", "late"):
            assert one.link.publish(topic, topic.encode())
        await two.until(lambda: len(two.heard) >= 2)
        assert [a.payload for a in two.heard] == [b"t", b"late"]
        assert two.states == [True, False, True]
        assert two.link.counters["losses"] == 1
        assert b.counters["restarts"] == 1


async def test_nothing_stale_is_sent_after_a_reconnect(tmp_path: Path) -> None:
    async with pair("embedded", tmp_path) as (b, one, two):
        await two.link.subscribe("t")
        os.kill(b.pids[-1], signal.SIGKILL)
        # Accepted until the loss is noticed, refused and counted from then on.
        while one.link.publish("t", b"stale"):  # noqa: ASYNC110 - the refusal is the event
            await asyncio.sleep(0)
        await asyncio.gather(
            two.until(lambda: False in two.states), one.until(lambda: False in one.states)
        )
        await asyncio.gather(one.up(), two.up())
        assert one.link.counters["refused_offline"] == 1
        assert one.link.pending_bytes == 0
        # `up` says that the SUBSCRIBE is on its way, not that it has arrived.
        await two.link.subscribe("t")
        assert one.link.publish("t", b"fresh")
        await two.until(lambda: bool(two.heard))
        assert [a.payload for a in two.heard] == [b"fresh"]


async def test_a_raising_callback_is_counted_and_the_link_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def heard(self: Peer, batch: list[Arrival]) -> None:
        self.heard += batch
        raise ValueError("a defect in the application")

    monkeypatch.setattr(Peer, "_arrived", heard)
    async with pair("embedded", tmp_path) as (_, one, two):
        await two.link.subscribe("t")
        for number, payload in enumerate((b"first", b"second", b"last"), 1):
            assert one.link.publish("t", payload)
            await eventually(lambda wanted=number: len(two.heard) == wanted)  # type: ignore[misc]  # bound default
        assert two.link.connected
        assert two.link.counters["callback_errors"] == 3
    assert sum("could not be handled" in r.message for r in caplog.records) == 1


async def test_a_broker_that_takes_no_such_packet_is_told_from_a_lost_network(
    kind: str, tmp_path: Path
) -> None:
    """As a shared one does; what it took is beyond doubt, and so is it while it restarts."""
    failed = list[Exception]()
    async with (
        broker(kind, tmp_path, max_packet_bytes=65_536) as b,
        peer(b.address, "big", fail=failed.append) as big,
        peer(b.address, "other") as other,
    ):
        for turn in range(4):
            assert not failed
            assert big.link.publish("t", bytes(30_000))
            await eventually(lambda: big.link.pending_bytes == 0)
            assert big.link.publish("t", bytes(30_000 if turn == 1 else 70_000))
            if turn == 1:
                os.kill(b.pids[-1], signal.SIGKILL)
            await big.until(lambda wanted=turn + 1: big.states.count(False) == wanted)  # type: ignore[misc]  # bound default
            await big.up()
        assert "closes the connection on packets of 70000 bytes" in str(failed[0])
        await other.link.subscribe("t")
        assert other.link.publish("t", b"fine")
        await other.until(lambda: bool(other.heard))
        assert [a.payload for a in other.heard] == [b"fine"]
        assert other.states == [True, False, True], "of the broker's restart"


CONNACK, PUBLISH, NO_PACKET = b"\x20\x02\x00\x00", b"\x30\x04\x00\x01tx", b"\x00\x00"


@contextlib.asynccontextmanager
async def answered(answer: bytes, seen: list[object]) -> AsyncIterator[None]:
    """A link to what answers a connection with these bytes, and what comes of it in order."""

    async def say(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1000)
        writer.write(answer)
        await reader.read()
        writer.close()

    async with await asyncio.start_server(say, "127.0.0.1", 0) as server:
        link = Link(
            BrokerAddress("127.0.0.1", server.sockets[0].getsockname()[1]),
            client_id="one",
            on_arrivals=lambda batch: seen.extend(a.payload for a in batch),
            on_state=seen.append,
        )
        await link.start()
        try:
            yield
        finally:
            await link.stop()


async def test_a_flood_leaves_others_their_turn() -> None:
    many, seen, turns = 4 * link_module.BATCH, list[object](), [0]
    async with asyncio.timeout(PATIENCE_S), answered(CONNACK + many * PUBLISH, seen):
        while len(seen) < many:
            await asyncio.sleep(0)
            turns.append(len(seen))
    steps = [after - before for before, after in itertools.pairwise(turns)]
    assert max(steps) <= link_module.BATCH + 1


async def test_what_came_before_a_connection_broke_is_heard_before_its_end() -> None:
    seen: list[object] = []
    async with answered(CONNACK + PUBLISH + NO_PACKET, seen):
        await eventually(lambda: False in seen)
    assert seen[:3] == [True, b"x", False]


async def test_outbox_is_bounded_in_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_module, "OUTBOX_BYTES", 1_000_000)
    async with (
        broker("embedded", tmp_path) as b,
        peer(b.address, "one") as one,
    ):
        sent = [one.link.publish("t", bytes(400_000)) for _ in range(3)]
        assert sent == [True, True, False]
        assert one.link.counters["refused_full"] == 1
        assert not one.link.publish("t", bytes(1 << 20)), "the broker would close the connection"
        assert one.link.counters["refused_oversize"] == 1
        await eventually(lambda: one.link.pending_bytes == 0)
        assert one.link.publish("t", bytes(400_000))


async def test_stop_flushes_what_was_published(tmp_path: Path) -> None:
    chunk = os.urandom(256 * 1024)
    async with broker("embedded", tmp_path) as b, peer(b.address, "two", "t") as two:
        async with peer(b.address, "one") as one:
            for _ in range(20):
                assert one.link.publish("t", chunk)
        await two.until(lambda: len(two.heard) == 20)
        assert all(a.payload == chunk for a in two.heard)
        assert one.link.counters["lost_unacknowledged"] == 0
    assert not [t for t in asyncio.all_tasks() if t.get_name().startswith("mqtt-")]


async def test_no_broker_gives_one_line_and_a_reason(caplog: pytest.LogCaptureFixture) -> None:
    with socket.socket() as free, caplog.at_level(logging.WARNING):
        free.bind(("127.0.0.1", 0))
        async with dialled(BrokerAddress("127.0.0.1", free.getsockname()[1])) as link:
            await eventually(lambda: link.counters["failed_connects"] >= 3)
            assert link.last_error == "Connection refused"
            assert not link.connected
            assert not link.publish("t", b"x")
            waiting = link.subscribe("t")
            await link.stop()
            assert waiting.cancelled()
    assert len([r for r in caplog.records if "Connection refused" in r.message]) == 1


async def test_what_is_no_broker_is_said_to_be_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_module, "ANSWER_S", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        async with dialled(BrokerAddress("127.0.0.1", mute.getsockname()[1])) as link:
            await eventually(lambda: link.last_error == link_module.NO_BROKER)


def test_a_hanging_lookup_of_a_name_does_not_delay_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, end = threading.Event(), threading.Event()

    def hang(*_: object) -> list[object]:
        asked.set()
        end.wait(60)
        return []

    monkeypatch.setattr(socket, "getaddrinfo", hang)

    async def go() -> None:
        async with dialled(BrokerAddress("localhost", 1883)):
            await eventually(asked.is_set)

    began = time.monotonic()
    asyncio.run(go())
    end.set()
    assert time.monotonic() - began < 10
