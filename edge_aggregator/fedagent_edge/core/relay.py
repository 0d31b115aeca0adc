"""What passes between agents through the edge: sealed envelopes, and who talks with whom.

The edge cannot read an envelope. It carries them while a call is open, and between neighbours:
those that it has named, or, where devices know theirs, who writes to each other. It bounds how
much each agent sends, and is sent; and keeps nothing.
"""

import itertools
import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from fedagent_node.effects import Effect, Send
from fedagent_protocol.messages import (
    MAX_NEIGHBOURS,
    MAX_PEER_BYTES,
    Neighbours,
    PeerDeliver,
    PeerSend,
)
from fedagent_task.recipe.spec import PeersSpec

from .neighbours import Graph, Place, near, within
from .sessions import AgentSessions

RATE_BYTES = 256 * 1024
BURST_BYTES = 1024 * 1024
RATE_ENVELOPES = 1000
BURST_ENVELOPES = 4000
"""Of one agent, per second and at once: several times what an honest one sends."""
INBOX_S = 8.0
INBOX_BYTES = 4 * BURST_BYTES
"""What the neighbours of one agent together may send it in this time, each as much."""
OVERHEAD_BYTES = 256
"""What an envelope costs its receiver beside its bytes."""
CARD_BYTES = 1024
CARDS_BYTES = 64 * CARD_BYTES
"""What one, and all together, may send in this time to an agent that has not written to them yet:
where devices know their neighbours, one of two has to write first."""
LINGER_S = 5.0
"""How long after a call what is under way may arrive: who is not answered takes it for silence."""
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
    """In a call, names each agent its neighbours, and carries envelopes between them."""

    sessions: AgentSessions
    counters: Counter[str]
    spec: PeersSpec = field(default_factory=PeersSpec)
    run: str = ""
    _allowed: dict[str, _Allowance] = field(default_factory=dict)
    _had: Counter[tuple[str, str]] = field(default_factory=Counter)
    """What each receiver had of each sender until the next time it is counted from nothing."""
    _had_until: float = -math.inf
    _called_until: float = -math.inf
    _met: dict[str, dict[str, None]] = field(default_factory=dict)
    """Whom each was named in this call: a slot that has begun may go on with its neighbours.

    Where devices know their neighbours: whom each has written to in this run.
    """
    _graph: Graph = field(default_factory=dict)
    _places: dict[str, Place | None] = field(default_factory=dict)
    _due: float = math.inf

    def begin(self, run: str, spec: PeersSpec) -> None:
        """Begin with another run or task, and without anybody's neighbours."""
        self.run, self.spec = run, spec
        self._graph, self._places, self._due = {}, {}, math.inf
        self._met, self._called_until = {}, -math.inf

    def call(self, until: float) -> None:
        """Draw everybody's neighbours for a call, and carry envelopes until it is over."""
        self._called_until = until + LINGER_S
        if self.spec.graph != "declared":
            self._met = {}
        self.refresh()

    def call_ended(self, now: float) -> None:
        """Carry no more than what is under way."""
        self._called_until = min(self._called_until, now + LINGER_S)

    def is_open(self, now: float) -> bool:
        """Whether there is a call, or one is just over."""
        return now < self._called_until

    # ----------------------------------------------------------------- envelopes

    def send(self, sender: str, envelope: PeerSend, now: float) -> list[Effect]:
        """Hand an envelope on, or count why not."""
        if now >= self._had_until:
            self._had, self._had_until = Counter(), now + INBOX_S
            whole_s = BURST_BYTES / RATE_BYTES
            self._allowed = {a: one for a, one in self._allowed.items() if now < one.at + whole_s}
        refused = self._refuse(sender, envelope, now)
        if refused:
            self.counters[refused] += 1
            return []
        self.counters["relayed"] += 1
        return [Send(envelope.to, PeerDeliver(sender=sender, body=envelope.body))]

    def _refuse(self, sender: str, envelope: PeerSend, now: float) -> str:
        to, size = envelope.to, len(envelope.body)
        if not self.is_open(now):
            return "relay_closed"
        if not self._allowed.setdefault(sender, _Allowance(now)).take(size, now):
            return "relay_too_much"
        if to == sender or not self.sessions.is_present(to):
            return "relay_absent"
        if self.spec.graph == "declared" and to not in self._met.get(sender, ()):
            self._met[sender] = self._met_by(sender, (to,))
        return self._weigh(sender, to, size + OVERHEAD_BYTES)

    def _weigh(self, sender: str, to: str, size: int) -> str:
        """Note what a receiver gets, or return why it is too much of this sender."""
        theirs = self._met.get(to, {})
        had = self._had[to, sender] + size
        if sender in theirs:
            if had > max(MAX_PEER_BYTES + OVERHEAD_BYTES, INBOX_BYTES // len(theirs)):
                return "relay_crowded"
        elif self.spec.graph == "declared" and had <= CARD_BYTES:
            if self._had[to, ""] + size > CARDS_BYTES:
                return "relay_stranger"
            self._had[to, ""] += size
        else:
            return "relay_stranger"
        self._had[to, sender] = had
        return ""

    # -------------------------------------------------------------- neighbours

    def changed(self, now: float) -> None:
        """Note that somebody came or went."""
        if self.is_open(now) and self._due == math.inf:
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
        # Who is gone may be back in this call, and its neighbours go on writing to it.
        gone = {a: met for a, met in self._met.items() if self.sessions.has_place(a)}
        self._met = gone | {a: self._met_by(a, peers) for a, peers in self._graph.items()}
        return [
            effect
            for agent, peers in self._graph.items()
            if peers != old.get(agent)
            for effect in self.neighbours_of(agent)
        ]

    def _met_by(self, agent: str, peers: Iterable[str]) -> dict[str, None]:
        """Return whom an agent has met, the newest first, and not all for ever."""
        met = dict.fromkeys(peers) | self._met.get(agent, {})
        return dict(itertools.islice(met.items(), 2 * MAX_NEIGHBOURS))

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
