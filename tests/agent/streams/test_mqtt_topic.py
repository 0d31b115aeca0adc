"""A sensor's topic on a real broker."""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from fedagent_agent.streams.kinds import Mqtt
from fedagent_agent.streams.mqtt_topic import MAX_MESSAGE_BYTES, MqttStream
from fedagent_agent.streams.spec import StreamError
from fedagent_node.address import BrokerAddress
from fedagent_node.broker.process import Broker, BrokerSpec
from fedagent_node.errors import LinkError
from fedagent_node.link import Arrival, Link
from fedagent_task.readers.table import FIRST_LINES, SampleError
from fedagent_task.recipe.spec import DataSpec, FeatureSpec

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


def _stream(spec: Mqtt, *labels: str, features: tuple[str, ...] = ()) -> MqttStream:
    named = tuple(FeatureSpec(name=name) for name in features)
    data = DataSpec(labels=labels, features=named)
    return MqttStream(spec, seed=0, offset=0, mark="", data=data)


@pytest.mark.parametrize(
    ("features", "label", "message", "row"),
    [
        ("DS18B20.Temperature", "none", '{"DS18B20": {"Temperature": 20.6}}', [20.6]),
        ("a.b", "none", '{"a.b": 1, "a": {"b": 2}}', [1]),
        ("value", "none", "21.5", [21.5]),
        ("value", "none", "OFF", [0]),
        ("value", "none", '\ufeff"21.5"', [21.5]),
        ("t,state", "none", '\ufeff{"t": "20", "state": "ON"}', [20, 1]),
        ("t,door", "state.on", '{"t": 1, "door": false, "state": {"on": true}}', [1, 0, 1]),
        ("t", "kind", '{"t": 1, "kind": "off"}', [1, 0]),
        ("", "none", '{"state": {"temp": 3}, "hum": 4}', [3, 4]),
        ("value", "none", "unavailable", "bad_json"),
        ("value", "none", "NaN", "bad_not_finite"),
        ("t:-40..60,h:0..", "k:..1", '{"t": -40, "h": 5, "k": 1}', [-40, 5, 1]),
        ("t:-40..60", "none", '{"t": 61}', "bad_range"),
        ("t", "k:0..1", '{"t": 1, "k": 2}', "bad_range"),
        ("t", "none", '{"t": 1' + "0" * 320 + "}", "bad_number"),
        ("value", "none", '{"value": "21.3 C"}', "bad_number"),
        ("t", "none", '{"t": {"u": 1}}', "bad_number"),
        ("t.u", "none", '{"t": 1}', "bad_missing"),
        ("t", "kind", "21.5", "bad_missing"),
    ],
)
def test_what_usual_firmware_publishes_is_read(
    features: str, label: str, message: str, row: list[float] | str
) -> None:
    fields = tuple(filter(None, features.split(",")))
    spec = Mqtt(broker=BrokerAddress("h", 1), topic="t", features=fields, label=label)
    stream = _stream(spec, features=("state.temp", "hum"))
    try:
        numbers, found = stream._sample(message.encode())
    except SampleError as error:
        assert error.why == row
    else:
        assert [*numbers, *([] if label == "none" else [found])] == row


async def test_what_comes_to_nothing_is_said() -> None:
    spec = Mqtt(broker=BrokerAddress("h", 1), topic="t", features=("t.a",), label="none")
    stream = _stream(spec)
    stream._arrived([Arrival("t", b'{"t": {"a": 1}}', 0.0, retained=True)])  # of some other day
    stream._arrived([Arrival("t", b'{"t": {}}', 0.0)] * (FIRST_LINES - 1))
    assert not len(stream.take(0.0))
    stream._arrived([Arrival("t", b"{}", 0.0)])
    with pytest.raises(StreamError, match=r"no message so far is a sample: field 't.a' is missing"):
        stream.take(0.0)
    stream._arrived([Arrival("t", b'{"t": {"a": 1}}', 0.0)])
    assert len(stream.take(0.0)) == 1
    refused: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    refused.set_exception(LinkError("the broker refused the subscription to t"))
    stream._subscribed(refused)
    with pytest.raises(StreamError, match="refused the subscription to t; let the stream's user"):
        stream.take(0.0)


async def _until(stream: MqttStream, link: Link, payload: bytes, reason: str) -> None:
    """Publish until the stream counted it: nothing tells us that it has subscribed."""
    until = time.monotonic() + 600
    while not stream.counters.get(reason):
        assert time.monotonic() < until
        link.publish("home/t", payload)
        await asyncio.sleep(0.02)


async def test_messages_become_samples_and_bad_ones_are_counted(tmp_path: Path) -> None:
    async with _sensor(tmp_path) as (link, spec):
        stream = _stream(spec, "ok", "alarm")
        schema = await asyncio.to_thread(stream.open, 0.0)
        assert (schema.features, schema.names) == (2, ("t", "h"))
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


def test_a_broker_that_is_not_there_is_no_error(tmp_path: Path) -> None:
    broker = BrokerAddress("127.0.0.1", 9)
    spec = Mqtt(broker=broker, topic="t", features=("a",), label="y")
    stream = _stream(spec)
    stream.open(0.0)
    assert len(stream.take(1.0)) == 0
    stream.close()
