"""What is on its way: a model to agents, updates from them, models from and to the coordinator."""

from dataclasses import dataclass, field

from fedagent_node.effects import (
    EVERYBODY,
    Effect,
    FinishModel,
    Received,
    Send,
    Warn,
    WriteModel,
)
from fedagent_protocol.messages import Chunk, GlobalModel, Need, UpdateOffer
from fedagent_protocol.transfer import (
    CREDIT_WINDOW,
    Broadcast,
    CreditPool,
    Layout,
    Receiver,
    Sender,
    to_ranges,
)

from .effects import COORDINATOR, OpenModel, WriteSpool
from .round import EdgeRound, Part
from .state import EdgeState

MAX_MODEL_BYTES = 512 << 20
MODEL_WINDOW = CREDIT_WINDOW
UPDATE_WINDOW = 4
LONGEST_REST_S = 15.0
PACE_S = 0.1
STALL_S = 0.5
STALL_PER_AGENT_S = 0.02
"""How long a silent receiver holds the others up: longer where many share a broker."""
ALONE_AT_ONCE = 4
"""How many agents get chunks of their own in `ALONE_S`, each a window at a time: bounds the
broker's queues."""
ALONE_S = 0.5


@dataclass(slots=True)
class Distribution:
    """A model on its way to the agents of one round: each chunk once, then what somebody misses.

    Attributes:
        start_at: When the broadcast begins although some are still waited for.
    """

    run: str
    round: int
    digest: str
    layout: Layout
    start_at: float
    waiting: set[str]
    started: bool = False
    _broadcast: Broadcast = field(init=False)
    _alone: dict[str, Sender] = field(default_factory=dict)
    _served_at: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        stall_s = max(STALL_S, STALL_PER_AGENT_S * len(self.waiting))
        self._broadcast = Broadcast(self.layout, stall_s=stall_s)

    def need(self, event: Received, need: Need, now: float) -> list[Effect]:
        """Take an agent's credit; one that asks for nothing has the model."""
        agent = event.sender
        if not need.ranges:
            return self.answered(agent, now)
        self.waiting.discard(agent)
        behind = self._broadcast.authorise(agent, need.ranges, now, asked_at=event.at)
        if behind:
            sender = self._alone.setdefault(agent, Sender(self.layout))
            sender.authorise(to_ranges(sorted(behind)), link_idle=event.link_idle)
        return self.pump(now)

    def answered(self, agent: str, now: float) -> list[Effect]:
        """Note that an agent needs nothing (any more)."""
        self.waiting.discard(agent)
        self._broadcast.leave(agent)
        for table in (self._alone, self._served_at):
            table.pop(agent, None)
        return self.pump(now)

    def pump(self, now: float) -> list[Effect]:
        """Send what may be sent now."""
        if not self.started and self.waiting and now < self.start_at:
            return []
        self.started = True
        effects: list[Effect] = []
        while (index := self._broadcast.next(now)) is not None:
            effects.append(self._chunk(EVERYBODY, index))
        # Misses go to few agents at a time, in turn.
        busy = {a for a, at in self._served_at.items() if now - at < ALONE_S}
        for agent, sender in self._alone.items():
            if not sender.pending or (agent not in busy and len(busy) >= ALONE_AT_ONCE):
                continue
            busy.add(agent)
            self._served_at[agent] = now
            while (index := sender.next()) is not None:
                self._broadcast.sent(agent, now)
                effects.append(self._chunk(agent, index))
        return effects

    def _chunk(self, to: str, index: int) -> Send:
        chunk = Chunk(run=self.run, round=self.round, digest=self.digest, index=index, data=b"")
        return Send(to, chunk, stored=True)

    def next_due(self, now: float) -> float:
        """Return when `pump` is wanted although nothing came."""
        if not self.started:
            return self.start_at
        queued = any(sender.pending for sender in self._alone.values())
        return now + PACE_S if self._broadcast.held_up or queued else float("inf")


@dataclass(slots=True)
class Uploads:
    """The updates of one round; the pool caps what all have authorised together.

    Attributes:
        hungry: Agents that wait for credit of the pool, in the order of asking.
        resting: Agents whose transfer is silent, and when they are asked again.
    """

    rnd: EdgeRound
    pool: CreditPool
    hungry: dict[str, None] = field(default_factory=dict)
    resting: dict[str, float] = field(default_factory=dict)
    _active: dict[str, Part] = field(default_factory=dict)

    def first_credit(self, part: Part, nbytes: int) -> int:
        """Return the chunks an order may grant in advance: one of `nbytes`, or none.

        Half of the pool stays for transfers under way: agents that died with an
        order must not bring the others to a stop.
        """
        self._release(part)
        if self.pool.used_bytes + nbytes > self.pool.limit_bytes // 2:
            return 0
        part.credit_bytes = nbytes
        self.pool.take(nbytes)
        return 1

    def begin(
        self, part: Part, offer: UpdateOffer, have: set[int], now: float, *, first: bytes = b""
    ) -> list[Effect]:
        """Take an admissible offer, and its first chunk; `have` are those in the spool already."""
        self._release(part)
        part.offer, part.stalls = offer, 0
        layout = Layout(offer.size, offer.chunk_bytes)
        part.receiver = Receiver(layout, window=UPDATE_WINDOW, have=have)
        self._active[part.agent] = part
        return self.accept(part, 0, first, now) if first and 0 not in have else []

    def accept(self, part: Part, index: int, data: bytes, now: float) -> list[Effect]:
        """Take a chunk into the spool; `ChunkError` if it does not fit."""
        receiver = part.receiver
        assert receiver is not None
        agent = part.agent
        before = receiver.outstanding
        fresh = receiver.accept(index, len(data), now)
        self._settle(part, before)
        if not fresh:
            return []
        part.stalls, receiver.window = 0, UPDATE_WINDOW
        self.resting.pop(agent, None)
        return [WriteSpool((self.rnd.run, self.rnd.round, agent), index, data)]

    def grant(self, agent: str, now: float) -> list[Effect]:
        """Give this agent credit as far as the pool has some, then those who wait."""
        effects = self._ask(agent, now)
        for other in list(self.hungry):
            if not self._room(self._active[other]):
                break
            effects += self._ask(other, now)
        return effects

    def tick(self, now: float) -> list[Effect]:
        """Ask again after silence, ever more patiently."""
        effects: list[Effect] = []
        for agent, part in list(self._active.items()):
            receiver = part.receiver
            if receiver is None or receiver.due is None or now < receiver.due:
                continue
            part.stalls += 1
            if part.stalls % 2:
                effects += self._ask(agent, now)
                continue
            # Silent twice: others may use its credit. It gets one chunk when it wakes.
            self._take_back(part, receiver)
            receiver.window = 1
            self.resting[agent] = now + min(LONGEST_REST_S, 0.5 * 2**part.stalls)
        for agent in [agent for agent, at in self.resting.items() if now >= at]:
            del self.resting[agent]
            self.hungry[agent] = None
        for agent in list(self.hungry):
            effects += self._ask(agent, now)
        return effects

    def next_due(self) -> float:
        """Return when `tick` is wanted although nothing came."""
        dues = [part.receiver.due for part in self._active.values() if part.receiver is not None]
        return min((*self.resting.values(), *filter(None, dues)), default=float("inf"))

    def renew(self, part: Part) -> None:
        """Take back credit that may have been lost with a connection."""
        if part.receiver is not None and part.agent in self._active:
            self._take_back(part, part.receiver)
            self.resting.pop(part.agent, None)

    def end(self, part: Part) -> None:
        """Give back the credit of a transfer that is complete or over."""
        self.renew(part)
        for table in (self._active, self.hungry, self.resting):
            table.pop(part.agent, None)
        self._release(part)

    def _ask(self, agent: str, now: float) -> list[Effect]:
        part = self._active.get(agent)
        if part is None or part.receiver is None or part.offer is None or agent in self.resting:
            self.hungry.pop(agent, None)
            return []
        receiver, room = part.receiver, self._room(part)
        before = receiver.outstanding
        ranges = receiver.ask(now, allowance=room)
        self._settle(part, before)
        if not receiver.outstanding and not room:
            self.hungry[agent] = None
        else:
            self.hungry.pop(agent, None)
        if not ranges:
            return []
        rnd, digest = self.rnd, part.offer.digest
        return [Send(agent, Need(run=rnd.run, round=rnd.round, digest=digest, ranges=ranges))]

    def _room(self, part: Part) -> int:
        return self.pool.chunks(_chunk_bytes(part))

    def _take_back(self, part: Part, receiver: Receiver) -> None:
        before = receiver.outstanding
        receiver.forget_credit()
        self._settle(part, before)

    def _settle(self, part: Part, before: int) -> None:
        """Book what its receiver has authorised more, or less, than `before`."""
        assert part.receiver is not None
        change = part.receiver.outstanding - before
        if change > 0:
            self.pool.take(change * _chunk_bytes(part))
        else:
            self.pool.give_back(-change * _chunk_bytes(part))

    def _release(self, part: Part) -> None:
        self.pool.give_back(part.credit_bytes)
        part.credit_bytes = 0


def _chunk_bytes(part: Part) -> int:
    assert part.offer is not None
    return min(part.offer.chunk_bytes, part.offer.size)


@dataclass(slots=True)
class ModelExchange:
    """At most one model of the coordinator on its way in, and the edge's own on its way up."""

    state: EdgeState
    _digest: str = ""
    _receiver: Receiver | None = None
    _finishing: bool = False
    _sent: str = ""
    _sender: Sender | None = None

    def expects(self, digest: str) -> bool:
        """Whether this model is on its way in."""
        return self._receiver is not None and self._digest == digest

    def offered(self, offer: GlobalModel, now: float) -> list[Effect]:
        """Begin, or go on, to take a model; `ProtocolError` if its facts do not fit."""
        if offer.size > MAX_MODEL_BYTES:
            self.state.counters["oversize"] += 1
            return [Warn("", f"a model of {offer.size} bytes is too large")]
        self.state.offered_bytes = offer.size
        if self.state.trouble:
            return []
        effects: list[Effect] = []
        if not self.expects(offer.digest):
            layout = Layout(offer.size, offer.chunk_bytes)
            self._receiver = Receiver(layout, window=MODEL_WINDOW)
            self._digest, self._finishing = offer.digest, False
            effects.append(OpenModel(offer.digest))
        if offer.first:
            effects += self._take(0, offer.first, now)
        return effects + self._ask(now)

    def chunk(self, chunk: Chunk, now: float) -> list[Effect]:
        """Take a chunk of it; `ChunkError` if it does not fit."""
        if not self.expects(chunk.digest):
            self.state.counters["chunk_unasked"] += 1
            return []
        return self._take(chunk.index, chunk.data, now) + self._ask(now)

    def forget(self) -> None:
        """Want no model any more."""
        self._receiver = None

    def renew(self) -> None:
        """Take back credit that may have been lost with a connection."""
        if self._receiver is not None:
            self._receiver.forget_credit()

    def tick(self, now: float) -> list[Effect]:
        """Ask again for what is due."""
        return self._ask(now) if now >= self.next_due() else []

    def next_due(self) -> float:
        """Return when `tick` is wanted."""
        due = None if self._receiver is None or self._finishing else self._receiver.due
        return float("inf") if due is None else due

    def _take(self, index: int, data: bytes, now: float) -> list[Effect]:
        receiver = self._receiver
        if self._finishing or receiver is None or not receiver.accept(index, len(data), now):
            return []
        layout = receiver.layout
        effects: list[Effect] = [WriteModel(self._digest, layout.span(index)[0], data)]
        if receiver.complete:
            self._finishing = True
            effects.append(FinishModel(self._digest, layout.size))
        return effects

    def _ask(self, now: float) -> list[Effect]:
        if self._receiver is None or self._finishing:
            return []
        ranges = self._receiver.ask(now)
        need = Need(run=self.state.memory.run, digest=self._digest, ranges=ranges)
        return [Send(COORDINATOR, need)] if ranges else []

    def need(self, event: Received, need: Need) -> list[Effect]:
        """Send what the coordinator authorised of the model we hold."""
        model = self.state.memory.model
        if not model or need.digest != model:
            self.state.counters["need_unknown"] += 1
            return []
        if self._sender is None or self._sent != model:
            self._sent, self._sender = model, Sender(self.state.layout)
        self._sender.authorise(need.ranges, link_idle=event.link_idle)
        effects: list[Effect] = []
        while (index := self._sender.next()) is not None:
            chunk = Chunk(run=need.run, round=need.round, digest=model, index=index, data=b"")
            effects.append(Send(COORDINATOR, chunk, stored=True))
        return effects
