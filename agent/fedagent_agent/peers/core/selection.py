"""Selection among neighbours on one device: calls in, sealed envelopes out, and `Volunteer`.

A call of mode ``peers`` begins a slot (docs/democratized.md). `BpUcbNode` does what GDA says;
here are the neighbours that edges name or the owner declares, the ways to them, the time that a
slot has, the announcement until it was heard, and what is kept. In the open leave only
`Volunteer`, with run and round, and cards. Keys and the disk are opened when neighbours are first
needed.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from msgspec import structs

from fedagent_agent.core.effects import Newest
from fedagent_node.effects import Effect, Emit, Send
from fedagent_node.timers import Timers
from fedagent_protocol.messages import (
    Neighbours,
    OpinionCall,
    OpinionMode,
    PeerDeliver,
    TrainOrder,
    Volunteer,
)
from fedagent_protocol.signed import SignAnswer
from fedagent_task.recipe.spec import PeersSpec

from .channel import Jitter, settings_for
from .node import BpUcbNode
from .records import ArmStats, SlotRecord, StoreSlot
from .transport import PeerTransport

ANNOUNCE_EVERY_S = 1.0
ANNOUNCE_AFTER_S = 2.0
"""How long after the end of a call the announcement may still be of use."""
NAMES_WAIT_S = 1.0
"""How long a slot waits for an edge to name the neighbours."""
MAX_AROUND = 64
MAX_EDGES = 64
"""Edges whose lists of neighbours are remembered."""
MAX_REWIRED = 4
"""Changes of neighbours within one slot; later ones wait for the next."""
_REMEMBERED = 16


@dataclass(frozen=True, slots=True)
class PeerAccess:
    """What a device brings when neighbours are first needed."""

    me: str
    incarnation: int  # larger than every one before
    transport: PeerTransport  # sealed with its keys of this start
    rng: Jitter  # seeded; spreads repeats in time, nothing else
    arms: Mapping[str, ArmStats]  # as they survived the last process, by run
    declared: Mapping[str, float]  # neighbours that the owner names, in kilometres


OpenPeers = Callable[[Counter[str]], PeerAccess | str]
"""Opens keys and memory, or returns why that is impossible; counts what is refused."""


@dataclass(slots=True)
class _Slot:
    """A call that this agent takes part in."""

    call: OpinionCall
    task: PeersSpec
    opinion: float | None
    begun: float
    ends: dict[str, float]  # edges that have called, and until when they listen
    announce_at: dict[str, float] = field(default_factory=dict)  # when to tell each edge
    started: bool = False  # neighbours are known, and the exchange has begun
    rewired: int = 0  # how often neighbours have changed since
    record: SlotRecord | None = None

    @property
    def names_at(self) -> float:
        """When it starts although an edge has named no neighbours."""
        remaining = max(self.ends.values()) - self.begun
        return self.begun + max(0.0, min(NAMES_WAIT_S, 0.2 * remaining))


class PeerSelection:
    """One agent among its neighbours, slot after slot, run after run.

    `open_access` is called once, at the first need; `node` is that of the slot that runs, or ran
    last. An agent that is not `available` stands aside and announces nothing.
    """

    def __init__(
        self,
        counters: Counter[str],
        timers: Timers,
        open_access: OpenPeers | None,
        sign: SignAnswer,
    ) -> None:
        self.counters = counters
        self._timers = timers
        self._sign = sign
        self.available = True
        self.node: BpUcbNode | None = None
        self._open = open_access
        self._opened: PeerAccess | None = None
        self._incarnation = 0
        self._arms: Newest[str, ArmStats] = Newest(_REMEMBERED)
        self._calls: Newest[tuple[str, int], dict[str, float]] = Newest(_REMEMBERED)
        self._newest: Newest[str, int] = Newest(_REMEMBERED)
        self._named: Newest[str, dict[str, float]] = Newest(MAX_EDGES)
        self._slot: _Slot | None = None

    # ------------------------------------------------------------- what comes in

    def receive(
        self, edge: str, message: OpinionCall | Neighbours | PeerDeliver, now: float
    ) -> list[Effect]:
        """Take a call, whom an edge names, or what it carries; `ProtocolError`: no envelope.

        A call's time runs from here, before there is an opinion.
        """
        if isinstance(message, OpinionCall) and message.mode is not OpinionMode.PEERS:
            return []
        effects = self._enter()
        if self._opened is not None:
            match message:
                case OpinionCall():
                    effects += self._call(message, edge, now)
                case Neighbours():
                    effects += self._neighbours(edge, message, now)
                case PeerDeliver():
                    effects += self._deliver(edge, message, now)
            self._set_timer()
        return effects

    def begin(
        self,
        call: OpinionCall,
        task: PeersSpec | None,
        edge: str,
        opinion: float | None,
        now: float,
    ) -> list[Effect]:
        """Begin the slot of a call with this agent's opinion; None: it has none.

        The same call again, also by another edge, begins nothing anew. `task` is what the call's
        task says of neighbours; None: it is not here any more.
        """
        effects = self._enter()
        if self._opened is None:
            self.counters["peers_unsupported"] += 1
            return effects
        if edge not in self._calls.get((call.run, call.round), {}):
            effects += self._call(call, edge, now)
        if task is None:
            self.counters["peer_no_task"] += 1
        elif call.round > self._newest.get(call.run, -1):
            self._newest[call.run] = call.round
            if opinion is not None and not math.isfinite(opinion):
                opinion = None
            self._slot = _Slot(call, task, opinion, now, self._calls[call.run, call.round])
            effects += self._admit(now) + self._try(now)
        self._set_timer()
        return effects

    def ordered(self, order: TrainOrder) -> None:
        """Take an order: one of a later round shows that the announcement was heard."""
        slot = self._slot
        if slot is not None and order.run == slot.call.run and order.round > slot.call.round:
            slot.announce_at.clear()

    def _enter(self) -> list[Effect]:
        """Open keys and memory at the first need; a second attempt would end as the first."""
        open_access, self._open = self._open, None
        if open_access is None:
            return []
        access = open_access(self.counters)
        if isinstance(access, str):
            return [Emit("peers_off", {"reason": access})]
        self._opened, self._incarnation = access, access.incarnation
        self._arms.update(access.arms)
        return []

    @property
    def _access(self) -> PeerAccess:
        assert self._opened is not None
        return self._opened

    def _call(self, call: OpinionCall, edge: str, now: float) -> list[Effect]:
        ends = self._calls.get((call.run, call.round), {})
        self._calls[call.run, call.round] = ends
        ends[edge] = now + call.until_ms / 1000
        effects = self._admit(now)
        slot = self._slot
        if slot is None or slot.ends is not ends:
            return effects
        if slot.record is not None and slot.record.chosen and slot.announce_at:
            slot.announce_at.setdefault(edge, now)  # another edge of the same slot
        return effects + self._rewire(now)

    def _neighbours(self, edge: str, message: Neighbours, now: float) -> list[Effect]:
        named = {peer: far for peer, far in message.peers.items() if peer != self._access.me}
        if self._named.get(edge) == named:
            return []
        self._named[edge] = named
        return self._admit(now) + self._rewire(now) + self._try(now)

    def _deliver(self, edge: str, message: PeerDeliver, now: float) -> list[Effect]:
        effects, envelope = self._access.transport.receive(edge, message, now)
        if envelope is None:
            return effects
        if self.node is None:
            self.counters["peer_early"] += 1
            return effects
        self.node.receive(message.sender, envelope, now)
        return effects + self._go_on(now)

    # ---------------------------------------------------------------------- time

    def _elapse(self, now: float) -> list[Effect]:
        """Let time pass."""
        effects = self._try(now) + self._go_on(now) + self._announce(now)
        self._set_timer()
        return effects

    def _set_timer(self) -> None:
        """Come back when something is to be done although nothing came."""
        due, slot = self.node.due if self.node is not None else math.inf, self._slot
        if slot is not None:
            due = min(due, *slot.announce_at.values(), math.inf if slot.started else slot.names_at)
        self._timers.at("peers", due, self._elapse)

    # ---------------------------------------------------------------- neighbours

    def _around(self, slot: _Slot) -> dict[str, float]:
        if slot.task.graph == "declared":
            found = dict(self._access.declared)
        else:
            found = {}
            for edge in sorted(slot.ends):
                for peer, far in self._named.get(edge, {}).items():
                    found[peer] = min(far, found.get(peer, math.inf))
        nearest = sorted(found.items(), key=lambda item: (item[1], item[0]))[:MAX_AROUND]
        return dict(sorted(nearest))

    def _admit(self, now: float) -> list[Effect]:
        """Know everybody who may be talked with, in this slot or the next."""
        # Also of the slot that runs: a call of another run must not take its envelopes away.
        here = self._slot.ends if self._slot is not None else {}
        calling = tuple(sorted({*here, *next(reversed(self._calls.values()), {})}))
        ways = dict.fromkeys(self._access.declared, calling)
        for edge, named in sorted(self._named.items()):
            for peer in named:
                ways[peer] = (*(way for way in ways.get(peer, ()) if way != edge), edge)
        # An edge that does not call any more may be gone without a word.
        ways = {
            peer: tuple(way for way in edges if way in calling) or edges
            for peer, edges in ways.items()
        }
        if self.node is not None:
            ways = dict.fromkeys(self.node.distances, calling) | ways
        return self._access.transport.admit(ways, now)

    def _rewire(self, now: float) -> list[Effect]:
        """Begin a slot anew whose neighbours have changed, unless it is too late for it."""
        slot, node = self._slot, self.node
        if slot is None or node is None or not slot.started:
            return []
        if not node.is_early or slot.rewired >= MAX_REWIRED:
            return []
        if self._around(slot) == node.distances:
            return []
        slot.rewired += 1
        return self._start(slot, now)

    # ---------------------------------------------------------------------- slot

    def _try(self, now: float) -> list[Effect]:
        """Start the slot that waits, once its neighbours are known or it has waited enough."""
        slot = self._slot
        if slot is None or slot.started:
            return []
        known = slot.task.graph == "declared" or all(edge in self._named for edge in slot.ends)
        if not known and now < slot.names_at:
            return []
        slot.started = True
        return self._start(slot, now)

    def _start(self, slot: _Slot, now: float) -> list[Effect]:
        call, node, number = slot.call, self.node, slot.call.slot + 1
        around = self._around(slot)
        settings = settings_for(slot.task, max(slot.ends.values()) - now)
        same_run = node is not None and node.run == call.run
        if node is None or not same_run or node.distances != around or node.slot >= number:
            if same_run:
                # Neighbours take it for a restart, and send again what was lost with it.
                self._incarnation += 1
            node = self.node = BpUcbNode(
                self._access.me,
                around,
                settings,
                run=call.run,
                incarnation=self._incarnation,
                arm=self._arms.get(call.run),
            )
        node.begin(number, slot.opinion, now, trained=call.trained, settings=settings)
        self._arms[call.run] = node.arm
        return [*self._admit(now), self._keep(slot, node), *self._go_on(now)]

    def _go_on(self, now: float) -> list[Effect]:
        """Send what is due; announce once it is decided that this agent trains."""
        node, slot = self.node, self._slot
        if node is None:
            return []
        effects, undecided = list[Effect](), node.chosen is None
        node.available = self.available
        for peer, envelope in node.tick(now, self._access.rng):
            effects += self._access.transport.send(peer, envelope, now)
        # What another call has ended is decided for nobody.
        runs = slot is not None and slot.started and slot.call.slot + 1 == node.slot
        if slot is not None and runs and undecided and node.chosen is not None:
            if node.chosen:
                slot.announce_at = dict.fromkeys(slot.ends, now)
            effects += [self._keep(slot, node), *self._announce(now)]
        return effects

    def _announce(self, now: float) -> list[Effect]:
        slot = self._slot
        if slot is None:
            return []
        effects: list[Effect] = []
        volunteer = Volunteer(run=slot.call.run, round=slot.call.round)
        for edge, at in list(slot.announce_at.items()):
            if now >= slot.ends[edge] + ANNOUNCE_AFTER_S:
                del slot.announce_at[edge]
            elif now >= at:
                slot.announce_at[edge] = now + ANNOUNCE_EVERY_S
                if self.available:
                    claim = self._sign(slot.call, volunteer, edge)
                    effects.append(Send(edge, structs.replace(volunteer, claim=claim)))
        return effects

    def _keep(self, slot: _Slot, node: BpUcbNode) -> StoreSlot:
        """Return the slot as it is now; what was decided by stays as it was."""
        if slot.record is None or slot.record.chosen is None:
            slot.record = node.record(slot.call, slot.opinion)
        return StoreSlot(self._incarnation, node.arm, slot.record)
