"""Whole federations in virtual time, in one line each, and what must hold of every one.

    world(agents=3, edges=2).kill("edge", at="spooled").run()

All three roles run as they are, on real disks; clocks, brokers and training are simulated. A run
is checked at its end, whatever has happened in it (`invariants.py`).
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
from msgspec import structs

from fedagent_agent.core.effects import MakeIdleUpdate
from fedagent_agent.store import TrainerRequest
from fedagent_agent.trainer.frames import Cancel, Job, Open, Trained
from fedagent_agent.trainer.training import Trainer
from fedagent_coordinator.runs import RunFinishedError
from fedagent_node.driver import Driver
from fedagent_node.effects import Input, Revoked
from fedagent_protocol import messages as m
from fedagent_protocol import topics
from fedagent_protocol.messages import TrainStats
from fedagent_protocol.tensors import TensorSpec, digest_of, encode_tensors, locate, tensor_at
from fedagent_testbed.kernel import Faults, Kernel
from fedagent_testbed.node import Node
from fedagent_testbed.roles import AgentNode
from fedagent_testbed.world import Ending, VirtualFederation

from . import kinds
from .invariants import check
from .kill_points import POINTS
from .wire import Change, Wire

ROUNDS = 3
SETTLE_S = 60.0
"""After the run everybody is in reach again: what is open then is open for good."""


class Skewed:
    """The clock of one node, which is `offset` seconds ahead of the others'."""

    def __init__(self, kernel: Kernel, offset: float) -> None:
        self._kernel, self._offset = kernel, offset

    @property
    def now(self) -> float:
        return self._kernel.now + self._offset

    def at(self, when: float, action: Callable[[], None]) -> None:
        self._kernel.at(when - self._offset, action)

    def after(self, delay: float, action: Callable[[], None]) -> None:
        self._kernel.after(delay, action)


@dataclass
class Trainings:
    """What agents trained: every update is another one, so that every sum can be recomputed.

    Attributes:
        twice: (agent, round) of every training for a round whose update was on the disk already.
    """

    made: list[tuple[str, int]] = field(default_factory=list)
    twice: list[tuple[str, int]] = field(default_factory=list)

    def of(self, node: AgentNode) -> None:
        """Let an agent that has just started make updates of its own."""
        store, name = node._store, node.name

        def make(effect: MakeIdleUpdate) -> Trained:
            kept = {update.key.round for update in store.books.load()}
            kept |= {key.round for key in store.books.survived().answered}
            if effect.round in kept:
                self.twice.append((name, effect.round))
            self.made.append((name, effect.round))
            models = store._models
            body = models.small(effect.model) or models.path(effect.model).read_bytes()
            rng = np.random.default_rng([int(name.rpartition("-")[2]), effect.round])
            tensors = {
                item.spec.name: rng.normal(0, 0.01, item.spec.shape).astype(np.float32)
                for item in locate(body)
            }
            update = encode_tensors(tensors)
            output = store._outputs[effect.job] = store.books.path(effect.out)
            output.write_bytes(update)
            count = 1 + int(name.rpartition("-")[2])
            stats = TrainStats(num_samples=count, iterations=max(1, effect.iterations), steps=1)
            return Trained(job=effect.job, digest=digest_of(update), size=len(update), stats=stats)

        store._writes[MakeIdleUpdate] = make  # training is simulated


def _trainer(kernel: Kernel) -> Trainer:
    return Trainer(lambda _job, _wait: False, wall=lambda: kernel.now, processor=lambda: kernel.now)


def _answered(node: AgentNode, trainer: Trainer, job: Job) -> None:
    node.receive(trainer.answer(job))


def _dies_alone(dies: Callable[[], None], nodes: list[Node], point: str) -> None:
    for node in nodes:
        node.kill_at.pop(point, None)
    dies()


@dataclass
class Played:
    """What became of a world."""

    here: VirtualFederation
    ending: Ending
    wire: Wire
    trainings: Trainings
    kind: str
    died: dict[str, int]  # how often each node died
    open_after: list[str]  # what is still open when all is quiet
    untold: set[tuple[str, str, int]]  # edge, agent and round: void, as the agent is yet to hear
    plan: str
    seconds: float  # how long the run took
    recomputed: int = 0  # aggregates that were recomputed


class World:
    """A federation that is still to be run; each method adds what shall happen in it.

    Args:
        kind: Of `kinds.KINDS`.
        sets: Settings of the recipe, as ``rounds.count=3``.
        options: Of `VirtualFederation`; by default those of the kind.
    """

    def __init__(
        self,
        directory: Path,
        *,
        kind: str = "plain",
        seed: int = 1,
        sets: tuple[str, ...] = (),
        **options: Any,
    ) -> None:
        counted = () if kind == "placed" else (f"rounds.count={ROUNDS}",)
        self.kind = kind
        self.here = kinds.world(kind, directory, seed, *counted, *sets, **options)
        self.plan = [f"kind={kind} seed={seed} {options} {' '.join(sets)}"]
        self.trainings = Trainings()
        self.learning: dict[str, str] = {}
        self._trainers: list[Trainer] = []
        self._revoked: dict[str, float] = {}
        self.wire = Wire.around(self.here)
        for node in self.here.nodes.values():
            node._open = partial(self._opened, node, node._open)  # type: ignore[method-assign]

    def _opened(
        self, node: Node, opens: Callable[[], tuple[Driver, list[Input]]]
    ) -> tuple[Driver, list[Input]]:
        driver, first = opens()
        if isinstance(node, AgentNode) and node.name not in self.learning:
            self.trainings.of(node)
        if out := self._out():
            first = [Revoked(len(out), out), *first]
        return driver, first

    def _out(self) -> frozenset[str]:
        now = self.here.kernel.now
        return frozenset(
            self.here.agents[name].id for name, at in self._revoked.items() if at <= now
        )

    def names(self, who: str) -> list[str]:
        """Return the nodes of a role, or the one of that name."""
        return [name for name in self.here.nodes if who in (name, name.partition("-")[0])]

    def kill(
        self,
        who: str,
        *,
        at: str = "",
        nth: int = 1,
        after: float | None = None,
        down_s: float | None = None,
    ) -> Self:
        """Let a node die at the nth visit of a failpoint, or after some seconds.

        It comes back on its directory. Of a role one dies: the first to come by, or its first.
        """
        names = self.names(who) if at else self.names(who)[:1]
        role = names[0].partition("-")[0]
        point = at if role == "coordinator" else f"{role}.{at}"
        assert not at or at in POINTS[role], f"{role} has no point {at!r}"
        nodes = [self.here.nodes[name] for name in names]
        for node in nodes:
            node.stay_down_s = node.stay_down_s if down_s is None else down_s
            if at:
                node.kill_at[point] = nth
                node.kill = partial(_dies_alone, node.kill, nodes, point)  # type: ignore[method-assign] # one of them
        if after is not None:
            self.here.kill_after(names[0], after)
        self.plan.append(f"{who} dies at {at or after} ({nth})")
        return self

    def kill_on(self, who: str, kind: str, *visits: int) -> Self:
        """Let a node die when the n-th messages of a kind come, wherever they do."""
        heard = 0

        def hear(topic: str) -> None:
            nonlocal heard
            heard += topics.parse(topic).kind == kind
            if topics.parse(topic).kind == kind and heard in visits:
                self.here.kernel.after(0.0, self.here.nodes[who].kill)

        self.wire.hears.append(hear)
        self.plan.append(f"{who} dies on {kind} number {visits}")
        return self

    def kill_everybody(self, seed: int, *, until: float = 15.0) -> Self:
        """Kill every node at three random times."""
        rng = np.random.default_rng(seed)
        for name in self.here.nodes:
            for when in rng.uniform(0.1, until, size=3):
                self.here.kill_after(name, float(when))
        self.plan.append(f"all die thrice by {seed}")
        return self

    def learn(self, *streams: str) -> Self:
        """Let agents train for real, each on its stream, in virtual seconds."""
        for node, stream in zip(self.here.agents.values(), streams, strict=True):
            self.learning[node.name] = stream
            self._trainers.append(_trainer(node.kernel))
            node._submit = partial(self._work_on, node, self._trainers[-1])  # type: ignore[method-assign] # its own
        return self

    def _work_on(self, node: AgentNode, trainer: Trainer, request: TrainerRequest) -> None:
        if isinstance(request, Open):
            request = structs.replace(request, stream=self.learning[node.name])
        if not isinstance(request, Cancel):
            node.kernel.after(node.slow_s, partial(_answered, node, trainer, request))

    def messages(
        self, *, lost: float = 0.0, doubled: float = 0.0, delay: float = 0.003, jitter: float = 0.02
    ) -> Self:
        """Lose and double a share of all messages; with much jitter they overtake each other."""
        faults = Faults(loss=lost, duplicate=doubled, delay_s=delay, jitter_s=jitter)
        self.here.network.faults = faults
        self.plan.append(repr(faults))
        return self

    def cut(self, broker: str, *, after: float, seconds: float) -> Self:
        """Kill a broker for a while."""
        self.here.cut(broker, at=after, seconds=seconds)
        self.plan.append(f"{broker} is cut after {after} for {seconds}")
        return self

    def part(self, *agents: str, after: float, seconds: float) -> Self:
        """Put agents out of reach for a while."""
        self.here.part(agents, at=after, seconds=seconds)
        self.plan.append(f"{agents} are away after {after} for {seconds}")
        return self

    def silent(self, who: str, *, after: float, seconds: float) -> Self:
        """Stop a process for a while as SIGSTOP does: all that comes waits, and then comes."""
        name = self.names(who)[0]
        node, waits = self.here.nodes[name], list[Callable[[], None]]()
        run = node.run

        def stop() -> None:
            node.run = waits.append  # type: ignore[method-assign,assignment] # it sleeps

        def go_on() -> None:
            node.run = run  # type: ignore[method-assign] # it is awake
            for action in waits:
                node.run(action)

        self.here.kernel.after(after, stop)
        self.here.kernel.after(after + seconds, go_on)
        self.plan.append(f"{name} is stopped after {after} for {seconds}")
        return self

    def clock(self, who: str, *, ahead: float) -> Self:
        """Let the clocks of a role, or of one node, be ahead, or behind, of all others."""
        for name in self.names(who):
            self.here.nodes[name].kernel = Skewed(self.here.kernel, ahead)  # type: ignore[assignment] # all a node needs of it
        self.plan.append(f"{who} is {ahead} s ahead")
        return self

    def lies(self, who: str, kind: str, change: Change) -> Self:
        """Let a node send other messages than it means to: `change` returns what goes out."""
        for name in self.names(who):
            self.wire.lies[self.here.nodes[name].id, kind] = change
        self.plan.append(f"{who} lies in {kind}")
        return self

    def revoke(self, name: str, *, after: float) -> Self:
        """Put a device on the list of the revoked, which everybody has at once.

        Its connections are cut for good, which is the gate's part live.
        """
        self._revoked[name] = self.here.kernel.now + after

        def tell() -> None:
            out = self._out()
            self.here.agents[name].away = True
            for node in self.here.nodes.values():
                node.run(partial(node.receive, Revoked(len(out), out)))

        self.here.kernel.after(after, tell)
        self.plan.append(f"{name} is revoked after {after}")
        return self

    def run(self, *, seconds: float = 900.0, ends: bool = True, checked: bool = True) -> Played:
        """Run until the end, let everything settle, and check what must hold of any run.

        Args:
            ends: Whether it must end in time.
            checked: Where not, the test does it itself.
        """
        here = self.here
        for node in here.nodes.values():
            node.boot()
        kernel = here.kernel
        began = kernel.now
        # A coordinator that died after its last word has nothing to go on with.
        with suppress(RunFinishedError):
            kernel.run(until=kernel.now + seconds, stop=lambda: bool(here.coordinator.done))
        took = kernel.now - began
        here.network.faults = Faults()
        # Its books are closed as a kill would: nothing it says afterwards is of this run.
        here.coordinator.drop()
        kernel.run(until=kernel.now + SETTLE_S)
        open_after, untold = self._open_after(), self._untold()
        ending = here._ending()
        played = Played(
            here=here,
            ending=ending,
            wire=self.wire,
            trainings=self.trainings,
            kind=self.kind,
            died={name: node.restarts for name, node in here.nodes.items()},
            open_after=open_after,
            untold=untold,
            plan="; ".join(self.plan),
            seconds=took,
        )
        for trainer in self._trainers:
            trainer.close()
        for node in here.nodes.values():
            node.drop()
        if checked:
            check(played, ends=ends)
        return played

    def _untold(self) -> set[tuple[str, str, int]]:
        """Return who is to hear of an edge, when it is there again, that a round is not paid."""
        return {
            (edge.id, agent, void.round)
            for edge in self.here.edges.values()
            if edge.driver is not None
            for agent, void in edge.driver.core.memory.void.items()  # type: ignore[attr-defined] # an edge's core
        }

    def _open_after(self) -> list[str]:
        """Return what somebody still holds of a run that is over."""
        found = []
        for name, edge in self.here.edges.items():
            if edge.driver is None:
                continue
            sessions = edge.driver.core.sessions  # type: ignore[attr-defined] # an edge's core
            if len(sessions.by_id) > len(self.here.agents):
                found.append(f"{name} has {len(sessions.by_id)} sessions")
        for name, agent in self.here.agents.items():
            # Of each edge one may wait for the rest of a round that has ended.
            if agent.driver is None:
                continue
            if len(kept := agent._store.books.load()) > len(agent.edges):
                found.append(f"{name} keeps {len(kept)} updates")
            if jobs := agent._store._outputs:
                found.append(f"{name} keeps what {len(jobs)} trainings made")
        return found


__all__ = ["Played", "TensorSpec", "World", "m", "tensor_at"]
