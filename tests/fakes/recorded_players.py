"""Roles of today among recorded ones: real cores and disks that hear what was recorded."""

import hashlib
from abc import ABC, abstractmethod
from pathlib import Path
from typing import get_args

from fedagent_agent.config import AgentConfig
from fedagent_agent.core.device import PriceSettings, Readings
from fedagent_agent.core.effects import Measured, Subscribed, SubscribeModel
from fedagent_agent.store import TrainerRequest, open_agent
from fedagent_agent.trainer.frames import Open, Opened, Train, Trained
from fedagent_coordinator.config import CoordinatorConfig
from fedagent_coordinator.core.effects import Start
from fedagent_coordinator.run_store import open_coordinator
from fedagent_edge.config import EdgeConfig
from fedagent_edge.store import open_edge
from fedagent_node.driver import Core, Driver, Store
from fedagent_node.effects import Connect, Emit, Input, LinkUp, Send
from fedagent_node.envelope import Gate, _parts
from fedagent_protocol import messages as m
from fedagent_protocol.codec import Direction, decode
from fedagent_protocol.signatures import identity_of
from fedagent_task.recipe import parse_recipe
from fedagent_testbed.node import AtOnce

from .recorded_round import PRICE, SITE, Said, member

BOOT = "one-boot"
PATIENCE_S = 3.0
KINDS = frozenset(one.__struct_config__.tag for one in get_args(m.AnyMessage))
"""What this release can say."""


def sender_of(said: Said) -> str:
    """Return who signed."""
    return identity_of(_parts(said.payload)[0])


def message_of(said: Said) -> m.AnyMessage:
    """Return what is in the envelope."""
    return decode(said.where.direction, _parts(said.payload)[-1])


class Player(ABC):
    """One role of today; `said` are all messages of the round, those of its forerunner too.

    A recorded message waits until all is sent that had been sent before it, so that no clocks
    need to agree, but not for ever: another release may leave out a kind of message.
    """

    hears: tuple[Direction, ...]

    def __init__(self, name: str, recipe: str, said: list[Said], directory: Path) -> None:
        self.identity = member(name)
        self.me = self.identity.id
        self.recipe, self.said, self.directory = recipe, said, directory
        self.now = 0.0
        self.sent: list[m.AnyMessage] = []
        self.warnings: list[str] = []
        self.events: list[Emit] = []
        self.core, self.store = self.open()
        self.driver = Driver(
            self.core,
            self.store,
            links=self,
            jobs=AtOnce(),
            clock=lambda: self.now,
            emit=self.events.append,
            warn=lambda warning: self.warnings.append(warning.text),
            me=self.me,
            gate=Gate(self.identity, starts=1, clock=lambda: self.now),
        )

    @abstractmethod
    def open(self) -> tuple[Core, Store]:
        """Open the role on an empty directory."""

    @abstractmethod
    def begin(self) -> list[Input]:
        """Return what it takes in first."""

    def send(self, send: Send) -> bool:
        self.sent.append(send.message)
        return True

    def change(self, effect: Connect) -> None:
        """Change links, which only devices do."""
        raise NotImplementedError(effect)

    def of(self, kind: type[m.AnyMessage]) -> list[m.AnyMessage]:
        """Return what it sent of a kind."""
        return [one for one in self.sent if isinstance(one, kind)]

    def play(self) -> None:
        self.driver.receive(*self.begin())
        before: set[tuple[str, int]] = set()
        for said in self.said:
            where = said.where
            if sender_of(said) == self.me:
                if said.where.kind in KINDS:
                    message = message_of(said)
                    before.add((m.kind(message), message.round))
            elif where.direction in self.hears and where.agent in ("", self.me, *self.others()):
                self._wait(said.at, before)
                link = "wan" if where.direction is Direction.COORDINATOR_TO_EDGE else "lan"
                self.driver.arrived(link, where.direction, said.topic, said.payload, at=self.now)
                self.driver.flush()
        self._until(self.now + PATIENCE_S)
        self.store.close()

    def others(self) -> tuple[str, ...]:
        """Return whose messages it hears besides its own: none, if it is a device."""
        return tuple({said.where.agent for said in self.said})

    def _wait(self, at: float, before: set[tuple[str, int]]) -> None:
        self._until(at)
        until = self.now + PATIENCE_S
        while before - {(m.kind(one), one.round) for one in self.sent} and self.now < until:
            self._until(self.now + 0.01)

    def _until(self, when: float) -> None:
        while (due := self.driver.next_due()) is not None and due <= when:
            self.now = max(self.now + 1e-4, due)
            self.driver.tick()
        self.now = max(self.now, when)


class Device(Player):
    """An agent whose trainer makes the update that was recorded."""

    hears = (Direction.EDGE_TO_AGENT,)

    def open(self) -> tuple[Core, Store]:
        config = AgentConfig(
            data_dir=str(self.directory),
            site=SITE,
            seed=1,
            stream="digits",
            price=PriceSettings(base=PRICE, per_compute=0.0),
        )
        core, store = open_agent(
            config, self.me, submit=self._work, pending=lambda _: 0, identity=self.identity
        )
        self.sessions = core.sessions
        self.results: list[Input] = []
        return core, store

    def begin(self) -> list[Input]:
        return [Measured(Readings(compute=1.0)), LinkUp("lan")]

    def others(self) -> tuple[str, ...]:
        return ()

    def _until(self, when: float) -> None:
        while self.results:
            self.driver.receive(self.results.pop(0))
        super()._until(when)

    def change(self, effect: Connect) -> None:
        if isinstance(effect, SubscribeModel):
            self.results.append(Subscribed(effect.edge, effect.digest))

    def _work(self, request: TrainerRequest) -> None:
        if isinstance(request, Open):
            self.results.append(Opened(job=request.job))
        elif isinstance(request, Train):
            mine = (one for one in self.said if sender_of(one) == self.me)
            offer = message_of(next(one for one in mine if one.where.kind == "update"))
            assert isinstance(offer, m.UpdateOffer)
            assert hashlib.sha256(offer.first).hexdigest() == offer.digest, "not in one chunk"
            Path(request.out).write_bytes(offer.first)
            done = {"digest": offer.digest, "size": offer.size, "stats": offer.stats}
            self.results.append(Trained(job=request.job, **done))  # type: ignore[arg-type] # by name


class Edge(Player):
    """An edge aggregator."""

    hears = (Direction.AGENT_TO_EDGE, Direction.COORDINATOR_TO_EDGE)

    def open(self) -> tuple[Core, Store]:
        config = EdgeConfig(data_dir=str(self.directory), site=SITE)
        me = m.EdgeHello(edge=self.me, epoch="e" * 32)
        return open_edge(config, me, now=0.0, boot=BOOT)

    def begin(self) -> list[Input]:
        return [LinkUp("lan"), LinkUp("wan")]


class Coordinator(Player):
    """A coordinator; the run must have the id of the recorded one."""

    hears = (Direction.EDGE_TO_COORDINATOR,)

    def open(self) -> tuple[Core, Store]:
        config = CoordinatorConfig(
            data_dir=str(self.directory), recipe="", site=SITE, wait_agents=2, linger_s=1.0
        )
        return open_coordinator(
            config,
            parse_recipe(self.recipe),
            coordinator=self.me,
            boot=BOOT,
            checkpoint=lambda _: None,
            clock=lambda: self.now,
            clock_ms=lambda: int(self.now * 1000),
            identity=self.identity,
        )

    def begin(self) -> list[Input]:
        return [Start()]
