"""The driver: effects in order, results at their place, and nothing foreign that disturbs."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest

from fedagent_node.driver import Driver, Job
from fedagent_node.effects import (
    Connect,
    Effect,
    Emit,
    Input,
    LinkUp,
    Mark,
    Received,
    Run,
    Send,
    Warn,
    Write,
)
from fedagent_protocol import messages as m
from fedagent_protocol import topics
from fedagent_protocol.codec import MAX_PAYLOAD_BYTES, Direction, encode

UP = Direction.AGENT_TO_EDGE
TOPIC = topics.agent_up("s", "a", "me", "bye")


class Save(Write, frozen=True):
    """Answered at once by `Done`, or by the next flush if it is `later`."""

    name: str
    later: bool = False


class Work(Run, frozen=True):
    name: str


class Dial(Connect, frozen=True):
    pass


class Done(Input, frozen=True):
    name: str


@dataclass
class Scene:
    """A core that answers by a table, and everything around it; `log` is what happened."""

    answers: dict[str, list[Effect]] = field(default_factory=dict)
    log: list[str] = field(default_factory=list)
    counters: Counter[str] = field(default_factory=Counter)
    waiting: list[Input] = field(default_factory=list)
    online: bool = True
    on_error: Callable[[Exception], None] | None = None

    def driver(self, **more: Any) -> Driver:
        if self.on_error is not None:
            more["on_error"] = self.on_error
        return Driver(
            self, self, links=self, jobs=self, clock=lambda: 1.0, me="me",
            emit=lambda e: self.log.append(f"emit {e.name}"),
            warn=lambda w: self.log.append(f"warn {w.peer} {w.text}"), **more,
        )  # fmt: skip

    def receive(self, event: Input, now: float) -> list[Effect]:
        match event:
            case Received():
                name = m.kind(event.message)
            case Done():
                name = event.name
            case _:
                name = type(event).__name__
        self.log.append(f"got {name}")
        if name == "broken":
            raise LookupError(name)
        return self.answers.get(name, [])

    def tick(self, now: float) -> list[Effect]:
        return self.answers.get("tick", [])

    def next_due(self) -> float | None:
        return None

    def urgent(self) -> bool:
        return False

    def write(self, effect: Write, now: float) -> Input | None:
        if isinstance(effect, Mark):
            self.log.append(f"mark {effect.name}")
            return None
        assert isinstance(effect, Save)
        self.log.append(f"save {effect.name}")
        if effect.later:
            self.waiting.append(Done(effect.name))
            return None
        return Done(effect.name)

    def job(self, effect: Run) -> Job | None:
        assert isinstance(effect, Work)
        return Job(effect.name, lambda: Done(effect.name), small=True)

    def submit(self, job: Job) -> Input | None:
        self.log.append(f"work {job.name}")
        return job.work()

    def complete(self, message: m.AnyMessage) -> m.AnyMessage:
        return m.ProbeReply(nonce=1, data=b"filled")

    def flush(self) -> Iterable[Input]:
        found, self.waiting = self.waiting, []
        return found

    def close(self) -> None:
        pass

    def send(self, send: Send) -> bool:
        encode(send.message)
        self.log.append(f"send {send.to} {m.kind(send.message)}")
        return self.online

    def change(self, effect: Connect) -> None:
        self.log.append("change")


def test_effects_are_done_in_order_and_results_lead_on_at_their_place() -> None:
    bye = Send("a", m.Bye())
    scene = Scene(
        {
            "LinkUp": [Save("x"), bye, Work("y"), Emit("e", {}), Dial(), Warn("p", "t")],
            "x": [Mark("between")],
            "y": [Save("z")],
        }
    )
    scene.driver().receive(LinkUp("lan"))
    assert scene.log == [
        "got LinkUp", "save x", "got x", "mark between", "send a bye", "work y", "got y", "save z",
        "got z", "emit e", "change", "warn p t",
    ]  # fmt: skip


def test_what_waits_for_the_disk_is_answered_after_the_batch() -> None:
    scene = Scene({"bye": [Save("x", later=True)], "x": [Send("a", m.Bye(), stored=True)]})
    driver = scene.driver()
    for _ in range(2):
        driver.arrived("lan", UP, TOPIC, encode(m.Bye()), at=0.0)
    assert scene.log == ["got bye", "save x"] * 2
    driver.flush()
    assert scene.log[4:] == ["got x", "send a probe-reply"] * 2


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


def test_one_bad_input_takes_no_other_along() -> None:
    errors: list[Exception] = []
    scene = Scene({"LinkUp": [Save("broken"), Save("x")]}, on_error=errors.append)
    scene.driver().receive(LinkUp("lan"), Done("y"))
    assert scene.log == ["got LinkUp", "save broken", "got broken", "got y"]
    assert [type(error) for error in errors] == [LookupError]
    with pytest.raises(LookupError):
        Scene().driver().receive(Done("broken"))


def test_what_cannot_be_sent_is_counted() -> None:
    large = m.ProbeReply(nonce=1, data=bytes(MAX_PAYLOAD_BYTES))
    scene = Scene({"tick": [Send("a", m.Bye()), Send("a", large)]}, online=False)
    scene.driver().tick()
    assert scene.counters["not_sent"] == 2
    assert scene.log[0] == "send a bye"
    assert "cannot be sent" in scene.log[1]
