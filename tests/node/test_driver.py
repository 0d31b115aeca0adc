"""The driver: nothing foreign and no single input disturbs it."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from fedagent_edge.core.exchange import MAX_MODEL_BYTES
from fedagent_node.driver import MESSAGES_AT_ONCE, Driver
from fedagent_node.effects import Effect, Input, Send
from fedagent_protocol import messages as m
from fedagent_protocol import topics
from fedagent_protocol.codec import MAX_PAYLOAD_BYTES, Direction, encode
from fedagent_protocol.transfer import PIECE_BYTES

UP = Direction.AGENT_TO_EDGE
TOPIC = topics.agent_up("s", "a", "me", "bye")


class Done(Input, frozen=True):
    name: str


@dataclass
class Scene:
    """A core and everything around it; `log` is what happened."""

    effects: list[Effect] = field(default_factory=list)
    log: list[str] = field(default_factory=list)
    counters: Counter[str] = field(default_factory=Counter)

    def driver(self, **more: Any) -> Driver:
        around = cast("Any", self)
        return Driver(
            around, around, links=around, jobs=around, clock=lambda: 1.0, me="me",
            emit=lambda e: self.log.append(f"emit {e.name}"),
            warn=lambda w: self.log.append(f"warn {w.peer} {w.text}"), **more,
        )  # fmt: skip

    def receive(self, event: Input, now: float) -> list[Effect]:
        name = event.name if isinstance(event, Done) else type(event).__name__
        self.log.append(f"got {name}")
        if name == "broken":
            raise LookupError(name)
        return []

    def tick(self, now: float) -> list[Effect]:
        return self.effects

    def flush(self) -> Iterable[Input]:
        return ()

    def send(self, send: Send) -> bool:
        encode(send.message)
        self.log.append(f"send {send.to} {m.kind(send.message)}")
        return False


@pytest.mark.parametrize(
    ("topic", "payload", "reason"),
    [
        ("elsewhere", b"", "topic"),
        (topics.agent_down("s", "a", "me", "bye"), b"", "topic"),
        (topics.agent_up("s", "a", "another", "bye"), encode(m.Bye()), "topic"),
        (TOPIC, b"\xc1", "malformed"),
        # What neighbours seal comes without an envelope, and nothing else does.
        (topics.agent_up("s", "a", "me", "peer-send"), encode(m.Bye()), "malformed"),
        (TOPIC, encode(m.TaskNeed(digest="0" * 64)), "malformed"),
        (TOPIC, bytes(MAX_PAYLOAD_BYTES + 1), "oversize"),
    ],
)
def test_foreign_bytes_are_counted_and_change_nothing(
    topic: str, payload: bytes, reason: str
) -> None:
    scene = Scene()
    driver = scene.driver()
    for _ in range(3):
        driver.arrived("lan", UP, topic, payload, at=0.0)
    assert scene.counters == {reason: 3}
    said = [line for line in scene.log if "refused" in line and "another version" in line]
    assert len(scene.log) == len(said) == (reason != "topic"), "once, of three"


def test_a_beacon_of_another_version_is_named_and_not_read() -> None:
    scene = Scene()
    for _ in range(2):
        beacon = "fedagent/2/s/c/them/beacon"
        scene.driver().arrived("wan", Direction.COORDINATOR_TO_EDGE, beacon, b"?", at=0.0)
    assert scene.counters == {"protocol_version": 2}
    assert "warn them coordinator-beacon refused: it speaks protocol 2, we 3" in scene.log[0]


def test_one_bad_input_takes_no_other_along() -> None:
    errors: list[Exception] = []
    scene = Scene()
    scene.driver(on_error=errors.append).receive(Done("x"), Done("broken"), Done("y"))
    assert scene.log == ["got x", "got broken", "got y"]
    assert [type(error) for error in errors] == [LookupError]
    with pytest.raises(LookupError):
        Scene().driver().receive(Done("broken"))


def test_what_cannot_be_sent_is_counted() -> None:
    large = m.ProbeReply(nonce=1, data=bytes(MAX_PAYLOAD_BYTES))
    scene = Scene([Send("a", m.Bye()), Send("a", large)])
    scene.driver().tick()
    assert scene.counters["not_sent"] == 2
    assert scene.log[0] == "send a bye"
    assert "cannot be sent" in scene.log[1]


def test_who_floods_is_named_and_takes_no_time_of_others() -> None:
    scene = Scene()
    driver = scene.driver()
    for _ in range(10_000):
        driver.arrived("lan", UP, TOPIC, encode(m.Bye()), at=0.0)
    assert scene.log.count("got Received") == MESSAGES_AT_ONCE >= 2 * MAX_MODEL_BYTES / PIECE_BYTES
    assert scene.counters["refused_flood"] == 10_000 - MESSAGES_AT_ONCE
    assert [line[:18] for line in scene.log if "warn" in line] == ["warn a bye refused"]
    driver.arrived("lan", UP, topics.agent_up("s", "b", "me", "bye"), encode(m.Bye()), at=0.0)
    assert scene.log[-1] == "got Received"
