"""One agent in BP-UCB with nobody in the middle: its slots, and what it exchanges about them.

GDA, Algorithm 2 (ALGORITHMS section 5), as each client runs it. At the start of slot t the agent
scores the model that slot t - 1 ended with. Neighbours exchange beliefs about these opinions;
then each names its index

    Psi = mean opinion + b / N + mu sqrt(ln t / Pi)

and gossip finds the K largest, which volunteer. Only opinions of slots in which the agent trained
count. Who has never trained adds 2, more than any other's mean and belief, so that everybody
trains once first; without a cold start Pi begins at 1, the mean at the first opinion.
"""

import math
from collections.abc import Mapping
from enum import Enum

from fedagent_protocol.messages import OpinionCall
from fedagent_protocol.peers import Envelope

from .beliefs import Beliefs
from .channel import PER_INCARNATION, Jitter, PeerChannel, SlotSettings
from .gossip import Gossip
from .records import ArmStats, SlotRecord

FIRST = 2.0
"""What an agent that has never trained adds to its index (ALGORITHMS section 9)."""
_SLACK = 1e-9


class SlotPhase(Enum):
    """How far the slot is."""

    IDLE = "idle"
    BELIEFS = "beliefs"
    GOSSIP = "gossip"
    DECIDED = "decided"


class BpUcbNode:
    """One agent among neighbours; `chosen` is None while it is undecided whether it volunteers.

    `incarnation` grows with every start and every change of neighbours; an agent that is not
    `available` when it names its index is not chosen.
    """

    def __init__(
        self,
        me: str,
        distances: Mapping[str, float],
        settings: SlotSettings,
        *,
        run: str = "",
        incarnation: int = 1,
        arm: ArmStats | None = None,
    ) -> None:
        self.me = me
        self.distances = distances
        self.run = run
        self.arm = arm or ArmStats()
        self.slot = 0
        self.phase = SlotPhase.IDLE
        self.chosen: bool | None = None
        self.available = True
        self.beliefs = Beliefs(distances, settings)
        self.gossip = Gossip(me, distances, settings)
        self._settings = settings
        self._first_seq = incarnation * PER_INCARNATION
        self._channels = {
            peer: PeerChannel(settings, 0.0, self._first_seq) for peer in sorted(distances)
        }
        self._early: dict[str, Envelope] = {}

    def begin(
        self,
        slot: int,
        opinion: float | None,
        now: float,
        *,
        trained: bool,
        settings: SlotSettings | None = None,
    ) -> None:
        """Start slot t; `trained` says whether this agent's update is in the model.

        An agent that has never had an opinion passes on what others send, and stands aside;
        one that has none now stands with its mean. A slot that is over or running does not
        begin again. `settings` hold from now on: slots may differ in the time they have.
        """
        if slot <= self.slot:
            return
        if settings is not None:
            self._settings = self.beliefs.settings = self.gossip.settings = settings
        if opinion is not None:
            opinion = max(0.0, min(opinion, 1.0)) if math.isfinite(opinion) else None
        self.slot, self.phase, self.chosen = slot, SlotPhase.BELIEFS, None
        cold_start = self._settings.cold_start
        self.arm = self.arm.after(slot, opinion, trained=trained, cold_start=cold_start)
        for peer, channel in self._channels.items():
            self._channels[peer] = channel.next_slot(self._settings, now, self._first_seq)
        self.gossip.begin(slot, ceiling=2.0 + FIRST + self._bonus(1) + _SLACK)
        self.beliefs.begin(opinion, now)
        early, self._early = self._early, {}
        for peer, envelope in early.items():
            self.receive(peer, envelope, now)
        self._schedule(now)

    def receive(self, peer: str, envelope: Envelope, now: float) -> None:
        """Take a neighbour's envelope; it was opened with that neighbour's key."""
        channel = self._channels.get(peer)
        if channel is None or envelope.run != self.run:
            return
        if envelope.slot > self.slot:
            # The neighbour is ahead; unanswered, it would repeat this until we are there.
            known = self._early.get(peer)
            if known is None or (known.slot, known.seq) < (envelope.slot, envelope.seq):
                self._early[peer] = envelope
        elif envelope.slot == self.slot > 0:
            self._take(peer, channel, envelope, now)
            self._schedule(now)

    def _take(self, peer: str, channel: PeerChannel, envelope: Envelope, now: float) -> None:
        stage = min(envelope.stage, self._settings.stages)
        if stage > self.gossip.stage:
            self._go_on(stage, now)
        fresh = channel.receive(envelope.seq, envelope.ack, now)
        self.beliefs.silence(peer, now, silent=False)
        self.gossip.silence(peer, silent=False)
        for part in (self.beliefs, self.gossip):
            if channel.restarted:
                part.forget(peer)
            else:
                part.confirm(peer, channel.acked)
        if fresh and envelope.belief is not None:
            self.beliefs.receive(peer, envelope.belief, now)
        if envelope.gossip is not None:
            # Facts are joined, so that it does not matter which envelope they came in.
            self.gossip.receive(peer, envelope.gossip, stage)
        # Before the acknowledgement can leave: its reader has to know that this agent goes on.
        self._rest(now)

    def tick(self, now: float, rng: Jitter) -> list[tuple[str, Envelope]]:
        """Go on; return the envelopes that are due, (neighbour, envelope)."""
        if self.phase is SlotPhase.IDLE:
            return []
        for peer, channel in self._channels.items():
            if channel.falls_silent(now):
                self.beliefs.silence(peer, now, silent=True)
                self.gossip.silence(peer, silent=True)
        if self.phase is SlotPhase.BELIEFS:
            self._rest(now)
        if self.phase is SlotPhase.BELIEFS and (self.gossip.all_rest or now >= self.beliefs.limit):
            self.phase = SlotPhase.GOSSIP
            self.gossip.speak(self.index if self.available else None, min(now, self.beliefs.limit))
        if self.phase is SlotPhase.GOSSIP and now >= self.gossip.done_at:
            stage = self.gossip.stage + 1
            if stage <= self._settings.stages and self.gossip.in_doubt(self.beliefs.tolerance):
                self._go_on(stage, now)
            else:
                self._decide()
        self._schedule(now)
        envelopes = []
        for peer, channel in self._channels.items():
            stamp = channel.stamp(now, rng)
            if stamp is not None:
                envelopes.append((peer, self._envelope(peer, *stamp)))
        return envelopes

    @property
    def due(self) -> float:
        """When `tick` is wanted although nothing came; inf: never."""
        if self.phase is SlotPhase.IDLE:
            return math.inf
        ripe = math.inf
        if self.phase is SlotPhase.BELIEFS:
            still_at = self.beliefs.still_at
            if self.gossip.rests:
                still_at = -math.inf if self.gossip.all_rest else math.inf
            ripe = min(self.beliefs.limit, still_at)
        elif self.phase is SlotPhase.GOSSIP:
            ripe = self.gossip.done_at
        return min([ripe, *(channel.due for channel in self._channels.values())])

    @property
    def index(self) -> float | None:
        """Psi as it is now; None without an opinion. For this agent and sealed envelopes only."""
        if self.arm.mean is None:
            return None
        pulls = max(self.arm.pulls, self.arm.chosen)
        index = self.arm.mean + self.beliefs.belief / self.gossip.agents + self._bonus(pulls)
        return index + FIRST * (self._settings.cold_start and self.arm.comes_first)

    @property
    def is_early(self) -> bool:
        """Beliefs are still exchanged: nothing depends on them yet."""
        return self.phase is SlotPhase.BELIEFS and not self.gossip.stage

    @property
    def best(self) -> list[str]:
        """The K best as far as is known, best first."""
        return [rank.agent for rank in self.gossip.best]

    @property
    def silent(self) -> frozenset[str]:
        """Neighbours that are left out."""
        return frozenset(peer for peer, channel in self._channels.items() if channel.dropped)

    def record(self, call: OpinionCall, opinion: float | None) -> SlotRecord:
        """Return what the owner of *this* device may see of the slot; it must not leave it."""
        named = self.phase in (SlotPhase.GOSSIP, SlotPhase.DECIDED)
        return SlotRecord(
            run=self.run,
            round=call.round,
            slot=self.slot,
            opinion=opinion,
            trained=call.trained,
            mean=self.arm.mean,
            pulls=self.arm.pulls,
            belief=self.beliefs.belief if named else None,
            index=self.index if named else None,
            chosen=self.chosen,
            best=tuple(self.best),
            agents=self.gossip.agents,
        )

    def _go_on(self, stage: int, now: float) -> None:
        """Begin a stage: beliefs go on at a smaller tolerance, then all name their index anew."""
        self.phase = SlotPhase.BELIEFS
        self.gossip.go_on(stage)
        self.beliefs.refine(self._settings.tolerance * self._settings.finer**stage, now)

    def _decide(self) -> None:
        self.phase = SlotPhase.DECIDED
        if self.chosen is None:  # who has volunteered stays with it
            self.chosen = self.me in self.best
            self.arm = self.arm.decided(self.slot, chosen=self.chosen)

    def _rest(self, now: float) -> None:
        beliefs = self.beliefs
        ripe = self.gossip.rests or now >= beliefs.still_at
        self.gossip.rest(still=ripe and beliefs.converged)

    def _schedule(self, now: float) -> None:
        for peer, channel in self._channels.items():
            if self.beliefs.unsent(peer):
                channel.wants_state(now)
            elif self.gossip.unsent(peer):
                channel.wants_state(now + channel.stretched(self.gossip.hold_s(peer)))
            else:
                channel.wants_state(None)

    def _envelope(self, peer: str, seq: int, ack: int) -> Envelope:
        if not seq:
            news = self.gossip.news(peer)
            return Envelope(
                run=self.run, slot=self.slot, ack=ack, gossip=news, stage=self.gossip.stage
            )
        return Envelope(
            run=self.run,
            slot=self.slot,
            seq=seq,
            ack=ack,
            belief=self.beliefs.message(peer, seq, refine=self.phase is SlotPhase.BELIEFS),
            gossip=self.gossip.message(peer, seq),
            stage=self.gossip.stage,
        )

    def _bonus(self, pulls: int) -> float:
        return self._settings.mu * math.sqrt(math.log(max(self.slot, 1)) / max(pulls, 1))
