"""Opinions of the agent as a real process, over a real broker."""

import asyncio
import json
from pathlib import Path

import pytest
from msgspec import structs

from fedagent_protocol.messages import ContextReport, Opinion, UpdateOffer
from fedagent_protocol.tensors import encode_tensors
from fedagent_task.models import create
from fedagent_task.spec import OpinionsSpec
from tests.fakes.hand_edge import REAL, RUN, call_of, digest_of
from tests.fakes.played_edge import DIGITS, PlayedEdge, on_a_broker, played, said

NEWER = encode_tensors(create(REAL.model).init(2))


def call(edge: PlayedEdge, number: int, model: bytes) -> None:
    edge.model = model
    edge.say(call_of(edge.task, number, model, edge.chunk_bytes, until_ms=60_000))


async def opinion(edge: PlayedEdge, number: int, since: int = 0) -> Opinion:
    return await edge.hear(Opinion, lambda o: o.round == number, since=since)


@on_a_broker()
async def test_a_device_evaluates_trains_and_evaluates_on_fresh_samples(edge: PlayedEdge) -> None:
    edge.task = structs.replace(REAL, opinions=OpinionsSpec(window=100))
    device = edge.device(stream="digits:start=300,rate=500")
    await edge.hear(ContextReport)
    call(edge, 0, DIGITS)
    first = await opinion(edge, 0)
    assert (first.samples, first.metric, first.model) == (
        100,
        "accuracy",
        digest_of(DIGITS),
    )
    edge.order(1, DIGITS)
    offer = await edge.hear(UpdateOffer)
    assert offer.stats.num_samples >= 300
    call(edge, 1, NEWER)
    second = await opinion(edge, 1)
    assert second.samples > 0
    since = len(edge.heard)
    call(edge, 1, NEWER)
    assert await opinion(edge, 1, since) == second
    assert "score" not in await said(device, "opinion", round=1)


async def test_noise_is_kept_over_a_restart(tmp_path: Path) -> None:
    pytest.importorskip("opendp", reason="opendp is not installed")
    async with played(tmp_path) as edge:
        edge.task = structs.replace(REAL, opinions=OpinionsSpec(epsilon=0.5))
        limits = {"max_epsilon": 0.5, "total_epsilon": 0.5}
        device = edge.device(stream="digits:start=300", privacy=limits)
        await edge.hear(ContextReport)
        call(edge, 1, DIGITS)
        told = await opinion(edge, 1)
        assert told.epsilon == pytest.approx(0.5)
        kept = json.loads((tmp_path / "device" / "opinions.json").read_bytes())
        assert kept["runs"][RUN]["spent"] == kept["ever"] == told.epsilon
        device.popen.kill()
        await asyncio.to_thread(device.wait_exit)
        since = len(edge.heard)
        edge.device(stream="digits:start=300", privacy=limits)
        await edge.hear(ContextReport, since=since)
        call(edge, 1, DIGITS)
        assert await opinion(edge, 1, since) == told
        call(edge, 2, NEWER)
        assert "used up" in (await opinion(edge, 2, since)).reason
