"""The real runtime with toy edges and a simulated clock; on a real directory it can be killed."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import numpy as np

from fedagent_coordinator.books.write import Books
from fedagent_coordinator.config import CoordinatorConfig
from fedagent_coordinator.core.effects import Start
from fedagent_coordinator.core.engine import Engine
from fedagent_coordinator.daemon import route
from fedagent_coordinator.run_settings import decision_policies
from fedagent_coordinator.store import RunStore
from fedagent_node.data_dir import Identity
from fedagent_node.driver import Driver
from fedagent_node.driver import Store as Disk
from fedagent_node.effects import EVERYBODY, Connect, Emit, Send, Warn
from fedagent_protocol import messages as m
from fedagent_protocol import topics
from fedagent_protocol.codec import Direction, decode, encode
from fedagent_task import models
from fedagent_task.recipe.spec import Recipe
from fedagent_task.recipe.text import parse_recipe
from fedagent_task.task_file import TaskFile
from fedagent_testbed.kernel import Kernel
from fedagent_testbed.node import AtOnce
from tests.fakes import toy_edge
from tests.fakes.toy_edge import ToyEdge

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
    pass


def recipe(*sets: str) -> Recipe:
    return parse_recipe(RECIPE, sets)


def toy_edges(given: Recipe, edges: int = 1, agents: int = 3) -> list[ToyEdge]:
    return toy_edge.toy_edges(models.create(given.model).manifest(), edges, agents)


@dataclass(kw_only=True)
class Played(ABC):
    """A coordinator, and toy edges on a network; `plan` says when copies of a kind arrive."""

    plan: Callable[[str], list[float]] = lambda _: [0.001]
    kernel: Kernel = field(default_factory=Kernel)
    events: list[Emit] = field(default_factory=list)
    warned: list[Warn] = field(default_factory=list)
    sent: list[Send] = field(default_factory=list)
    done: str = ""
    driver: Driver | None = None

    @abstractmethod
    def toys(self) -> list[ToyEdge]:
        """Return the edges."""

    @abstractmethod
    def open(self) -> object:
        """Make `driver`."""

    @property
    def engine(self) -> Engine:
        assert self.driver is not None
        assert isinstance(self.driver.core, Engine)
        return self.driver.core

    def drive(self, engine: Engine, store: Disk) -> None:
        self.driver = Driver(
            engine,
            store,
            links=self,
            jobs=AtOnce(),
            clock=lambda: self.kernel.now,
            emit=self._emit,
            warn=self.warned.append,
            me="c-1",
        )

    def run(
        self, *, until: float = 600.0, hello: bool = True, stop: Callable[[], bool] | None = None
    ) -> None:
        """Run to the end, or for `until` virtual seconds; at once no further than to a `stop`."""
        self._alive(self._start)
        for edge in self.toys() if hello else ():
            self.up(edge, edge.hello())
        self._beat()
        self.kernel.run(until=self.kernel.now + until, stop=stop or (lambda: bool(self.done)))
        if stop is None:
            self.kernel.run(until=self.kernel.now + 2.0)

    def _start(self) -> None:
        self.open()
        assert self.driver is not None
        self.driver.receive(Start())

    def _alive(self, action: Callable[[], None]) -> None:
        action()

    def _beat(self) -> None:
        """Tick edges every 50 ms, and the coordinator when it wants to be."""
        now = self.kernel.now
        for edge in self.toys():
            for message in edge.tick(now):
                self.up(edge, message)
        if self.driver is not None:
            due = self.driver.next_due()
            if due is not None and due <= now:
                self._alive(self.driver.tick)
        self.kernel.after(0.05, self._beat)

    def up(self, edge: ToyEdge, message: m.EdgeToCoordinator) -> None:
        """Carry a message to the coordinator."""
        kind = m.kind(message)
        topic, payload = topics.edge_up("default", edge.id, kind), encode(message)
        for delay in self.plan(kind):
            self.kernel.after(delay, lambda: self._alive(lambda: self._arrive(topic, payload)))

    def _arrive(self, topic: str, payload: bytes) -> None:
        if self.driver is not None:
            direction = Direction.EDGE_TO_COORDINATOR
            self.driver.arrived("edges", direction, topic, payload, at=self.kernel.now)
            self.driver.flush()

    def send(self, send: Send) -> bool:
        payload = encode(send.message)
        assert topics.parse(route("default", "c-1", send)[1])
        self.sent.append(send)
        for edge in self.toys():
            if edge.id == send.to and send.to != EVERYBODY:
                for delay in self.plan(m.kind(send.message)):
                    self.kernel.after(delay, lambda e=edge: self._deliver(e, payload))  # type: ignore[misc] # a bound default
        return True

    def change(self, effect: Connect) -> None:
        raise NotImplementedError(effect)

    def _emit(self, event: Emit) -> None:
        self.events.append(event)
        if event.name == "end":
            self.done = str(event.fields["reason"])

    def _deliver(self, edge: ToyEdge, payload: bytes) -> None:
        message = cast("m.CoordinatorToEdge", decode(Direction.COORDINATOR_TO_EDGE, payload))
        for answer in edge.receive(message, self.kernel.now):
            self.up(edge, answer)


@dataclass
class Site(Played):
    """A coordinator on a directory, and its edges; `kill_at` names a crash point."""

    folder: Path
    recipe: Recipe
    edges: list[ToyEdge]
    kill_at: str = ""
    kill_hit: int = 1
    new_run: bool = False
    more_rounds: int = 0
    keep_rounds: int = 0
    init: str = ""
    task: TaskFile | None = None
    identity: Identity | None = None
    passed: list[str] = field(default_factory=list)
    kills: int = 0

    def toys(self) -> list[ToyEdge]:
        return self.edges

    def checkpoint(self, name: str) -> None:
        self.passed.append(name)
        if name == self.kill_at:
            self.kill_hit -= 1
            if self.kill_hit == 0:
                raise KilledError(name)

    @property
    def store(self) -> RunStore:
        assert self.driver is not None
        assert isinstance(self.driver.store, RunStore)
        return self.driver.store

    def open(self) -> RunStore:
        config = CoordinatorConfig(
            data_dir=str(self.folder),
            recipe="",
            new_run=self.new_run,
            more_rounds=self.more_rounds,
            keep_rounds=self.keep_rounds,
            init=self.init,
            wait_edges=len(self.edges),
            wait_agents=sum(len(edge.agents) for edge in self.edges),
            linger_s=0.0,
        )
        store = RunStore(
            config,
            self.recipe,
            boot="",
            checkpoint=self.checkpoint,
            clock=lambda: self.kernel.now,
            clock_ms=lambda: int(self.kernel.now * 1000),
            task=self.task,
            identity=self.identity,
        )
        self.drive(store.engine("c-1"), store)
        return store

    def close(self) -> None:
        if self.driver is not None:
            self.driver.store.close()
            self.driver = None

    def _alive(self, action: Callable[[], None]) -> None:
        """Start the coordinator again 50 ms after each kill."""
        try:
            action()
        except KilledError:
            self.kills += 1
            self.close()
            for edge in self.edges:
                # Its broker is gone with it: edges say hello again.
                edge.welcomed = False
            self.kernel.after(0.05, lambda: self._alive(self._start))


def check_books(site: Site, rounds: int) -> None:
    """Close a site that came to its end, and check what must hold however it went.

    The books balance, each round ended once, and a start restores what every one of them teaches,
    which is what it knew itself, if it is open still.
    """
    lived = {} if site.driver is None else site.store.learning.state()
    site.close()
    with Books(site.folder) as store:
        read, run = store.read, store.read.run()
        report, balance = read.ledger.verify(full=True), read.balance(run.run_id)
        assert report.balanced, report.problems
        rows, outcomes = read.rounds(run.run_id), read.outcomes(run.run_id)
        states = [row.state for row in rows]
        assert states.count("done") == rounds
        assert set(states) <= {"done", "void"}
        assert [row.round for row in rows] == list(range(1, len(rows) + 1))
        assert run.end_reason == site.done
        assert balance.reserved_micro == 0
        paid = sum(outcome.paid_micro for outcome in outcomes)
        assert paid + sum(row.rent_micro for row in rows) == balance.settled_micro
        assert all(one.status != "rejected" for one in outcomes if one.paid_micro)
        evaluated = [row.round for row in read.evaluations.rows(run.run_id)]
        assert len(set(evaluated)) == len(evaluated), "a model was evaluated twice"
        restored, replayed = decision_policies(site.recipe), decision_policies(site.recipe)
        read.restore(run.run_id, restored)
        for one in read.logged(run.run_id, since=read.closed_until(run.run_id)):
            if one.feedback is not None:
                replayed.learn(one.feedback, one.controls)
    learnt, other = restored.state(), replayed.state()
    for name, value in learnt.items():
        for again in (other[name], lived.get(name, value)):
            assert np.array_equal(value, again, equal_nan=value.dtype.kind == "f"), name
