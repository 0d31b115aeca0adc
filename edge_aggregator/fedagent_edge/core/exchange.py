"""Files by digest: got from the coordinator, and served to agents and to it.

They are the edge's models, and what a task's devices get once.
"""

from dataclasses import dataclass, field

from fedagent_node.effects import (
    EVERYBODY,
    ContentLost,
    Effect,
    FinishModel,
    ModelFinished,
    Received,
    Send,
    Warn,
    WriteModel,
)
from fedagent_protocol.messages import Chunk, GlobalModel, Need
from fedagent_protocol.transfer import (
    CREDIT_WINDOW,
    Broadcast,
    Layout,
    Receiver,
    Sender,
    to_ranges,
)

from .effects import COORDINATOR, EdgeState, Ignored, OpenModel

MAX_MODEL_BYTES = 512 << 20
PACE_S = 0.1
NEED_WAIT_S = 0.05
"""How long a file that agents are to have waits for those that have not asked for it."""
STALL_S = 0.5
STALL_PER_AGENT_S = 0.02
"""How long a silent receiver holds the others up: longer where many share a broker."""
ALONE_AT_ONCE = 4
"""How many agents get chunks of their own in `ALONE_S`, each a window at a time: bounds the
broker's queues."""
ALONE_S = 0.5
ONCE_AGAIN_S = 5.0
"""How long after what devices get once could not be used it is asked for again."""


@dataclass(slots=True)
class Distribution:
    """A file on its way to agents: each chunk once, then what somebody misses.

    It begins when none of `waiting` is left, or at `start_at`.
    """

    run: str
    digest: str
    layout: Layout
    waiting: set[str]
    start_at: float
    started: bool = False
    _broadcast: Broadcast = field(init=False)
    _alone: dict[str, Sender] = field(default_factory=dict)
    _served_at: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        stall_s = max(STALL_S, STALL_PER_AGENT_S * len(self.waiting))
        self._broadcast = Broadcast(self.layout, stall_s=stall_s)

    def need(self, event: Received, need: Need, now: float) -> list[Effect]:
        """Take an agent's credit; one that asks for nothing has the file."""
        agent = event.sender
        if not need.ranges:
            return self.done(agent, now)
        self.waiting.discard(agent)
        behind = self._broadcast.authorise(agent, need.ranges, now, asked_at=event.at)
        if behind:
            sender = self._alone.setdefault(agent, Sender(self.layout))
            sender.authorise(to_ranges(sorted(behind)), link_idle=event.link_idle)
        return self.pump(now)

    def done(self, agent: str, now: float) -> list[Effect]:
        """Note that an agent needs nothing (any more)."""
        self.waiting.discard(agent)
        self._broadcast.leave(agent)
        self._alone.pop(agent, None)
        self._served_at.pop(agent, None)
        return self.pump(now)

    def pump(self, now: float) -> list[Effect]:
        """Send what may be sent now."""
        if not self.started and self.waiting and now < self.start_at:
            return []
        self.started = True
        effects: list[Effect] = []
        while (index := self._broadcast.next(now)) is not None:
            effects.append(_chunk(EVERYBODY, self.run, self.digest, index))
        # Misses go to few agents at a time, in turn.
        busy = {a for a, at in self._served_at.items() if now - at < ALONE_S}
        for agent, sender in self._alone.items():
            if not sender.pending or (agent not in busy and len(busy) >= ALONE_AT_ONCE):
                continue
            busy.add(agent)
            self._served_at[agent] = now
            while (index := sender.next()) is not None:
                self._broadcast.sent(agent, now)
                effects.append(_chunk(agent, self.run, self.digest, index))
        return effects

    def next_due(self, now: float) -> float:
        """Return when `pump` is wanted although nothing came."""
        if not self.started:
            return self.start_at
        queued = any(sender.pending for sender in self._alone.values())
        return now + PACE_S if self._broadcast.held_up or queued else float("inf")


def _chunk(to: str, run: str, digest: str, index: int) -> Send:
    return Send(to, Chunk(run=run, digest=digest, index=index, data=b""), stored=True)


class Exchange:
    """What is on its way in, at most a model and a file for devices, and what goes out."""

    def __init__(self, state: EdgeState) -> None:
        self.state = state
        self._in: dict[str, Receiver] = {}
        self._out: dict[str, Distribution] = {}
        self._early: dict[str, tuple[Received, Need]] = {}
        """What agents asked of a file that is not here yet."""
        self._up: tuple[str, Sender] | None = None
        self._once_again_at = float("inf")

    # ----------------------------------------------------- from the coordinator

    def expects(self, digest: str) -> bool:
        """Whether a file is on its way in."""
        return digest in self._in

    def get(self, offer: GlobalModel, now: float) -> list[Effect]:
        """Begin, or go on, to take a file; `ProtocolError` if its facts do not fit."""
        if offer.size > MAX_MODEL_BYTES:
            self.state.counters["oversize"] += 1
            return [Warn("", f"a model of {offer.size} bytes is too large")]
        self.state.offered_bytes = offer.size
        if self.state.trouble:
            return []
        effects: list[Effect] = []
        if not self.expects(offer.digest):
            layout = Layout(offer.size, offer.chunk_bytes)
            if offer.digest != self.state.memory.once:
                self.forget_model()
            self._in[offer.digest] = Receiver(layout, window=CREDIT_WINDOW)
            effects.append(OpenModel(offer.digest))
        if offer.first:
            effects += self._take(offer.digest, 0, offer.first, now)
        return effects + self._ask(offer.digest, now)

    def get_once(self, now: float) -> list[Effect]:
        """Get what the task's devices get once, or go on with it on a new link."""
        memory, self._once_again_at = self.state.memory, float("inf")
        if memory.once != self.state.once_held:
            self.state.once_held = ""  # another run's is removed with the next save
        if not memory.once or self.state.once_held:
            return []
        if self.state.trouble:
            self._once_again_at = now + ONCE_AGAIN_S
        if receiver := self._in.get(memory.once):
            receiver.forget_credit()
        offer = GlobalModel(run=memory.run, digest=memory.once, size=memory.once_bytes)
        return self.get(offer, now)

    def chunk(self, chunk: Chunk, now: float) -> list[Effect]:
        """Take a piece; `ChunkError` if it does not fit."""
        if not self.expects(chunk.digest):
            raise Ignored("chunk_unasked")
        effects = self._take(chunk.digest, chunk.index, chunk.data, now)
        return effects + self._ask(chunk.digest, now)

    def forget(self, digest: str) -> bool:
        """Want a file no more; False if it is not wanted."""
        return self._in.pop(digest, None) is not None

    def forget_model(self) -> None:
        """Want no model any more."""
        once = self.state.memory.once
        self._in = {digest: one for digest, one in self._in.items() if digest == once}

    def forget_run(self) -> None:
        """Want and send nothing of the run before."""
        self._in, self._out, self._early = {}, {}, {}

    def once_finished(self, result: ModelFinished, now: float) -> list[Effect]:
        """Hand on what devices get once; get it again if it cannot be used."""
        if result.refused:
            self._once_again_at = now + ONCE_AGAIN_S
            return [Warn("", f"the tensors that devices get once cannot be used: {result.refused}")]
        self.state.once_held = result.digest
        effects: list[Effect] = []
        early, self._early = self._early, {}
        for event, need in early.values():
            effects += self.need_once(event, need, now)
        return effects

    def once_lost(self, lost: ContentLost, now: float) -> list[Effect]:
        """Get it again: the file is gone, or damaged."""
        if not self.state.once_held:
            return []
        self.state.once_held = ""
        self.stop(lost.digest)
        what = "the edge lost the tensors that devices get once and fetches them again"
        return [Warn("", f"{what}: {lost.detail}"), *self.get_once(now)]

    def _take(self, digest: str, index: int, data: bytes, now: float) -> list[Effect]:
        receiver = self._in[digest]
        if not receiver.accept(index, len(data), now):
            return []
        layout = receiver.layout
        effects: list[Effect] = [WriteModel(digest, layout.span(index)[0], data)]
        return [*effects, FinishModel(digest, layout.size)] if receiver.complete else effects

    def _ask(self, digest: str, now: float) -> list[Effect]:
        ranges = self._in[digest].ask(now)
        need = Need(run=self.state.memory.run, digest=digest, ranges=ranges)
        return [Send(COORDINATOR, need)] if ranges else []

    # ----------------------------------------------------------------- serving

    def serve(self, digest: str, layout: Layout, agents: set[str], now: float) -> None:
        """Begin to send a file when these agents have asked, or after a moment."""
        run = self.state.memory.run
        self._out[digest] = Distribution(run, digest, layout, agents, now + NEED_WAIT_S)

    def need(self, event: Received, need: Need, layout: Layout, now: float) -> list[Effect]:
        """Send an agent what it authorises."""
        if need.digest not in self._out:
            self.serve(need.digest, layout, set(), now)
        return self._out[need.digest].need(event, need, now)

    def need_once(self, event: Received, need: Need, now: float) -> list[Effect]:
        """Send an agent what devices get once, as soon as it is here."""
        state = self.state
        if state.once_held != need.digest:
            self._early[event.sender] = (event, need)
            return []
        layout = state.layout(state.memory.once_bytes)
        if need.digest not in self._out:
            self.serve(need.digest, layout, set(state.sessions.present_ids()), now)
        return self.need(event, need, layout, now)

    def done(self, agent: str, now: float) -> list[Effect]:
        """Wait no more for an agent that needs nothing, or left."""
        self._early.pop(agent, None)
        return [one for out in self._out.values() for one in out.done(agent, now)]

    def stop(self, digest: str) -> None:
        """Send a file no more."""
        self._out.pop(digest, None)

    def need_up(self, event: Received, need: Need, now: float) -> list[Effect]:  # noqa: ARG002 - as all handlers
        """Send what the coordinator authorised of the model we hold."""
        model = self.state.memory.model
        if not model or need.digest != model:
            raise Ignored("need_unknown")
        if self._up is None or self._up[0] != model:
            self._up = model, Sender(self.state.layout(self.state.memory.model_bytes))
        sender = self._up[1]
        sender.authorise(need.ranges, link_idle=event.link_idle)
        effects: list[Effect] = []
        while (index := sender.next()) is not None:
            effects.append(_chunk(COORDINATOR, need.run, model, index))
        return effects

    # ------------------------------------------------------------------- time

    def tick(self, now: float) -> list[Effect]:
        """Ask again for what is due, and send what may be sent."""
        effects = self.get_once(now) if now >= self._once_again_at else []
        for digest, receiver in self._in.items():
            if receiver.due is not None and now >= receiver.due:
                effects += self._ask(digest, now)
        return effects + [one for out in self._out.values() for one in out.pump(now)]

    def next_due(self, now: float) -> float:
        """Return when `tick` is wanted."""
        dues = [receiver.due for receiver in self._in.values() if receiver.due is not None]
        dues += [out.next_due(now) for out in self._out.values()]
        return min([*dues, self._once_again_at])
