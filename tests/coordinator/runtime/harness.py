"""The real runtime on a real directory, with toy edges and a simulated clock; it can be killed."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from fedagent_coordinator.core import effects as fx
from fedagent_coordinator.jobs import CheckPart, EvaluateModel, MergeModels
from fedagent_coordinator.runtime import (
    CoordinatorRuntime,
    Finished,
    Outward,
    Publish,
    RuntimeOptions,
)
from fedagent_protocol import messages as m
from fedagent_protocol import topics
from fedagent_protocol.codec import decode_coordinator_to_edge, encode
from fedagent_task import models
from fedagent_task.recipe import parse_recipe
from fedagent_task.spec import Recipe
from fedagent_testbed.kernel import Kernel
from tests.coordinator.toy_edge import ToyAgent, ToyEdge

RECIPE = """
name = "toy"
seed = 5
[model]
kind = "softmax"
features = 64
classes = 10
[data]
scale = 0.0625
[rounds]
count = 4
deadline_s = 2
max_wait_s = 3
[budget]
per_edge = 3.0
total = 100
[evaluation]
dataset = "digits-test"
"""


class KilledError(BaseException):
    """The process died here."""


def recipe(*sets: str) -> Recipe:
    return parse_recipe(RECIPE, sets)


def toy_edges(given: Recipe, edges: int = 1, agents: int = 3) -> list[ToyEdge]:
    manifest = models.create(given.model).manifest()
    return [
        ToyEdge(
            f"edge-{e}",
            manifest,
            [
                ToyAgent(f"agent-{e}-{a}", features={"compute": 1.0, "download_bps": 1e6 * (a + 1)})
                for a in range(agents)
            ],
        )
        for e in range(edges)
    ]


@dataclass
class Site:
    """A coordinator on a directory, and its edges; `kill_at` names a crash point."""

    folder: Path
    recipe: Recipe
    edges: list[ToyEdge]
    kill_at: str = ""
    kill_hit: int = 1
    new_run: bool = False
    more_rounds: int = 0
    init: str = ""
    kernel: Kernel = field(default_factory=Kernel)
    events: list[fx.Event] = field(default_factory=list)
    published: list[Publish] = field(default_factory=list)
    passed: list[str] = field(default_factory=list)
    kills: int = 0
    done: str = ""
    runtime: CoordinatorRuntime | None = None
    beats: int = 0

    def checkpoint(self, name: str) -> None:
        """Die at the chosen point, once."""
        self.passed.append(name)
        if name == self.kill_at:
            self.kill_hit -= 1
            if self.kill_hit == 0:
                raise KilledError(name)

    def open(self) -> CoordinatorRuntime:
        """Start a coordinator on the directory."""
        self.runtime = CoordinatorRuntime(
            RuntimeOptions(
                data_dir=self.folder,
                coordinator="c-1",
                recipe=self.recipe,
                new_run=self.new_run,
                more_rounds=self.more_rounds,
                init=self.init,
                wait_edges=len(self.edges),
                wait_agents=sum(len(edge.agents) for edge in self.edges),
            ),
            checkpoint=self.checkpoint,
            clock=lambda: self.kernel.now,
            clock_ms=lambda: int(self.kernel.now * 1000),
        )
        return self.runtime

    def run(self, *, until: float = 600.0) -> None:
        """Run to the end, starting the coordinator again 50 ms after each kill."""
        self._alive(self._start)
        for edge in self.edges:
            self._up(edge, edge.hello())
        self._beat()
        self.kernel.run(until=self.kernel.now + until, stop=lambda: bool(self.done))
        self.kernel.run(until=self.kernel.now + 2.0)

    def close(self) -> None:
        if self.runtime is not None:
            self.runtime.close()
            self.runtime = None

    def _start(self) -> None:
        runtime = self.open()
        self._perform(runtime.start(self.kernel.now))

    def _alive(self, action: Callable[[], None]) -> None:
        """Do something that the coordinator may die of."""
        try:
            action()
        except KilledError:
            self.kills += 1
            self.close()
            for edge in self.edges:
                # Its broker is gone with it: edges say hello again.
                edge.welcomed = False
            self.kernel.after(0.05, lambda: self._alive(self._start))

    def _beat(self) -> None:
        now = self.kernel.now
        for edge in self.edges:
            for message in edge.tick(now):
                self._up(edge, message)
        if self.runtime is not None:
            due = self.runtime.next_due()
            if due is not None and due <= now:
                runtime = self.runtime
                self._alive(lambda: self._perform(runtime.tick(now)))
        self.kernel.after(0.05, self._beat)

    def _up(self, edge: ToyEdge, message: m.EdgeToCoordinator) -> None:
        topic = topics.edge_up("default", edge.id, m.kind(message))
        payload = encode(message)
        self.kernel.after(0.001, lambda: self._alive(lambda: self._arrive(topic, payload)))

    def _arrive(self, topic: str, payload: bytes) -> None:
        if self.runtime is not None:
            self._perform(self.runtime.receive(topic, payload, self.kernel.now))

    def _perform(self, outward: list[Outward]) -> None:
        assert self.runtime is not None
        for item in outward:
            match item:
                case Publish():
                    self.published.append(item)
                    self._down(item)
                case fx.CrashPoint():
                    self.checkpoint(item.name)
                case fx.Event():
                    self.events.append(item)
                case CheckPart() | MergeModels() | EvaluateModel():
                    self._perform(self.runtime.job_done(item.run(), self.kernel.now))
                case Finished():
                    self.done = item.reason

    def _down(self, item: Publish) -> None:
        where = topics.parse(item.topic)
        for edge in self.edges:
            if edge.id == where.edge:
                self.kernel.after(0.001, lambda e=edge: self._deliver(e, item.payload))  # type: ignore[misc] # a bound default

    def _deliver(self, edge: ToyEdge, payload: bytes) -> None:
        for answer in edge.receive(decode_coordinator_to_edge(payload), self.kernel.now):
            self._up(edge, answer)
