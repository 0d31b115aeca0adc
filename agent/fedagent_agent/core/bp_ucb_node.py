"""A slot's life of one agent in democratized analytics: BP-UCB with nobody in the middle.

GDA, Algorithm 2 (ALGORITHMS section 5), as each client runs it. At the start of slot t the
agent scores the model that slot t - 1 ended with. Neighbours exchange beliefs about these
opinions; then each names its index

    Psi = mean opinion + b / N + mu sqrt(ln t / Pi)

and gossip finds the K largest. Whoever is among them volunteers; that word is all that
leaves towards an edge. Opinions, beliefs, indices and counts leave only in `SendEnvelope`, whose
envelope is for one neighbour and has to be sealed.

Pi starts at 1 with the opinion of the initial model as mean; afterwards only opinions of
slots in which the agent trained count.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from fedagent_protocol.peers import BeliefNote, Envelope, GossipNote, PeerNote

from .beliefs import BeliefNode
from .gossip import Gossip
from .peer_channel import Jitter
from .peer_records import ArmStats
from .peer_settings import BeliefSettings, GossipSettings, PeerSettingError

__all__ = [
    "ArmStats",
    "BpUcbNode",
    "DemocracySettings",
    "Effect",
    "SendEnvelope",
    "SlotPhase",
    "StandAside",
    "Volunteer",
]

_SLACK = 1e-9


@dataclass(frozen=True, slots=True)
class SendEnvelope:
    """Send an envelope to a neighbour, sealed."""

    peer: str
    envelope: Envelope


@dataclass(frozen=True, slots=True)
class Volunteer:
    """Tell the coordinator that this agent trains in the slot; nothing more."""

    slot: int


@dataclass(frozen=True, slots=True)
class StandAside:
    """This agent does not train in the slot; nobody needs to be told."""

    slot: int


Effect = SendEnvelope | Volunteer | StandAside


class SlotPhase(Enum):
    """How far the slot is."""

    IDLE = "idle"
    BELIEFS = "beliefs"
    GOSSIP = "gossip"
    DECIDED = "decided"


@dataclass(frozen=True, slots=True)
class DemocracySettings:
    """What a task says about democratized analytics.

    Attributes:
        mu: Weight of exploration.
        beliefs, gossip: Bounds; K is `gossip.keep`.
    """

    mu: float = 0.01
    beliefs: BeliefSettings = field(default_factory=BeliefSettings)
    gossip: GossipSettings = field(default_factory=GossipSettings)

    def __post_init__(self) -> None:
        """Refuse an index that cannot be compared."""
        if not (math.isfinite(self.mu) and self.mu >= 0):
            raise PeerSettingError("mu", self.mu, "must be finite and >= 0")


@dataclass(slots=True)
class BpUcbNode:
    """One agent among neighbours.

    Args:
        me: Its id.
        distances: Its neighbours and how far they are.
        settings: Of the task.
        run: Run of the envelopes, 32 hex digits.
        starts: How often this agent has started; grows.
        standing: What it kept.

    Attributes:
        phase: How far the slot is.
        stands: Whether it may be chosen when it names its index.
        counters: Envelopes that were not used, by reason.
    """

    me: str
    distances: Mapping[str, float]
    settings: DemocracySettings = field(default_factory=DemocracySettings)
    run: str = ""
    starts: int = 1
    standing: ArmStats = field(default_factory=ArmStats)
    phase: SlotPhase = SlotPhase.IDLE
    stands: bool = True
    counters: dict[str, int] = field(default_factory=dict)
    _beliefs: BeliefNode = field(init=False)
    _gossip: Gossip = field(init=False)

    def __post_init__(self) -> None:
        """Know the neighbours."""
        there = frozenset(self.distances)
        self._beliefs = BeliefNode(self.distances, self.settings.beliefs, self.starts)
        self._gossip = Gossip(self.me, there, self.settings.gossip, self.starts)

    def begin(
        self,
        slot: int,
        opinion: float | None,
        now: float,
        *,
        trained: bool,
        settings: DemocracySettings | None = None,
    ) -> None:
        """Start slot t; `trained` says whether this agent's update is in the model.

        An agent that has never had an opinion passes on what others say, and stands aside;
        one that has none now stands with its mean. A slot that is over or running does not
        begin again. `settings` are from now on others: slots may differ in the time they have.
        """
        if slot <= self._beliefs.slot:
            self._count("begun")
            return
        if settings is not None:
            self.settings = settings
            self._beliefs.settings, self._gossip.settings = settings.beliefs, settings.gossip
        if opinion is not None:
            opinion = max(0.0, min(opinion, 1.0)) if math.isfinite(opinion) else None
        self.standing = self.standing.after(slot, opinion, trained=trained)
        self.phase = SlotPhase.BELIEFS
        self._gossip.begin(slot, now, ceiling=2.0 + self._bonus(slot, 1) + _SLACK)
        self._beliefs.begin(slot, opinion, now)

    def receive(self, peer: str, envelope: Envelope, now: float) -> None:
        """Take a neighbour's envelope; it was opened with that neighbour's key."""
        if envelope.run != self.run:
            self._count("run")
            return
        for note in envelope.notes:
            match note:
                case BeliefNote():
                    self._beliefs.receive(peer, note, now)
                case GossipNote():
                    self._gossip.receive(peer, note, now)

    def tick(self, now: float, rng: Jitter) -> list[Effect]:
        """Go on: envelopes that are due, and the decision when it is ripe."""
        if self.phase is SlotPhase.IDLE:
            return []
        decision: list[Effect] = []
        wanting = self._beliefs.wants(now) | self._gossip.wants(now)
        if self.phase is SlotPhase.BELIEFS and self._beliefs.done(now):
            self.phase = SlotPhase.GOSSIP
            self._gossip.speak(self.index if self.stands else None, now)
            wanting |= self._gossip.wants(now)
        if self.phase is SlotPhase.GOSSIP and self._gossip.done(now):
            self.phase = SlotPhase.DECIDED
            chosen = self.me in {agent for _, agent in self._gossip.best}
            decision = [Volunteer(self.slot) if chosen else StandAside(self.slot)]
        envelopes = (self._envelope(peer, now, rng) for peer in sorted(wanting))
        return [*(tell for tell in envelopes if tell is not None), *decision]

    @property
    def due(self) -> float:
        """When `tick` is wanted although nothing came; inf: never."""
        if self.phase is SlotPhase.IDLE:
            return math.inf
        ripe = math.inf
        if self.phase is SlotPhase.BELIEFS:
            ripe = self._beliefs.done_at
        elif self.phase is SlotPhase.GOSSIP:
            ripe = self._gossip.done_at
        return min(ripe, self._beliefs.due, self._gossip.due)

    @property
    def slot(self) -> int:
        """The slot that is running; 0 before the first."""
        return self._beliefs.slot

    @property
    def index(self) -> float | None:
        """Psi as it is now; None without an opinion. For this agent and sealed envelopes only."""
        if self.standing.mean is None:
            return None
        belief = self._beliefs.belief / self._gossip.agents
        return self.standing.mean + belief + self._bonus(self.slot, self.standing.pulls)

    @property
    def chosen(self) -> list[str]:
        """The K best as far as is known, best first."""
        return [agent for _, agent in self._gossip.best]

    @property
    def notices(self) -> dict[str, float]:
        """What an operator of *this* device may see of the slot; it must not leave the device."""
        return {
            "slot": float(self.slot),
            "bp_sweeps": float(self._beliefs.sweeps),
            "exchanges": float(self._gossip.exchanges),
            "bp_residual": self._beliefs.residual,
            "belief": self._beliefs.belief,
            "agents": float(self._gossip.agents),
            "silent_neighbours": float(len(self._beliefs.silent | self._gossip.silent)),
        }

    def _envelope(self, peer: str, now: float, rng: Jitter) -> SendEnvelope | None:
        """Return one envelope with all that the neighbour should be told now."""
        found: tuple[PeerNote | None, ...] = (
            self._beliefs.note(peer, now, rng),
            self._gossip.note(peer, now, rng),
        )
        notes = tuple(note for note in found if note is not None)
        return SendEnvelope(peer, Envelope(run=self.run, notes=notes)) if notes else None

    def _bonus(self, slot: int, pulls: int) -> float:
        return self.settings.mu * math.sqrt(math.log(max(slot, 1)) / max(pulls, 1))

    def _count(self, reason: str) -> None:
        self.counters[reason] = self.counters.get(reason, 0) + 1
