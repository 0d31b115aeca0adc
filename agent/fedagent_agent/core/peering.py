"""Democratized analytics on a device: calls in, sealed envelopes out, and one word.

A call of mode ``peers`` begins a slot (docs/democratized.md). `Democrat` does what GDA
says; here are the neighbours that edges name or the owner declares, the ways to them, the
time that a slot has, the word `Volunteer` until it was heard, and what is kept.

What leaves in the open is `Volunteer`, with run and round, and cards, which are public.
Everything else is in sealed envelopes.
"""

import math
from collections import Counter, OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from fedagent_protocol.messages import (
    Neighbours,
    OpinionCall,
    OpinionMode,
    PeerDeliver,
    TrainOrder,
    Volunteer,
)
from fedagent_task.spec import PeersSpec

from .bp_ucb_node import ArmStats, BpUcbNode, DemocracySettings, SendEnvelope, SlotPhase, StandAside
from .effects import Effect, Send, StoreSlot
from .peer_channel import Jitter
from .peer_records import SlotRecord
from .peer_settings import BeliefSettings, GossipSettings
from .peer_transport import PeerTransport, Seal

RESEND_S = 1.0
FIRST_RESEND_S = 2.0
"""How long after the end of a call the word may still be of use."""
NAMES_WAIT_S = 1.0
"""How long a slot waits for an edge to name the neighbours."""
MAX_AROUND = 64
MAX_EDGES = 64
"""Edges whose lists of neighbours are remembered."""
MAX_REWIRED = 4
"""New wirings within one slot; later ones wait for the next."""
_REMEMBERED = 16
_MIN_S = 0.5
K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class PeeringSettings:
    """What a device brings.

    Attributes:
        me: Its id.
        life: Larger than every life before.
        declared: Neighbours that its owner names, and how far they are.
    """

    me: str
    incarnation: int
    declared: Mapping[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class _Slot:
    """A call that this agent takes part in.

    Attributes:
        ends: Edges that have called, and until when they listen.
        say_at: When each is to be told the word.
        started: Neighbours are known, and talk has begun.
        rewired: How often neighbours have changed since.
    """

    call: OpinionCall
    rules: PeersSpec
    opinion: float | None
    begun: float
    ends: dict[str, float]
    say_at: dict[str, float] = field(default_factory=dict)
    started: bool = False
    rewired: int = 0
    record: SlotRecord | None = None

    @property
    def names_at(self) -> float:
        """When the slot starts although an edge has named nobody."""
        remaining = max(self.ends.values()) - self.begun
        return self.begun + max(0.0, min(NAMES_WAIT_S, 0.2 * remaining))


class Peering:
    """One agent among its neighbours, slot after slot, run after run.

    Args:
        settings: What the device brings.
        seal: Its keys of this start.
        rng: Seeded; spreads repeats in time, nothing else.
        kept: Standings as they survived the last process, by run.
        counters: Of the agent; reasons begin with ``peer_``.

    Attributes:
        available: The owner's rules allow work; else it stands aside and says no word.
    """

    def __init__(
        self,
        settings: PeeringSettings,
        seal: Seal,
        rng: Jitter,
        *,
        kept: Mapping[str, ArmStats],
        counters: Counter[str],
    ) -> None:
        self.counters = counters
        self.available = True
        self._settings = settings
        self._rng = rng
        self._life = settings.incarnation
        self._post = PeerTransport(seal, counters)
        self._kept = OrderedDict(kept)
        self._rules: OrderedDict[str, PeersSpec] = OrderedDict()
        self._called: OrderedDict[tuple[str, int], dict[str, float]] = OrderedDict()
        self._newest: OrderedDict[str, int] = OrderedDict()
        self._named: OrderedDict[str, dict[str, float]] = OrderedDict()
        self._slot: _Slot | None = None
        self._node: BpUcbNode | None = None

    # ------------------------------------------------------------- what comes in

    def task(self, digest: str, rules: PeersSpec) -> None:
        """Take in what a task says of peers; needed before a call of it begins."""
        _note(self._rules, digest, rules)

    def called(self, call: OpinionCall, edge: str, now: float) -> list[Effect]:
        """Take in that an edge has called, before there is an opinion: time runs from here."""
        if call.mode is not OpinionMode.PEERS:
            return []
        ends = self._called.get((call.run, call.round), {})
        _note(self._called, (call.run, call.round), ends)
        ends[edge] = now + call.until_ms / 1000
        effects = self._admit(now)
        slot = self._slot
        if slot is None or slot.ends is not ends:
            return effects
        if slot.record is not None and slot.record.chosen and slot.say_at:
            slot.say_at.setdefault(edge, now)  # another edge of the same slot
        return effects + self._rewire(now)

    def begin(
        self, call: OpinionCall, edge: str, opinion: float | None, now: float
    ) -> list[Effect]:
        """Begin the slot of a call with this agent's opinion; None: it has none.

        The same call again, also by another edge, begins nothing anew.
        """
        effects: list[Effect] = []
        if edge not in self._called.get((call.run, call.round), {}):
            effects = self.called(call, edge, now)
        rules = self._rules.get(call.task)
        if rules is None:
            self.counters["peer_no_task"] += 1
            return effects
        if call.round <= self._newest.get(call.run, -1):
            return effects
        _note(self._newest, call.run, call.round)
        effects += self.leave(now)
        if opinion is not None and not math.isfinite(opinion):
            opinion = None
        ends = self._called[call.run, call.round]
        self._slot = _Slot(call, rules, opinion, now, ends)
        return effects + self._admit(now) + self._try(now)

    def neighbours(self, edge: str, message: Neighbours, now: float) -> list[Effect]:
        """Take in whom an edge names; the newest list replaces those before it."""
        named = {peer: far for peer, far in message.peers.items() if peer != self._settings.me}
        if self._named.get(edge) == named:
            return []
        _note(self._named, edge, named, MAX_EDGES)
        return self._admit(now) + self._rewire(now) + self._try(now)

    def deliver(self, edge: str, message: PeerDeliver, now: float) -> list[Effect]:
        """Take in what a neighbour has sent through an edge.

        Raises:
            ProtocolError: It is no envelope.
        """
        effects, envelope = self._post.receive(edge, message, now)
        if envelope is None:
            return effects
        if self._node is None:
            self.counters["peer_early"] += 1
            return effects
        self._node.receive(message.sender, envelope, now)
        return effects + self._go(now)

    def ordered(self, order: TrainOrder) -> None:
        """Take in an order: one of a later round says that the word was heard."""
        slot = self._slot
        if slot is not None and order.run == slot.call.run and order.round > slot.call.round:
            slot.say_at.clear()

    # ---------------------------------------------------------------------- time

    def tick(self, now: float) -> list[Effect]:
        """Let time pass."""
        return self._try(now) + self._go(now) + self._volunteer_again(now)

    @property
    def due(self) -> float:
        """When `tick` is wanted although nothing came; inf: never."""
        due = self._node.due if self._node is not None else math.inf
        slot = self._slot
        if slot is None:
            return due
        return min(due, *slot.say_at.values(), math.inf if slot.started else slot.names_at)

    # ---------------------------------------------------------------- neighbours

    def _around(self, rules: PeersSpec, edges: Mapping[str, float]) -> dict[str, float]:
        """Return the neighbours of a slot and how far they are; the nearest, if too many."""
        if rules.graph == "declared":
            found = dict(self._settings.declared)
        else:
            found = {}
            for edge in sorted(edges):
                for peer, far in self._named.get(edge, {}).items():
                    found[peer] = min(far, found.get(peer, math.inf))
        nearest = sorted(found.items(), key=lambda item: (item[1], item[0]))[:MAX_AROUND]
        return dict(sorted(nearest))

    def _admit(self, now: float) -> list[Effect]:
        """Know everybody who may be talked with, in this slot or the next."""
        # Also of the slot that runs: a call of another run must not take its envelopes away.
        here = self._slot.ends if self._slot is not None else {}
        calling = tuple(sorted({*here, *next(reversed(self._called.values()), {})}))
        ways = dict.fromkeys(self._settings.declared, calling)
        for edge, named in sorted(self._named.items()):
            for peer in named:
                ways[peer] = (*(way for way in ways.get(peer, ()) if way != edge), edge)
        # An edge that does not call any more may be gone without a word.
        ways = {
            peer: tuple(way for way in edges if way in calling) or edges
            for peer, edges in ways.items()
        }
        if self._node is not None:
            ways = dict.fromkeys(self._node.distances, calling) | ways
        return self._post.admit(ways, now)

    def _rewire(self, now: float) -> list[Effect]:
        """Begin a slot anew whose neighbours have changed, unless it is too late for it."""
        slot, node = self._slot, self._node
        if slot is None or node is None or not slot.started:
            return []
        if node.phase is not SlotPhase.BELIEFS or slot.rewired >= MAX_REWIRED:
            return []
        if self._around(slot.rules, slot.ends) == node.distances:
            return []
        slot.rewired += 1
        return self._start(slot, now)

    # ---------------------------------------------------------------------- slot

    def _try(self, now: float) -> list[Effect]:
        """Start the slot that waits, once its neighbours are known or it has waited enough."""
        slot = self._slot
        if slot is None or slot.started:
            return []
        known = slot.rules.graph == "declared" or all(edge in self._named for edge in slot.ends)
        if not known and now < slot.names_at:
            return []
        self._post.reset()
        slot.started = True
        return self._start(slot, now)

    def _start(self, slot: _Slot, now: float) -> list[Effect]:
        call, node = slot.call, self._node
        number = call.slot + 1
        around = self._around(slot.rules, slot.ends)
        settings = _settings_of(slot.rules, max(slot.ends.values()) - now)
        same = node is not None and node.run == call.run
        if node is None or not same or node.distances != around or node.slot >= number:
            if same:
                # Neighbours take it for a restart, and tell again what was lost with it.
                self._life += 1
            standing = self._kept.get(call.run, ArmStats())
            node = BpUcbNode(self._settings.me, around, settings, call.run, self._life, standing)
            self._node = node
        node.begin(number, slot.opinion, now, trained=call.trained, settings=settings)
        _note(self._kept, call.run, node.standing)
        return [*self._admit(now), self._keep(slot, node, now), *self._go(now)]

    def _go(self, now: float) -> list[Effect]:
        """Send the envelopes that are due; take in a decision."""
        if self._node is None:
            return []
        effects: list[Effect] = []
        self._node.stands = self.available
        for effect in self._node.tick(now, self._rng):
            if isinstance(effect, SendEnvelope):
                effects += self._post.send(effect.peer, effect.envelope, now)
            else:
                chosen = not isinstance(effect, StandAside)
                effects += self._decide(effect.slot, now, chosen=chosen)
        return effects

    def _decide(self, number: int, now: float, *, chosen: bool) -> list[Effect]:
        slot, node = self._slot, self._node
        if slot is None or node is None or slot.call.slot + 1 != number or not slot.started:
            return []  # of a slot that another call has ended
        if chosen:
            slot.say_at = dict.fromkeys(slot.ends, now)
        kept = self._keep(slot, node, now, chosen=chosen)
        return [kept, *self._volunteer_again(now)]

    def _volunteer_again(self, now: float) -> list[Effect]:
        """Say the word to every edge that has not shown that it was heard."""
        slot = self._slot
        if slot is None:
            return []
        effects: list[Effect] = []
        word = Volunteer(run=slot.call.run, round=slot.call.round)
        for edge, at in list(slot.say_at.items()):
            if now >= slot.ends[edge] + FIRST_RESEND_S:
                del slot.say_at[edge]
            elif now >= at:
                slot.say_at[edge] = now + RESEND_S
                if self.available:
                    effects.append(Send(edge, word))
        return effects

    def leave(self, now: float) -> list[Effect]:
        """End the slot; its last envelopes are in what is kept of it."""
        slot, node = self._slot, self._node
        self._slot = None
        if slot is None or node is None or slot.record is None:
            return []
        return [self._keep(slot, node, now, chosen=slot.record.chosen)]

    def _keep(
        self, slot: _Slot, node: BpUcbNode, now: float, *, chosen: bool | None = None
    ) -> StoreSlot:
        """Return the slot as it is now; what was decided by stays as it was."""
        before, standing, notices = slot.record, node.standing, node.notices
        post = self._post
        if before is not None and before.chosen is not None:
            slot.record = replace(before, envelopes=post.envelopes, bytes=post.sent_bytes)
            return StoreSlot(self._life, standing, slot.record)
        named = node.phase in (SlotPhase.GOSSIP, SlotPhase.DECIDED)
        slot.record = SlotRecord(
            run=slot.call.run,
            round=slot.call.round,
            slot=node.slot,
            opinion=slot.opinion,
            trained=slot.call.trained,
            mean=standing.mean,
            pulls=standing.pulls,
            belief=notices["belief"] if named else None,
            index=node.index if named else None,
            chosen=chosen,
            best=tuple(node.chosen),
            agents=int(notices["agents"]),
            neighbours=len(node.distances),
            silent=int(notices["silent_neighbours"]),
            sweeps=int(notices["bp_sweeps"]),
            exchanges=int(notices["exchanges"]),
            envelopes=post.envelopes,
            bytes=post.sent_bytes,
            seconds=max(0.0, now - slot.begun),
        )
        return StoreSlot(self._life, standing, slot.record)


def _settings_of(rules: PeersSpec, remaining_s: float) -> DemocracySettings:
    """Return a task's settings, with bounds by which a slot decides before its call ends.

    Beliefs and gossip together take at most three quarters of the time; a neighbour that
    does not answer for a fifth of it is left out.
    """
    time = max(_MIN_S, remaining_s)
    beliefs, gossip = BeliefSettings(), GossipSettings(keep=rules.best)
    silence = min(beliefs.pace.silence_s, 0.2 * time)
    return DemocracySettings(
        mu=rules.mu,
        beliefs=replace(
            beliefs,
            max_s=min(beliefs.max_s, 0.4 * time),
            pace=replace(beliefs.pace, silence_s=silence),
        ),
        gossip=replace(
            gossip,
            max_s=min(gossip.max_s, 0.35 * time),
            pace=replace(gossip.pace, silence_s=silence),
        ),
    )


def _note(table: OrderedDict[K, V], key: K, value: V, most: int = _REMEMBERED) -> None:
    """Remember the newest entries."""
    table[key] = value
    table.move_to_end(key)
    while len(table) > most:
        table.popitem(last=False)
