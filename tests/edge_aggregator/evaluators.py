"""The pure core in mid run, and what agents and the coordinator say to it about a model."""

from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from fedagent_edge.config import EdgeConfig
from fedagent_edge.core.edge import EdgeCore
from fedagent_edge.core.effects import COORDINATOR, LAN, WAN, Memory
from fedagent_edge.core.state import EdgeState
from fedagent_node.effects import Effect, Received, Send
from fedagent_protocol import messages as m
from fedagent_task.recipe.spec import ModelSpec, OpinionsSpec, PeersSpec, TaskSpec
from fedagent_task.recipe.text import task_bytes

RUN = "0" * 31 + "1"
MODEL, OTHER = "a" * 64, "b" * 64
EPOCH = "e" * 32
M = TypeVar("M", bound=m.Message)


def peers_task(**facts: object) -> bytes:
    """Return a task of mode peers with these facts about them."""
    peers = PeersSpec(**facts)  # type: ignore[arg-type]  # a test's own facts
    model = ModelSpec(kind="softmax", features=2, classes=2)
    return task_bytes(TaskSpec(model=model, opinions=OpinionsSpec(mode="peers"), peers=peers))


@dataclass
class Hall:
    """An edge of which tests play everybody else; time is what they say."""

    model: str = MODEL
    body: bytes = b""
    size: int = 700
    now: float = 100.0
    effects: list[Effect] = field(default_factory=list)
    core: EdgeCore = field(init=False)

    def __post_init__(self) -> None:
        memory = Memory(run=RUN, task="f" * 64, body=self.body, model=self.model)
        memory.model_bytes = self.size if self.model else 0
        config = EdgeConfig(data_dir="", chunk_bytes=1024)
        self.core = EdgeCore(EdgeState(config, m.EdgeHello(edge="edge", epoch=EPOCH), memory))
        self.core.upstream.welcomed = True

    def say(self, agent: str, message: m.AgentToEdge) -> list[Effect]:
        return self._note(self.core.receive(Received(agent, message, LAN, self.now), self.now))

    def hello(self, *agents: str) -> None:
        for agent in agents:
            self.say(agent, m.Hello())

    def place(self, agent: str, x: float, y: float) -> None:
        features = {"x_km": x, "y_km": y}
        self.say(agent, m.ContextReport(seq=1, available=True, price=1, features=features))

    def tell(self, message: m.CoordinatorToEdge) -> list[Effect]:
        return self._note(self.core.receive(Received("", message, WAN, self.now), self.now))

    def open(self, number: int = 1, *, mode: str = "report", **facts: object) -> list[Effect]:
        values: dict[str, object] = {
            "run": RUN, "round": number, "model": MODEL, "until_ms": 5000,
            "mode": m.OpinionMode(mode), **facts,
        }  # fmt: skip
        return self.tell(m.OpinionOpen(**values))  # type: ignore[arg-type]  # a test's own facts

    def opinion(self, agent: str, score: float = 0.5, **facts: object) -> list[Effect]:
        values: dict[str, object] = {
            "run": RUN, "round": 1, "model": MODEL, "score": score, "samples": 10,
            "metric": "accuracy", **facts,
        }  # fmt: skip
        return self.say(agent, m.Opinion(**values))  # type: ignore[arg-type]  # a test's own facts

    def volunteer(self, agent: str, number: int = 1) -> list[Effect]:
        return self.say(agent, m.Volunteer(run=RUN, round=number))

    def wait(self, seconds: float) -> None:
        """Let time go on from one thing that is due to the next."""
        end = self.now + seconds
        steps = 0
        while (due := self.core.next_due()) <= end:
            steps += 1
            assert steps < 10_000, "the edge does not rest"
            self.now = max(self.now, due)
            self._note(self.core.tick(self.now))
        self.now = end

    def _note(self, effects: list[Effect]) -> list[Effect]:
        self.effects += effects
        return effects

    # ------------------------------------------------------------ what came of it

    def up(self, kind: type[M]) -> list[M]:
        """Return what the coordinator was told, of one kind."""
        told = [one.message for one in self._sent() if one.to == COORDINATOR]
        return [one for one in told if isinstance(one, kind)]

    def down(self, agent: str, kind: type[M]) -> list[M]:
        """Return what an agent was told, of one kind."""
        told = [one.message for one in self._sent() if one.to == agent]
        return [one for one in told if isinstance(one, kind)]

    def _sent(self) -> list[Send]:
        return [one for one in self.effects if isinstance(one, Send)]


DTYPES = {"session": "<i4", "score": "<f4", "samples": "<i8", "epsilon": "<f4"}


def column(message: m.Opinions | m.Volunteers, name: str) -> list[float]:
    """Return a column of a message, read as the coordinator reads it."""
    found: list[float] = np.frombuffer(getattr(message, name), DTYPES[name]).tolist()
    return found


def scores(message: m.Opinions) -> dict[str, float]:
    """Return the scores by agent, of a message that names everybody."""
    assert message.known == 0
    assert len(column(message, "session")) == len(column(message, "samples"))
    ids = [message.new_ids[int(index)] for index in column(message, "session")]
    return dict(zip(ids, column(message, "score"), strict=True))


def volunteers(message: m.Volunteers) -> list[str]:
    """Return who volunteered, of a message that names everybody."""
    assert message.known == 0
    return [message.new_ids[int(index)] for index in column(message, "session")]
