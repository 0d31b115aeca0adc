"""Nothing but documented messages leaves a device, and no sample in any of them.

A sniffer subscribes to everything, on a broker that allows it, for a whole run. The samples of
the digits are looked for as raw bytes, float32, float64, hex and base64; a client
that leaks one is the positive control.
"""

import base64
from pathlib import Path

import numpy as np
import pytest

from fedagent_cli.demo.prepare import prepare
from fedagent_cli.demo.run import run_demo
from fedagent_cli.demo.view import View
from fedagent_node.link import Arrival
from fedagent_protocol import topics
from fedagent_protocol.messages import Chunk, TrainOrder, kind
from fedagent_task.readers import load
from tests.fakes.voices import read

from .listener import Listener, shared_broker
from .support import new_field, start_small

ROW = 12
"""Bytes or numbers of a sample that make it recognisable."""


def _needles() -> list[bytes]:
    """Return recognisable stretches of samples in every encoding a leak would use."""
    rows = np.asarray(load("digits-train").x)[:200]
    scaled = rows if rows.max() > 1 else rows * 16
    needles = []
    for row in scaled:
        # The middle of a picture: borders are zero in every picture and in any message.
        part = row[20 : 20 + ROW]
        if len(np.unique(part)) < 6:
            continue
        for values in (part, part / 16):
            for dtype in ("<f4", ">f4", "<f8"):
                raw = values.astype(dtype).tobytes()
                needles += [raw, raw.hex().encode(), base64.b64encode(raw)]
        raw = part.astype("u1").tobytes()
        needles += [raw, base64.b64encode(raw), b",".join(str(int(v)).encode() for v in part)]
    assert len(needles) > 1000
    return needles


def _leaks(heard: list[Arrival], needles: list[bytes]) -> list[str]:
    everything = b"\x00|\x00".join(arrival.payload for arrival in heard)
    if not any(needle in everything for needle in needles):
        return []
    return [a.topic for a in heard if any(needle in a.payload for needle in needles)]


@pytest.mark.slow
def test_a_sniffer_finds_documented_messages_and_no_sample(tmp_path: Path) -> None:
    needles = _needles()
    with (
        shared_broker(tmp_path / "broker") as address,
        new_field(tmp_path) as field,
        Listener(address) as lower,
    ):
        sets = ("budget.per_edge=2",)
        coordinator = start_small(field, rounds=6, agents=4, broker=address, sets=sets)
        coordinator.wait("end", timeout_s=90)
        heard = list(lower.heard)
        kinds = set()
        for arrival in heard:
            topic = topics.parse(arrival.topic)
            message = read(topic.direction, arrival.payload)
            assert kind(message) == topic.kind
            kinds.add(topic.kind)
        assert {"update", "order", "report", "columns", "receipt"} <= kinds
        assert _leaks(heard, needles) == []

        # Positive control: one sample, hidden in an honest message.
        sample = np.asarray(load("digits-train").x)[0:200].astype("<f4")
        row = next(r for r in sample if len(np.unique(r[20 : 20 + ROW])) >= 6)
        before = len(lower.heard)
        lower.publish("leak", b"harmless" + row.tobytes())
        lower.wait_for(lambda: any(a.topic == "leak" for a in lower.heard[before:]))
        assert _leaks(lower.heard[before:], needles) == ["leak"]


@pytest.mark.slow
def test_a_whole_demo_leaks_no_sample(tmp_path: Path) -> None:
    """Every payload on the one broker that all of a demo uses."""
    needles = _needles()

    with shared_broker(tmp_path / "broker") as address, Listener(address) as sniffer:
        settings, plan = prepare(
            agents=None,
            edges=None,
            rounds=20,
            policy=None,
            seed=2,
            recipe="demo",
            folder=tmp_path / "demo",
        )
        finish = run_demo(settings, plan, View(), caught=lambda: 0, broker=address)
        heard = list(sniffer.heard)
    assert finish.state.round == 20
    for arrival in heard:
        topic = topics.parse(arrival.topic)
        assert kind(read(topic.direction, arrival.payload)) == topic.kind
    assert len(heard) > 20 * 6
    assert _leaks(heard, needles) == []


@pytest.mark.slow
def test_an_agent_that_is_not_selected_receives_no_model_byte(tmp_path: Path) -> None:
    with shared_broker(tmp_path / "broker") as lan, new_field(tmp_path) as field:
        start = ("budget.per_edge=0.6", "policy.name=cheapest")
        coordinator = start_small(
            field, rounds=4, edges=1, agents=1, broker=lan, sets=start, wait_agents=2
        )
        with Listener(lan) as sniffer:
            # The run begins with the second agent, so that all of it is heard.
            dear = field.agent("dear", "digits:rate=10", price={"base": 50.0, "per_compute": 0.0})
            me = str(dear.wait("ready")["id"])
            dear.wait("edge_joined")
            coordinator.wait("end", timeout_s=90)
            mine = [a for a in sniffer.heard if topics.parse(a.topic).agent == me]
            messages = [read(topics.parse(a.topic).direction, a.payload) for a in mine]
        assert mine, "it was there, and reported its context"
        assert not any(isinstance(m, TrainOrder | Chunk) for m in messages)
        assert not dear.all("ordered")
