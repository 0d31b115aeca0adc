"""A sensor's topic on a real broker."""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path

from msgspec import structs

from fedagent_agent.streams.kinds import Mqtt
from fedagent_agent.streams.mqtt_topic import MAX_MESSAGE_BYTES, MqttStream
from fedagent_node.address import BrokerAddress
from fedagent_node.broker.process import Broker, BrokerSpec
from fedagent_node.link import Link

from .support import dense


@contextlib.asynccontextmanager
async def _sensor(data_dir: Path) -> AsyncIterator[tuple[Link, Mqtt]]:
    """Yield a connected link of a sensor, and the stream that hears it."""
    broker = Broker(BrokerSpec(data_dir=data_dir))
    address = await broker.start()
    up = asyncio.Event()
    link = Link(
        address,
        client_id="sensor",
        on_arrivals=lambda _: None,
        on_state=lambda connected: up.set() if connected else None,
    )
    await link.start()
    try:
        await asyncio.wait_for(up.wait(), 10)
        yield (
            link,
            Mqtt(broker=address, topic="home/t", features=("t", "h"), label="kind", buffer=5),
        )
    finally:
        await link.stop()
        await broker.stop()


async def _until(stream: MqttStream, link: Link, payload: bytes, reason: str) -> None:
    """Publish until the stream counted it: nothing tells us that it has subscribed."""
    until = time.monotonic() + 600
    while not stream.counters.get(reason):
        assert time.monotonic() < until
        link.publish("home/t", payload)
        await asyncio.sleep(0.02)


async def test_messages_become_samples_and_bad_ones_are_counted(tmp_path: Path) -> None:
    async with _sensor(tmp_path) as (link, spec):
        stream = MqttStream(spec, labels=("ok", "alarm"))
        schema = await asyncio.to_thread(stream.open, 0.0)
        assert (schema.features, schema.dtype) == (2, "float64")
        await _until(stream, link, b"no json", "bad_json")
        for fields in (
            {"t": 1, "h": 2.5, "kind": "alarm", "more": [1]},
            {"t": 1, "kind": 0},
            {"t": [1], "h": 1, "kind": 0},
            {"t": 1, "h": 1, "kind": "secret"},
        ):
            link.publish("home/t", json.dumps(fields).encode())
        await _until(stream, link, b" " * (MAX_MESSAGE_BYTES + 1), "bad_too_long")
        samples = stream.take(0.0)
        assert (dense(samples).tolist(), samples.y.tolist()) == ([[1.0, 2.5]], [1.0])
        counters = stream.counters
        assert [counters[f"bad_{reason}"] for reason in ("missing", "number", "label")] == [
            1,
            1,
            1,
        ]
        await asyncio.to_thread(stream.close)


async def test_a_declared_schema_is_kept_and_what_breaks_it_is_counted(tmp_path: Path) -> None:
    async with _sensor(tmp_path) as (link, spec):
        features = ("t:float32:-40..60", "h:float32:0..")
        strict = structs.replace(spec, features=features, label="kind:uint8:0..1")
        stream = MqttStream(strict)
        assert (await asyncio.to_thread(stream.open, 0.0)).dtype == "float32"
        await _until(stream, link, b"{}", "bad_missing")
        for message in (
            {"t": 61, "h": 5, "kind": 1},  # too hot to be true
            {"t": 20, "h": -1, "kind": 1},
            {"t": "20", "h": 5, "kind": 1},  # a number in quotes is text
            {"t": True, "h": 5, "kind": 1},
            {"t": 1e39, "h": 5, "kind": 1},  # no float32
            {"t": 10**320, "h": 5, "kind": 1},  # no float at all
            {"t": 20, "h": 5, "kind": 0.5},
            {"t": 20, "h": 5, "kind": 2},
            {"t": -40, "h": 5, "kind": 1},
        ):
            link.publish("home/t", json.dumps(message).encode())
        await _until(stream, link, b"no json", "bad_json")
        samples = stream.take(0.0)
        assert (dense(samples).tolist(), samples.y.tolist()) == ([[-40, 5]], [1])
        counted = [stream.counters[f"bad_{why}"] for why in ("range", "dtype", "number")]
        assert counted == [3, 4, 1]
        await asyncio.to_thread(stream.close)


def test_a_broker_that_is_not_there_is_no_error(tmp_path: Path) -> None:
    broker = BrokerAddress("127.0.0.1", 9)
    spec = Mqtt(broker=broker, topic="t", features=("a",), label="y")
    stream = MqttStream(spec)
    stream.open(0.0)
    assert len(stream.take(1.0)) == 0
    stream.close()
