"""Whole agents with their disks, and edges that call, name neighbours and relay blindly.

Time is simulated; the network loses, delays, reorders and duplicates.
"""

import functools
import sqlite3
from collections import defaultdict
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import msgspec
import numpy as np

from fedagent_agent.books import FILE
from fedagent_agent.config import AgentConfig
from fedagent_agent.core.agent import AgentCore
from fedagent_agent.core.device import Readings
from fedagent_agent.core.effects import Measured
from fedagent_agent.peers.core.node import BpUcbNode
from fedagent_agent.peers.core.records import SlotRecord
from fedagent_agent.store import AgentStore, open_agent
from fedagent_node.data_dir import Identity, load_or_create
from fedagent_node.effects import Connect, Effect, Received, Send
from fedagent_protocol.codec import Direction, decode, encode
from fedagent_protocol.messages import (
    AnyMessage,
    EdgeBeacon,
    EdgeToAgent,
    Neighbours,
    OpinionCall,
    OpinionMode,
    PeerDeliver,
    PeerSend,
    Volunteer,
    Welcome,
)
from fedagent_task.recipe.spec import PeersSpec
from fedagent_testbed.kernel import Kernel
from fedagent_testbed.node import virtual_driver

from .peer_network import Distances

RUN = "ab" * 16
TASK = "cd" * 32
MODEL = "ef" * 32
HALL, YARD = "hall", "yard"
_call = functools.partial(
    OpinionCall, task=TASK, model=MODEL, size=1000, chunk_bytes=1024, mode=OpinionMode.PEERS
)


def read_slots(directory: Path) -> list[SlotRecord]:
    """Return the slots that a device keeps, oldest first."""
    with closing(sqlite3.connect(f"file:{directory / FILE}?mode=ro", uri=True)) as db:
        rows = db.execute("SELECT record FROM slots ORDER BY rowid").fetchall()
    return [msgspec.json.decode(record, type=SlotRecord) for (record,) in rows]


class FleetAgent:
    def __init__(
        self,
        core: AgentCore,
        store: AgentStore,
        me: str,
        out: Callable[[str, Send], None],
        kernel: Kernel,
    ) -> None:
        self.core, self.store = core, store
        self._me, self._out, self._kernel = me, out, kernel
        self.driver = virtual_driver(core, store, kernel, self, me=me)

    def perform(self, effects: list[Effect]) -> None:
        self.driver._handle(lambda _: effects)

    def hear(self, edge: str, message: AnyMessage) -> None:
        self.driver.receive(Received(edge, message, "link", self._kernel.now))

    def measure(self, readings: Readings) -> None:
        self.driver.receive(Measured(readings))

    def send(self, send: Send) -> bool:
        self._out(self._me, send)
        return True

    def change(self, effect: Connect) -> None:
        pass


@dataclass
class PeerFleet:
    """Agents, and what passes between them and their edges.

    `carries` is how many envelopes an edge still carries before it drops them (no entry: all);
    `said` when an agent said that it volunteers: (agent, edge) -> [(now, round)].
    """

    directory: Path
    total: int
    rules: PeersSpec = field(default_factory=PeersSpec)
    seed: int = 0
    carries: dict[str, int] = field(default_factory=dict)
    edges: tuple[str, ...] = (HALL,)
    declared: Distances = field(default_factory=dict)
    kernel: Kernel = field(default_factory=lambda: Kernel(0.0))
    said: dict[tuple[str, str], list[tuple[float, int]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    _booting: bool = False

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)
        made = [load_or_create(self.directory / str(n)) for n in range(self.total)]
        self.identities: dict[str, Identity] = {}
        self.folders: dict[str, Path] = {}
        for n, identity in sorted(enumerate(made), key=lambda pair: pair[1].id):
            self.identities[identity.id] = identity
            self.folders[identity.id] = self.directory / str(n)
        self.ids = list(self.identities)
        self.agents = {me: self._boot(me) for me in self.ids}

    @property
    def now(self) -> float:
        return self.kernel.now

    # ------------------------------------------------------------------ agents

    def _boot(self, me: str) -> FleetAgent:
        config = AgentConfig(
            data_dir=str(self.folders[me]),
            site="here",
            stream="digits",
            seed=self.seed,
            peers=tuple(f"{peer}:{km}" for peer, km in self.declared.get(me, {}).items()),
        )
        core, store = open_agent(
            config,
            me,
            submit=lambda _: None,
            pending=lambda _: 0,
            identity=self.identities[me],
        )
        self._booting = True
        agent = FleetAgent(core, store, me, self._out, self.kernel)
        for edge in self.edges:
            for message in (
                EdgeBeacon(edge=edge, period_ms=60_000),
                Welcome(edge=edge, period_ms=60_000),
            ):
                agent.hear(edge, message)
        self._booting = False
        agent.core.peers.task(TASK, self.rules)
        return agent

    def declare(self, around: Distances) -> None:
        """Have every owner declare its neighbours; all agents start anew."""
        self.declared = around
        self.close()
        self.agents = {me: self._boot(me) for me in self.ids}

    def row(self) -> Distances:
        """A graph in which everybody is next to who comes next."""
        around: Distances = {me: {} for me in self.ids}
        for one, two in pairwise(self.ids):
            around[one][two] = around[two][one] = 1.0
        return around

    def close(self) -> None:
        for agent in self.agents.values():
            agent.store.close()

    def node(self, me: str) -> BpUcbNode:
        found = self.agents[me].core.peers.node
        assert found is not None
        return found

    def silent(self, me: str) -> frozenset[str]:
        return self.node(me).silent

    def slots(self, me: str) -> list[SlotRecord]:
        return read_slots(self.folders[me])

    # ------------------------------------------------------------------- edges

    def tell(self, me: str, message: EdgeToAgent, edge: str = HALL) -> None:
        """Say something to an agent, at once, as the bytes that it would be."""
        self.agents[me].hear(edge, decode(Direction.EDGE_TO_AGENT, encode(message)))

    def name(self, around: Distances, edge: str = HALL) -> None:
        for me, peers in around.items():
            self.tell(me, Neighbours(peers=peers), edge)

    def call(
        self, number: int, *, trained: bool = False, until_s: float = 5.0, run: str = RUN
    ) -> OpinionCall:
        until_ms = round(1000 * until_s)
        return _call(run=run, round=number, until_ms=until_ms, slot=number + 1, trained=trained)

    def begin(
        self,
        me: str,
        number: int,
        opinion: float | None,
        *,
        trained: bool = False,
        edge: str = HALL,
        until_s: float = 5.0,
    ) -> None:
        """Be the evaluator: an agent has its opinion of the model of a round."""
        call, agent = self.call(number, trained=trained, until_s=until_s), self.agents[me]
        agent.perform(agent.core.peers.begin(call, edge, opinion, self.now))

    def slot(
        self,
        number: int,
        opinions: dict[str, float | None],
        *,
        trained: frozenset[str] = frozenset(),
        spread_s: float = 0.1,
        limit_s: float = 5.0,
    ) -> set[str]:
        """Call everybody at all its edges, opinions come within `spread_s`; who volunteers."""
        for me, opinion in opinions.items():
            for edge in self.edges:
                self.tell(me, self.call(number, trained=me in trained, until_s=limit_s), edge)
            self.kernel.after(
                self.rng.uniform(0.0, spread_s),
                lambda me=me, opinion=opinion: self.begin(  # type: ignore[misc]  # bound now
                    me,
                    number,
                    opinion,
                    trained=me in trained,
                    edge=self.edges[0],
                    until_s=limit_s,
                ),
            )
        self.run(limit_s)
        return self.volunteers(number)

    def volunteers(self, number: int) -> set[str]:
        return {me for (me, _), said in self.said.items() if any(n == number for _, n in said)}

    # -------------------------------------------------------------------- time

    def run(self, seconds: float) -> None:
        """Let time pass; every agent is ticked when it wants to be."""
        end = self.now + seconds
        while self.now < end:
            due = {
                me: at
                for me, agent in self.agents.items()
                if (at := agent.driver.next_due()) is not None
            }
            self.kernel.run(until=min([end, *due.values()]), stop=lambda: True)
            for me in sorted(me for me, when in due.items() if when <= self.now):
                self.agents[me].driver.tick()

    def _out(self, me: str, send: Send) -> None:
        match send.message:
            case PeerSend() as message if not self._booting:
                self._carry(me, send.to, message)
            case Volunteer() as message:
                self.said[me, send.to].append((self.now, message.round))

    def _carry(self, me: str, edge: str, message: PeerSend) -> None:
        if self.carries.get(edge, 1) == 0:
            return
        if edge in self.carries:
            self.carries[edge] -= 1
        carried = PeerDeliver(sender=me, body=message.body)
        delay_s = self.rng.uniform(0.002, 0.01)
        self.kernel.after(delay_s, functools.partial(self.tell, message.to, carried, edge))


def around_of(ids: list[str], graph: Distances, names: list[str]) -> Distances:
    real = dict(zip(names, ids, strict=True))
    return {
        real[me]: {real[peer]: far for peer, far in peers.items()} for me, peers in graph.items()
    }
