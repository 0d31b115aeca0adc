"""What passes between agents through the edge: sealed envelopes, and who talks with whom.

The edge cannot read an envelope. It bounds how much each agent sends, and keeps nothing.
"""

import math
from collections import Counter
from dataclasses import dataclass, field

from fedagent_node.effects import Effect, Send
from fedagent_protocol.messages import Neighbours, PeerDeliver, PeerSend
from fedagent_task.spec import PeersSpec

from .neighbours import Graph, Place, near, within
from .sessions import AgentSessions

RATE_BYTES = 256 * 1024
BURST_BYTES = 1024 * 1024
RATE_ENVELOPES = 1000
BURST_ENVELOPES = 4000
"""Of one agent, per second and at once: several times what an honest one sends."""
SOON_S = 0.2
"""How long a change of the graph waits for others: agents come in crowds."""
PER_AGENT_S = 5e-4
"""And longer where many have to be compared."""


@dataclass(slots=True)
class _Allowance:
    at: float
    bytes: float = BURST_BYTES
    envelopes: float = BURST_ENVELOPES

    def take(self, size: int, now: float) -> bool:
        """Note an envelope; False if it is too much."""
        waited = max(0.0, now - self.at)
        self.at = now
        self.bytes = min(BURST_BYTES, self.bytes + waited * RATE_BYTES)
        self.envelopes = min(BURST_ENVELOPES, self.envelopes + waited * RATE_ENVELOPES)
        if self.bytes < size or self.envelopes < 1:
            return False
        self.bytes -= size
        self.envelopes -= 1
        return True


@dataclass(slots=True)
class Relay:
    """Carries envelopes between agents while it is open, and sends them their neighbours."""

    sessions: AgentSessions
    counters: Counter[str]
    spec: PeersSpec = field(default_factory=PeersSpec)
    open: bool = False
    run: str = ""
    _allowed: dict[str, _Allowance] = field(default_factory=dict)
    _graph: Graph = field(default_factory=dict)
    _places: dict[str, Place | None] = field(default_factory=dict)
    _due: float = math.inf

    def begin(self, run: str, spec: PeersSpec, *, open_: bool) -> None:
        """Begin with another run or task, and without anybody's neighbours."""
        self.run, self.spec, self.open = run, spec, open_
        self._graph, self._places, self._due = {}, {}, math.inf
        self._allowed.clear()

    # ----------------------------------------------------------------- envelopes

    def send(self, sender: str, envelope: PeerSend, now: float) -> list[Effect]:
        """Hand an envelope on, or count why not."""
        allowed = self._allowed.get(sender)
        if allowed is None:
            allowed = self._allowed[sender] = _Allowance(now)
        refused = self._refuse(sender, envelope, allowed, now)
        if refused:
            self.counters[refused] += 1
            return []
        self.counters["relayed"] += 1
        return [Send(envelope.to, PeerDeliver(sender=sender, body=envelope.body))]

    def _refuse(self, sender: str, envelope: PeerSend, allowed: _Allowance, now: float) -> str:
        if not self.open:
            return "relay_closed"
        if not allowed.take(len(envelope.body), now):
            return "relay_too_much"
        if envelope.to == sender or not self.sessions.is_present(envelope.to):
            return "relay_absent"
        return ""

    # -------------------------------------------------------------- neighbours

    def changed(self, now: float) -> None:
        """Note that somebody came or went."""
        if self.open and self._due == math.inf:
            self._due = now + SOON_S + PER_AGENT_S * len(self._graph)

    def placed(self, agent: str, now: float) -> None:
        """Note that a context came: a place that is new, or gone, changes who is near.

        An agent that moves keeps its neighbours until the next call, since beliefs converge on
        a graph that stays.
        """
        if agent in self._places:
            placed = self.sessions.place(agent) is not None
            if placed != (self._places[agent] is not None):
                self.changed(now)

    def refresh(self) -> list[Send]:
        """Draw the graph again; return what goes to those whose neighbours changed."""
        self._due = math.inf
        self._places = {a: self.sessions.place(a) for a in self.sessions.present_ids()}
        old, self._graph = self._graph, self._drawn()
        return [
            effect
            for agent, peers in self._graph.items()
            if peers != old.get(agent)
            for effect in self.neighbours_of(agent)
        ]

    def _drawn(self) -> Graph:
        match self.spec.graph:
            case "near":
                return near(self._places, self.spec.neighbours)
            case "radius":
                return within(self._places, self.spec.radius_km)
            case _:
                # The devices know.
                return {agent: {} for agent in self._places}

    def neighbours_of(self, agent: str) -> list[Send]:
        """Return the neighbours of an agent, as far as the graph has it."""
        peers = self._graph.get(agent)
        return [] if peers is None else [Send(agent, Neighbours(run=self.run, peers=peers))]

    def tick(self, now: float) -> list[Send]:
        """Do what is due."""
        return self.refresh() if now >= self._due else []

    def next_due(self) -> float:
        """Return when `tick` is wanted."""
        return self._due
