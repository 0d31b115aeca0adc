"""The three roles as nodes of the virtual world."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from msgspec import structs

from fedagent_agent.config import AgentConfig
from fedagent_agent.core.device import MICRO, PriceSettings, Readings
from fedagent_agent.core.effects import Greet, Measured, Relink
from fedagent_agent.store import TrainerRequest, open_agent
from fedagent_agent.trainer.frames import Evaluate, Evaluated
from fedagent_coordinator.config import CoordinatorConfig
from fedagent_coordinator.core.effects import Start
from fedagent_coordinator.daemon import route as coordinator_route
from fedagent_coordinator.store import RunStore
from fedagent_edge.config import EdgeConfig
from fedagent_edge.daemon import route as edge_route
from fedagent_edge.store import open_edge
from fedagent_node.data_dir import Identity
from fedagent_node.driver import Driver
from fedagent_node.effects import EVERYBODY, Connect, Emit, Input, LinkDown, LinkUp, Send
from fedagent_protocol import topics
from fedagent_protocol.codec import Direction, encode
from fedagent_protocol.messages import (
    AnyMessage,
    EdgeHello,
    UpdateOffer,
    kind,
)
from fedagent_task.recipe.spec import Recipe

from .kernel import WAN, edge_of, lan
from .node import Node, virtual_driver

SITE = "virtual"
BOOT = "one-boot"
AGENT_PRICE_MICRO = 100_000
EVALUATING_S = 0.02
"""How long an agent thinks of a model."""
METRIC, SAMPLES = "seeded", 100
"""What a virtual opinion claims to rest on."""


@dataclass(kw_only=True)
class AgentNode(Node):
    """A device that sees some edges; its task's learner must be ``none``."""

    name: str  # what people call it
    identity: Identity
    edges: tuple[str, ...]
    slow_s: float  # how long a training takes
    iteration_s: float  # what it reports for an iteration; 0 where it reports nothing
    arrivals: int  # samples that it reports for a round
    think: Callable[[str], tuple[float, float]]  # opinion of a model by its digest, and its epsilon
    away: bool = False  # what it sends and what is sent to it gets lost

    def _links(self) -> dict[str, Direction]:
        return {lan(edge): Direction.EDGE_TO_AGENT for edge in self.edges}

    def _open(self) -> tuple[Driver, list[Input]]:
        config = AgentConfig(
            data_dir=str(self.directory),
            site=SITE,
            stream="digits",
            price=PriceSettings(base=AGENT_PRICE_MICRO / MICRO, per_compute=0.0),
            slow_s=self.slow_s,
            name=self.name,
        )
        self.core, self._store = open_agent(
            config,
            self.id,
            submit=self._submit,
            pending=lambda _link: self.network.pending(self.id),
            identity=self.identity,
            checkpoint=self.checkpoint,
            idle_opinions=True,
        )
        driver = virtual_driver(self.core, self._store, self.kernel, self, me=self.id)
        links = [LinkUp(broker) for broker in self.incoming]
        return driver, [Measured(Readings(compute=1.0)), *links]

    def _arrive(self, broker: str, topic: str, payload: bytes) -> None:
        if not self.away:
            super()._arrive(broker, topic, payload)

    def reconnect(self, link: str) -> None:
        """The broker of a link came back."""
        if self.driver is not None:
            self.driver.receive(LinkDown(link))
            self.network.join(link, self.id)
            self.driver.receive(LinkUp(link))

    def _as_shown(self, message: AnyMessage) -> AnyMessage:
        if isinstance(message, UpdateOffer) and self.iteration_s > 0:
            stats = structs.replace(
                message.stats,
                seconds_per_iteration=self.iteration_s,
                train_ms=round(1000 * self.iteration_s * message.stats.iterations),
                arrivals=self.arrivals,
                steps=1,
            )
            return structs.replace(message, stats=stats)
        return message

    def send(self, send: Send) -> bool:
        """Put a message on the network."""
        if not self.away:
            message = self._as_shown(send.message)
            topic = topics.agent_up(SITE, self.id, send.to, kind(message))
            link = self.core.sessions.link_of(send.to)
            self.network.send(link, send.to, topic, encode(message), by=self.id)
        return True

    def change(self, effect: Connect) -> None:
        """Make a link anew, or greet who is behind it."""
        match effect:
            case Relink():
                self.network.soon(self.id, functools.partial(self.reconnect, effect.link))
            case Greet(link=link, hello=hello) if not self.away:
                topic = topics.agent_to_all(SITE, self.id, kind(hello))
                self.network.send(link, edge_of(link), topic, encode(hello), by=self.id)

    def _submit(self, request: TrainerRequest) -> None:
        """Have an opinion after a while, unless the process that wants it is gone by then."""
        if isinstance(request, Evaluate):
            answer = functools.partial(self._answer, request, self.driver)
            self.kernel.after(EVALUATING_S, lambda: self.run(answer))

    def _answer(self, request: Evaluate, asking: Driver | None) -> None:
        if self.driver is asking:
            score, epsilon = self.think(Path(request.model).name)
            self.receive(
                Evaluated(
                    job=request.job,
                    score=score,
                    samples=SAMPLES,
                    metric=METRIC,
                    epsilon=epsilon,
                )
            )


@dataclass(kw_only=True)
class EdgeNode(Node):
    """An edge aggregator with a broker of its own."""

    chunk_bytes: int
    rent_micro: int
    starts: int = 0

    def _links(self) -> dict[str, Direction]:
        return {lan(self.id): Direction.AGENT_TO_EDGE, WAN: Direction.COORDINATOR_TO_EDGE}

    def _open(self) -> tuple[Driver, list[Input]]:
        self.starts += 1
        config = EdgeConfig(
            site=SITE,
            data_dir=str(self.directory),
            chunk_bytes=self.chunk_bytes,
            credit_bytes=128 * self.chunk_bytes,
        )
        me = EdgeHello(edge=self.id, epoch=f"{self.starts:032x}", rent=self.rent_micro)
        now, checkpoint = self.kernel.now, self.checkpoint
        core, store = open_edge(config, me, now=now, boot=BOOT, checkpoint=checkpoint)
        driver = virtual_driver(core, store, self.kernel, self, me=self.id)
        return driver, [LinkUp("lan"), LinkUp("wan")]

    def send(self, send: Send) -> bool:
        """Put a message on the network."""
        to, message = send.to, send.message
        payload, (link, topic) = encode(message), edge_route(SITE, self.id, send)
        if link == "wan":
            self.network.send(WAN, "coordinator", topic, payload)
        elif to != EVERYBODY:
            self.network.send(lan(self.id), to, topic, payload)
        else:
            self.network.cast(lan(self.id), topic, payload)
        return True


@dataclass(kw_only=True)
class CoordinatorNode(Node):
    """The coordinator with a broker of its own."""

    recipe: Recipe
    wait_edges: int
    wait_agents: int
    done: str = ""  # why the run ended, once it has
    more_rounds: int = 0

    def _links(self) -> dict[str, Direction]:
        return {WAN: Direction.EDGE_TO_COORDINATOR}

    def _open(self) -> tuple[Driver, list[Input]]:
        config = CoordinatorConfig(
            data_dir=str(self.directory),
            recipe="",
            site=SITE,
            wait_edges=self.wait_edges,
            wait_agents=self.wait_agents,
            more_rounds=self.more_rounds,
            linger_s=0.0,
        )
        store = RunStore(
            config,
            self.recipe,
            boot=BOOT,
            checkpoint=self.checkpoint,
            clock=lambda: self.kernel.now,
            clock_ms=lambda: int(self.kernel.now * 1000),
        )
        engine = store.engine(self.id)
        driver = virtual_driver(engine, store, self.kernel, self, me=self.id, emit=self._emit)
        return driver, [Start()]

    def _arrive(self, broker: str, topic: str, payload: bytes) -> None:
        if not self.done:
            super()._arrive(broker, topic, payload)

    def _next_due(self) -> float | None:
        return None if self.done else super()._next_due()

    def send(self, send: Send) -> bool:
        """Put a message on the network."""
        payload, (_, topic) = encode(send.message), coordinator_route(SITE, self.id, send)
        if send.to == EVERYBODY:
            self.network.cast(WAN, topic, payload)
        else:
            self.network.send(WAN, send.to, topic, payload)
        return True

    def _emit(self, event: Emit) -> None:
        if event.name == "end":
            self.done = str(event.fields["reason"])
