"""A client that is none of ours: it hears what a broker lets it hear, and writes as anybody."""

import threading
from collections.abc import Iterable
from typing import Any, Self

import numpy as np
import paho.mqtt.client as paho
from msgspec import structs
from paho.mqtt.enums import CallbackAPIVersion

from fedagent_node.envelope import BARE
from fedagent_protocol import messages as m
from fedagent_protocol import topics
from fedagent_protocol.codec import encode
from fedagent_protocol.errors import ProtocolError
from fedagent_protocol.tensors import digest_of, encode_tensors
from fedagent_task.models import create
from fedagent_task.recipe.spec import ModelSpec

from .voices import Voice, read

LAST = 2**53 - 1
HEADER = 107
"""Bytes of an envelope before the body."""
EVIL = "evil"


class Attacker:
    """Hears everything, and answers with what an attack makes of it, if there is one."""

    def __init__(self, address: str, attack: "Attack | None" = None) -> None:
        self.heard: list[tuple[str, bytes]] = []
        self.sent = 0
        self._attack = attack
        host, _, port = address.rpartition("//")[2].partition(":")
        self._client = paho.Client(CallbackAPIVersion.VERSION2, client_id="evil")
        self._client.on_message = self._message
        self._client.on_connect = self._connected
        self._client.on_subscribe = self._subscribed
        self._up = threading.Event()
        self._client.connect(host, int(port))

    def __enter__(self) -> Self:
        self._client.loop_start()
        assert self._up.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._client.loop_stop()
        self._client.disconnect()

    def publish(self, said: Iterable[tuple[str, bytes]]) -> None:
        for topic, payload in said:
            self._client.publish(topic, payload, 1)
            self.sent += 1

    def _connected(self, *_: Any) -> None:
        self._client.subscribe("#", 1)

    def _subscribed(self, *_: Any) -> None:
        self._up.set()

    def _message(self, _client: object, _data: object, message: paho.MQTTMessage) -> None:
        topic, payload = message.topic, bytes(message.payload)
        self.heard.append((topic, payload))
        if self._attack is not None and (topic, payload) not in self._attack.own:
            self.publish(self._attack.answer(topic, payload))


class Attack:
    """What is written in the names of others.

    Every way of it: bare, another key, another body, and bare where neighbours' words come bare.
    """

    def __init__(self, model: ModelSpec) -> None:
        self.own: set[tuple[str, bytes]] = set()
        self.voice = Voice(EVIL)
        self._model = model
        self._last: dict[str, bytes] = {}
        self._kept: list[tuple[str, bytes]] = []

    def answer(self, topic: str, payload: bytes) -> list[tuple[str, bytes]]:
        try:
            where = topics.parse(topic)
            message = read(where.direction, payload)
        except ProtocolError:  # of its own making
            return []
        said: list[tuple[str, bytes]] = []
        for prefix, other in self.say(where, message):
            said += self.every_way(f"{prefix}/{m.kind(other)}", other)
        self._last[topic] = payload
        if where.kind in {"update", "report", "context", "order", "round-order"}:
            said += [(topic, payload)] * 2  # at once, and again in later rounds
            said += self._kept[-6:]
            self._kept.append((topic, payload))
        self.own.update(said)
        return said

    def every_way(self, topic: str, message: m.AnyMessage) -> list[tuple[str, bytes]]:
        ways = [encode(message), self.voice.seal(topic, message)]
        if (last := self._last.get(topic)) is not None and len(last) > HEADER:
            ways.append(last[:HEADER] + encode(message))
        said = [(topic, way) for way in ways]
        path = topic.rpartition("/")[0]
        return [*said, *((f"{path}/{one}", encode(message)) for one in sorted(BARE))]

    def say(self, where: topics.Topic, message: m.AnyMessage) -> Iterable[tuple[str, m.AnyMessage]]:
        """Yield what is forged: a topic without its kind, and a message."""
        root = f"{topics.ROOT}/{where.site}"
        match message:
            case m.TrainOrder():
                up = f"{root}/a/{where.agent}/up/{where.edge}"
                for offer in self.offers(message):
                    yield up, offer
                facts: dict[str, Any] = {"run": message.run, "round": message.round}
                yield up, m.Decline(**facts, reason=m.DeclineReason.ERROR)
                yield up, m.Bye()
                far = m.ContextReport(seq=2**62, available=False, price=10**9)
                yield up, far
                down = f"{root}/a/{where.agent}/down/{where.edge}"
                yield down, structs.replace(message, round=LAST)
                yield down, m.RoundClosed(**facts)
            case m.RoundOrder():
                up = f"{root}/e/{where.edge}/up"
                yield up, self.report(message)
                down = f"{root}/e/{where.edge}/down"
                yield down, structs.replace(message, round=LAST)
                yield down, m.RunEnded(run=message.run, reason="forged")
                task, body = message.task, b""
                other = m.EdgeWelcome(run="9" * 32, coordinator=EVIL, task=task, body=body)
                yield down, other
            case m.UpdateOffer():
                # The first chunk of another's update, and then nothing that hashes to it.
                named: dict[str, Any] = {"run": message.run, "round": message.round}
                data = bytes(len(message.first) or 1024)
                up = f"{root}/a/{where.agent}/up/{where.edge}"
                yield up, m.Chunk(**named, digest=message.digest, index=0, data=data)

    def offers(self, order: m.TrainOrder) -> Iterable[m.UpdateOffer]:
        zero = {name: np.zeros_like(each) for name, each in create(self._model).init(0).items()}
        for value in (1.0, np.nan):
            body = encode_tensors({name: each + np.float32(value) for name, each in zero.items()})
            yield m.UpdateOffer(
                run=order.run,
                round=order.round,
                digest=digest_of(body),
                size=len(body),
                chunk_bytes=262_144,
                base=order.model,
                task=order.task,
                first=body,
                stats=m.TrainStats(num_samples=1000, iterations=1),
            )

    def report(self, order: m.RoundOrder) -> m.RoundReport:
        outcomes = tuple(
            m.Outcome(
                agent=one.agent,
                status=m.OutcomeStatus.ARRIVED,
                in_time=True,
                used=True,
                valid=True,
                weight=1e9,
                stats=m.TrainStats(num_samples=1000),
            )
            for one in order.assignments
        )
        used = len(outcomes)
        facts: dict[str, Any] = {"epoch": "", "model": "7" * 64, "size": 900, "weight": 1e9}
        return m.RoundReport(
            run=order.run, round=order.round, outcomes=outcomes, used=used, **facts
        )
