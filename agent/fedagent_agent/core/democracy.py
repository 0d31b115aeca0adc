"""A slot's life of one agent in democratized analytics: BP-UCB with nobody in the middle.

GDA, Algorithm 2 (ALGORITHMS section 5), as each client runs it. At the start of slot t the
agent scores the model that slot t - 1 ended with. Neighbours exchange beliefs about these
opinions; then each names its index

    Psi = mean opinion + b / N + mu sqrt(ln t / Pi)

and gossip finds the K largest. Whoever is among them volunteers; that word is all that
leaves towards an edge. Opinions, beliefs, indices and counts leave only in `Tell`, whose
letter is for one neighbour and has to be sealed.

Pi starts at 1 with the opinion of the initial model as mean; afterwards only opinions of
slots in which the agent trained count.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from fedagent_protocol.peers import BeliefNote, GossipNote, Letter, PeerNote

from .beliefs import BeliefNode
from .gossip import Gossip
from .line import Jitter
from .peer_records import Standing
from .peer_settings import BeliefSettings, GossipSettings, PeerSettingError

__all__ = [
    "DemocracySettings",
    "Democrat",
    "Effect",
    "Phase",
    "StandAside",
    "Standing",
    "Tell",
    "Volunteer",
]

_SLACK = 1e-9


@dataclass(frozen=True, slots=True)
class Tell:
    """Send a letter to a neighbour, sealed."""

    peer: str
    letter: Letter


@dataclass(frozen=True, slots=True)
class Volunteer:
    """Tell the coordinator that this agent trains in the slot; nothing more."""

    slot: int


@dataclass(frozen=True, slots=True)
class StandAside:
    """This agent does not train in the slot; nobody needs to be told."""

    slot: int


Effect = Tell | Volunteer | StandAside


class Phase(Enum):
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
class Democrat:
    """One agent among neighbours.

    Args:
        me: Its id.
        distances: Its neighbours and how far they are.
        settings: Of the task.
        run: Run of the letters, 32 hex digits.
        starts: How often this agent has started; grows.
        standing: What it kept.

    Attributes:
        phase: How far the slot is.
        stands: Whether it may be chosen when it names its index.
        counters: Letters that were not used, by reason.
    """

    me: str
    distances: Mapping[str, float]
    settings: DemocracySettings = field(default_factory=DemocracySettings)
    run: str = ""
    starts: int = 1
    standing: Standing = field(default_factory=Standing)
    phase: Phase = Phase.IDLE
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
        self.phase = Phase.BELIEFS
        self._gossip.begin(slot, now, ceiling=2.0 + self._bonus(slot, 1) + _SLACK)
        self._beliefs.begin(slot, opinion, now)

    def receive(self, peer: str, letter: Letter, now: float) -> None:
        """Take a neighbour's letter; it was opened with that neighbour's key."""
        if letter.run != self.run:
            self._count("run")
            return
        for note in letter.notes:
            match note:
                case BeliefNote():
                    self._beliefs.receive(peer, note, now)
                case GossipNote():
                    self._gossip.receive(peer, note, now)

    def tick(self, now: float, rng: Jitter) -> list[Effect]:
        """Go on: letters that are due, and the decision when it is ripe."""
        if self.phase is Phase.IDLE:
            return []
        decision: list[Effect] = []
        wanting = self._beliefs.wants(now) | self._gossip.wants(now)
        if self.phase is Phase.BELIEFS and self._beliefs.done(now):
            self.phase = Phase.GOSSIP
            self._gossip.speak(self.index if self.stands else None, now)
            wanting |= self._gossip.wants(now)
        if self.phase is Phase.GOSSIP and self._gossip.done(now):
            self.phase = Phase.DECIDED
            chosen = self.me in {agent for _, agent in self._gossip.best}
            decision = [Volunteer(self.slot) if chosen else StandAside(self.slot)]
        letters = (self._letter(peer, now, rng) for peer in sorted(wanting))
        return [*(tell for tell in letters if tell is not None), *decision]

    @property
    def due(self) -> float:
        """When `tick` is wanted although nothing came; inf: never."""
        if self.phase is Phase.IDLE:
            return math.inf
        ripe = math.inf
        if self.phase is Phase.BELIEFS:
            ripe = self._beliefs.done_at
        elif self.phase is Phase.GOSSIP:
            ripe = self._gossip.done_at
        return min(ripe, self._beliefs.due, self._gossip.due)

    @property
    def slot(self) -> int:
        """The slot that is running; 0 before the first."""
        return self._beliefs.slot

    @property
    def index(self) -> float | None:
        """Psi as it is now; None without an opinion. For this agent and sealed letters only."""
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

    def _letter(self, peer: str, now: float, rng: Jitter) -> Tell | None:
        """Return one letter with all that the neighbour should be told now."""
        found: tuple[PeerNote | None, ...] = (
            self._beliefs.note(peer, now, rng),
            self._gossip.note(peer, now, rng),
        )
        notes = tuple(note for note in found if note is not None)
        return Tell(peer, Letter(run=self.run, notes=notes)) if notes else None

    def _bonus(self, slot: int, pulls: int) -> float:
        return self.settings.mu * math.sqrt(math.log(max(slot, 1)) / max(pulls, 1))

    def _count(self, reason: str) -> None:
        self.counters[reason] = self.counters.get(reason, 0) + 1
