"""The agent as a real process on a real broker, with an edge that the test plays."""

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from fedagent_protocol.messages import (
    Bye,
    ContextReport,
    Decline,
    DeclineReason,
    Hello,
    UpdateOffer,
)
from fedagent_testbed.local import RoleProcess
from tests.e2e.support import BROKERS
from tests.fakes.hand_edge import REAL, RUN, digest_of, model_of
from tests.fakes.played_edge import DIGITS, EDGE, PlayedEdge, on_a_broker, played, said, wait_for


@pytest.mark.parametrize("broker", BROKERS)
async def test_rounds_over_a_real_broker(tmp_path: Path, broker: str) -> None:
    async with played(tmp_path, broker=broker) as edge:
        device = edge.device()
        await edge.hear(ContextReport)
        ready = await said(device, "ready")
        assert ready["id"] == edge.agent
        assert (await said(device, "edge_joined"))["edge"] == EDGE
        for number in (1, 2, 3):
            model = model_of(1_500_000, number)
            edge.order(number, model)
            offer = await edge.hear(UpdateOffer, _of_round(number))
            assert offer.base == digest_of(model)
            body = await edge.update(offer)
            assert digest_of(body) == offer.digest
            assert len(body) == len(model)
            edge.receipt(offer)
            receipt = await said(device, "receipt", round=number)
            assert receipt["status"] == "accepted"
        device.popen.send_signal(signal.SIGTERM)
        await edge.hear(Bye)
        assert await asyncio.to_thread(device.wait_exit) == 0
        log = device.log.read_text()
        assert f"joined edge {EDGE[:8]} at {edge.address}" in log
        assert f"round 1 of digits (run {RUN[:8]}) at {EDGE[:8]}: training" in log
        assert " on 1 sample, in time" in log


@on_a_broker()
async def test_a_real_model_is_trained_in_the_child_process(edge: PlayedEdge) -> None:
    edge.task = REAL
    device = edge.device()
    await edge.hear(ContextReport)
    assert not psutil.Process(device.pid).children(), "started lazily"
    edge.order(1, DIGITS)
    offer = await edge.hear(UpdateOffer)
    assert offer.stats.num_samples >= 1
    assert offer.stats.iterations >= 1
    assert offer.stats.seconds_per_iteration > 0
    assert offer.stats.loss > 0
    assert offer.context is not None
    assert offer.context.features["cold"] == 0.0
    edge.receipt(offer)
    (trainer,) = psutil.Process(device.pid).children()
    since = len(edge.heard)
    trainer.kill()
    await asyncio.to_thread(wait_for, lambda: not trainer.is_running())
    await edge.hear(ContextReport, lambda c: c.features["cold"] == 1.0, since=since)
    edge.order(2, DIGITS)
    again = await edge.hear(UpdateOffer, lambda o: o.round == 2)
    assert again.digest != offer.digest
    edge.receipt(again)
    await said(device, "receipt", round=2)
    assert len(psutil.Process(device.pid).children()) == 1


@on_a_broker()
async def test_samples_that_are_not_learnt_from_are_told_with_their_reasons(
    edge: PlayedEdge,
) -> None:
    csv, row = edge.directory / "a.csv", ",".join(["1"] * 64)
    csv.write_text(f"{row},11\n" * 12)
    edge.task = REAL
    device = edge.device(stream=f"csv:{csv},dtype=uint8")
    await edge.hear(ContextReport)
    edge.order(1, DIGITS)
    decline = await edge.hear(Decline)
    assert decline.reason is DeclineReason.NO_DATA
    assert decline.detail == "all samples were refused (unfit 12)"
    assert (await said(device, "samples"))["counters"] == {"unfit": 12}
    with csv.open("a") as file:
        file.write(f"{row},11\n{row},3\n" * 4 + "nonsense\n")
    edge.order(2, DIGITS)
    await edge.hear(UpdateOffer)
    counters = {"unfit": 16, "bad_columns": 1}
    assert (await said(device, "samples", counters=counters))["counters"] == counters
    device.popen.send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(device.wait_exit) == 0
    log = device.log.read_text()
    assert log.count("12 samples were refused: unfit") == 1
    assert log.count("1 samples were refused: bad_columns") == 1
    assert "not trained on: bad_columns 1, unfit 16" in log


@on_a_broker()
async def test_a_broker_that_dies_is_waited_for_and_the_upload_goes_on(edge: PlayedEdge) -> None:
    edge.device()
    await edge.hear(ContextReport)
    edge.order(1, model_of(1_500_000))
    offer = await edge.hear(UpdateOffer)
    for child in psutil.Process().children(recursive=True):
        if "amqtt" in " ".join(child.cmdline()) or "embedded" in " ".join(child.cmdline()):
            child.kill()
    before = len(edge.heard)
    again = await edge.hear(UpdateOffer, since=before)
    assert again.digest == offer.digest
    assert digest_of(await edge.update(again)) == offer.digest


@on_a_broker(period_ms=200)
async def test_silence_ends_the_session_and_the_link_is_made_anew(edge: PlayedEdge) -> None:
    device = edge.device()
    await edge.hear(ContextReport)
    edge.beacons = False
    await said(device, "edge_lost", edge=EDGE)
    before = len(edge.heard)
    edge.beacons = True
    await edge.hear(Hello, since=before)
    await edge.hear(ContextReport, since=before)
    assert "reconnecting" in device.log.read_text()


# ----------------------------------------------------------------- evaluations


# ------------------------------------------------------------------------- ends


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGINT, "stdin"])
def test_a_signal_and_the_end_of_stdin_end_it_cleanly(tmp_path: Path, end: object) -> None:
    config: dict[str, object] = {
        "data_dir": str(tmp_path / "d"),
        "stream": "digits",
        "discovery": "loopback",
        "json_events": True,
        "watch_parent": True,
        "edges": ["127.0.0.1:9"],
    }
    process = RoleProcess(name="one", role="agent", config=config, log=tmp_path / "one.log")
    process.wait("ready")
    if isinstance(end, signal.Signals):
        process.popen.send_signal(end)
    else:
        assert process.popen.stdin is not None
        process.popen.stdin.close()
    assert process.wait_exit() == 0
    process.close()


def test_an_idle_agent_is_small_and_loads_no_heavy_library(tmp_path: Path) -> None:
    """From its very first start, which makes the identity."""
    script = """
import asyncio, json, os, sys
from fedagent_agent.config import AgentConfig
from fedagent_agent.daemon import AgentDaemon

async def main():
    daemon = AgentDaemon(AgentConfig.load(sys.argv[1]))
    run = asyncio.ensure_future(daemon.run())
    await asyncio.sleep(1.0)
    names = ("numpy", "cryptography", "rich", "typer", "torch", "safetensors")
    loaded = [name for name in names if name in sys.modules]
    pss = [line for line in open("/proc/self/smaps_rollup") if line.startswith("Pss:")]
    print(json.dumps({"loaded": loaded, "pss_kb": int(pss[0].split()[1])}))
    daemon._shell.stop.set()
    await run

asyncio.run(main())
"""
    config: dict[str, object] = {
        "data_dir": str(tmp_path / "d"),
        "stream": "digits",
        "discovery": "loopback",
    }
    ended = subprocess.run(
        [sys.executable, "-c", script, json.dumps(config)], capture_output=True, check=True
    )
    said = json.loads(ended.stdout)
    assert said["loaded"] == ["cryptography"], "what signs"
    assert said["pss_kb"] < 60_000


def _of_round(number: int) -> Callable[[UpdateOffer], bool]:
    return lambda offer: offer.round == number
