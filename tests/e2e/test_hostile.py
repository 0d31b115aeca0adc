"""A client that sends garbage on the real wire hurts nobody but itself."""

import os
from pathlib import Path

import msgspec
import numpy as np
import pytest

from fedagent_node.link import Arrival
from fedagent_protocol import messages as m
from fedagent_protocol import topics
from fedagent_protocol.codec import Direction
from fedagent_protocol.tensors import digest_of, encode_tensors
from fedagent_task.models import create
from fedagent_task.recipe.text import parse_recipe
from tests.fakes.voices import read, voice

from .listener import Listener
from .support import DEMO, check_books, new_field, start_small

POISONS = {
    "nan": "non_finite",
    "norm": "norm",
    "manifest": "manifest_mismatch",
    "garbage": "oversize",
    "digest": "digest_mismatch",
    "oversize": "oversize",
    "samples": "sample_count",
    "bytes": None,
}
"""What each is rejected for; bytes that are no message are answered by nobody."""
MODEL = parse_recipe(DEMO.read_text()).model


class Hostile:
    """Joins like an agent and answers every order with one kind of poison."""

    def __init__(self, site: str, edge: str, poison: str) -> None:
        self.site, self.edge, self.poison = site, edge, poison
        self.voice = voice(poison)
        self.me = self.voice.id
        self.receipts: list[m.Receipt] = []
        self.orders = 0

    def hello(self, listener: Listener) -> None:
        """Open a session and offer to train for nothing."""
        self._send(listener, m.Hello(agent=self.me))
        self._send(
            listener,
            m.ContextReport(
                seq=1, available=True, price=1, features={"compute": 4.0, "rtt_s": 0.001}
            ),
        )

    def on_arrival(self, listener: Listener, arrival: Arrival) -> None:
        """Answer orders, note receipts."""
        topic = topics.parse(arrival.topic)
        if topic.kind == "edge-beacon":
            self.hello(listener)  # it may not have listened yet when we came
        if topic.agent != self.me or "/down/" not in arrival.topic:
            return
        message = read(Direction.EDGE_TO_AGENT, arrival.payload)
        if isinstance(message, m.Receipt):
            self.receipts.append(message)
        if isinstance(message, m.TrainOrder):
            self.orders += 1
            self._answer(listener, message)

    def _answer(self, listener: Listener, order: m.TrainOrder) -> None:
        tensors = {name: np.zeros_like(each) for name, each in create(MODEL).init(0).items()}
        first = next(iter(tensors.values()))
        if self.poison == "nan":
            first.flat[3] = np.nan
        if self.poison == "norm":
            first[:] = 1e6
        body = encode_tensors({"x": first} if self.poison == "manifest" else tensors)
        if self.poison == "garbage":
            body = os.urandom(2000)
        offer = m.UpdateOffer(
            run=order.run,
            round=order.round,
            digest="0" * 64 if self.poison == "digest" else digest_of(body),
            size=2**40 if self.poison == "oversize" else len(body),
            chunk_bytes=262_144,
            base=order.model,
            task=order.task,
            first=body,
            stats=m.TrainStats(num_samples=2**50 if self.poison == "samples" else 10),
        )
        if self.poison == "bytes":
            kind = m.kind(offer)
            topic = topics.agent_up(self.site, self.me, self.edge, kind)
            for _ in range(50):
                listener.publish(topic, os.urandom(300))
            negative = msgspec.msgpack.encode({"t": "update", "size": -1})
            for garbage in (os.urandom(300), negative, b"\xdd\xff\xff\xff\xff"):
                listener.publish(topic, self.voice.seal_bytes(topic, garbage))
            # Nobody answers that; with this the round need not wait for its deadline.
            self._send(
                listener,
                m.Decline(
                    run=order.run, round=order.round, reason=m.DeclineReason.ERROR, detail="no"
                ),
            )
            return
        self._send(listener, self.voice.claim(offer, self.edge))

    def _send(self, listener: Listener, message: m.AgentToEdge) -> None:
        topic = topics.agent_up(self.site, self.me, self.edge, m.kind(message))
        listener.publish(topic, self.voice.seal(topic, message))


@pytest.mark.slow
def test_poison_is_rejected_with_a_reason_and_the_round_goes_on(tmp_path: Path) -> None:
    with new_field(tmp_path) as field:
        coordinator = start_small(
            field,
            rounds=4,
            agents=2,
            wait_agents=2 + len(POISONS),
            sets=("policy.name=cheapest", "budget.per_edge=10"),
        )
        edge = field.processes["edge-0"].wait("ready")
        everyone = [Hostile(field.site, str(edge["id"]), poison) for poison in POISONS]

        def hear(listener: Listener, arrival: Arrival) -> None:
            for hostile in everyone:
                hostile.on_arrival(listener, arrival)

        down = (each for one in everyone for each in topics.agent_filters(one.site, one.me))
        filters = dict.fromkeys((*down, topics.model(field.site, "+", "+")))
        with Listener(str(edge["broker"]), *filters, on_arrival=hear) as listener:
            for hostile in everyone:
                hostile.hello(listener)
            end = coordinator.wait("end", timeout_s=90)
        assert end["rounds_done"] == 4
        assert [round_["used"] for round_ in coordinator.all("round")] == [2] * 4
        assert float(str(end["accuracy"])) > 0.2
        for hostile in everyone:
            assert hostile.orders > 0, hostile.poison
            told = {(receipt.status, receipt.reason) for receipt in hostile.receipts}
            # On a busy machine the poison of one of the four rounds may come after its end.
            told.discard((m.ReceiptStatus.EXPIRED, "the round is over"))
            reason = POISONS[hostile.poison]
            assert told == ({(m.ReceiptStatus.REJECTED, reason)} if reason else set()), (
                hostile.poison
            )
    check_books(coordinator)
