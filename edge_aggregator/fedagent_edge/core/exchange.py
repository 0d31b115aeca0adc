"""Files by digest: got from the coordinator, and served to agents and to it.

They are the edge's models, and what a task's devices get once.
"""

import math
from dataclasses import dataclass

from fedagent_node.effects import (
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
    LEAST_PATIENCE_S,
    PIECE_BYTES,
    WINDOW_BYTES,
    CreditPool,
    Layout,
    Pace,
    Receiver,
    Sender,
)

from .effects import COORDINATOR, Ignored, OpenModel
from .state import EdgeState

MAX_MODEL_BYTES = 512 << 20
OUT_BYTES = 32 << 20
"""Most that is sent to all agents together and that none of them has shown to have: all of it may
wait in the broker's memory."""
QUIET_S = 10.0
"""An agent that asks for nothing for so long gets nothing, and holds up none that wait for room."""
ONCE_AGAIN_S = 5.0
"""How long after what devices get once could not be used it is asked for again."""


@dataclass(slots=True)
class Outlet:
    """One file on its way to one agent.

    What went out since its last request is most likely under way, and so is half a window before.
    """

    sender: Sender
    heard_at: float = 0.0
    sent_at: float = 0.0
    before: int = 0
    since: int = 0
    booked: int = 0  # of the room that all share


class Exchange:
    """What is on its way in, at most a model and a file for devices, and what goes out."""

    def __init__(self, state: EdgeState) -> None:
        self.state, self._timers = state, state.timers
        self.expected: dict[str, Receiver] = {}
        """Files on their way in."""
        self._pace = Pace()
        self._out: dict[tuple[str, str], Outlet] = {}
        self._waiting: dict[tuple[str, str], None] = {}
        """Who waits for room, in the order of asking."""
        self._room = CreditPool(OUT_BYTES)
        self._early: dict[str, tuple[Received, Need]] = {}
        """What agents asked of a file that is not here yet."""
        self._up: tuple[str, Sender] | None = None

    # ----------------------------------------------------- from the coordinator

    def get(self, offer: GlobalModel, now: float) -> list[Effect]:
        """Begin, or go on, to take a file; `ProtocolError` if its facts do not fit."""
        if offer.size > MAX_MODEL_BYTES:
            self.state.counters["oversize"] += 1
            return [Warn("", f"a model of {offer.size} bytes is too large")]
        self.state.offered_bytes = offer.size
        if self.state.trouble:
            return []
        effects: list[Effect] = []
        if offer.digest not in self.expected:
            layout = Layout(offer.size, offer.chunk_bytes)
            if offer.digest != self.state.memory.once:
                self.forget_model()
            self.expected[offer.digest] = Receiver(layout, self._pace)
            effects.append(OpenModel(offer.digest))
        if offer.first:
            effects += self._take(offer.digest, 0, offer.first, now)
        return effects + self._ask(offer.digest, now)

    def get_once(self, now: float) -> list[Effect]:
        """Get what the task's devices get once, or go on with it on a new link."""
        memory = self.state.memory
        self._timers.stop("once")
        if memory.once != self.state.once_held:
            self.state.once_held = ""  # another run's is removed with the next save
        if not memory.once or self.state.once_held:
            return []
        if self.state.trouble:
            self._timers.at("once", now + ONCE_AGAIN_S, self.get_once)
        if receiver := self.expected.get(memory.once):
            receiver.forget_credit()
        offer = GlobalModel(run=memory.run, digest=memory.once, size=memory.once_bytes)
        return self.get(offer, now)

    def chunk(self, chunk: Chunk, now: float) -> list[Effect]:
        """Take a piece; `ProtocolError` if it does not fit."""
        if chunk.digest not in self.expected:
            raise Ignored("chunk_unasked")
        effects = self._take(chunk.digest, chunk.index, chunk.data, now)
        return effects + self._ask(chunk.digest, now)

    def forget(self, digest: str) -> bool:
        """Want a file no more; False if it is not wanted."""
        return self.expected.pop(digest, None) is not None

    def forget_model(self) -> None:
        """Want no model any more."""
        once = self.state.memory.once
        self.expected = {digest: one for digest, one in self.expected.items() if digest == once}

    def forget_run(self) -> None:
        """Want and send nothing of the run before."""
        self.expected, self._early = {}, {}
        for key in list(self._out):
            self._end(key)

    def once_finished(self, result: ModelFinished, now: float) -> list[Effect]:
        """Hand on what devices get once; get it again if it cannot be used."""
        if result.refused:
            self._timers.at("once", now + ONCE_AGAIN_S, self.get_once)
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
        receiver = self.expected[digest]
        if not receiver.accept(index, len(data), now):
            return []
        layout = receiver.layout
        effects: list[Effect] = [WriteModel(digest, index * layout.chunk_bytes, data)]
        return [*effects, FinishModel(digest, layout.size)] if receiver.complete else effects

    def _ask(self, digest: str, now: float) -> list[Effect]:
        receiver = self.expected[digest]
        ranges = receiver.ask(now)
        if receiver.due is not None:  # also sooner than before: what came has ended a silence
            self._timers.sooner("needs", receiver.due, self._ask_again)
        if not ranges:
            return []
        need = Need(run=self.state.memory.run, digest=digest, ranges=ranges)
        return [Send(COORDINATOR, need)]

    def _ask_again(self, now: float) -> list[Effect]:
        effects: list[Effect] = []
        for digest, receiver in self.expected.items():
            if receiver.due is not None and now >= receiver.due:
                effects += self._ask(digest, now)
        dues = [receiver.due for receiver in self.expected.values() if receiver.due is not None]
        self._timers.at("needs", min(dues, default=math.inf), self._ask_again)
        return effects

    # ----------------------------------------------------------------- serving

    def need(self, event: Received, need: Need, layout: Layout, now: float) -> list[Effect]:
        """Send an agent what it authorises; one that asks for nothing has the file."""
        key = event.sender, need.digest
        if not need.ranges:
            self._end(key)
            return self._pump(now)
        out = self._out.setdefault(key, Outlet(Sender(layout)))
        if event.at >= out.sent_at:
            # It was written before what went out last: many requests give no more than one.
            out.before, out.since = out.since, 0
        out.heard_at = now
        room = WINDOW_BYTES - out.since
        # Nobody is so impatient but who wants us to send without end.
        again = event.link_idle and now >= out.sent_at + LEAST_PATIENCE_S / 2
        out.sender.authorise(need.ranges, link_idle=again, most_bytes=room)
        self._book(out, out.before + out.since)
        self._waiting[key] = None
        return self._pump(now)

    def need_once(self, event: Received, need: Need, now: float) -> list[Effect]:
        """Send an agent what devices get once, as soon as it is here."""
        state = self.state
        if state.once_held != need.digest:
            self._early[event.sender] = (event, need)
            return []
        return self.need(event, need, state.layout(state.memory.once_bytes), now)

    def done(self, agent: str) -> None:
        """Send nothing more to an agent that needs nothing, or left."""
        self._early.pop(agent, None)
        for key in [key for key in self._out if key[0] == agent]:
            self._end(key)

    def stop(self, digest: str) -> None:
        """Send a file no more."""
        for key in [key for key in self._out if key[1] == digest]:
            self._end(key)

    def keep(self, *digests: str) -> None:
        """Send no other files than these, and what the run's devices get once."""
        for key in [key for key in self._out if key[1] not in {*digests, self.state.memory.once}]:
            self._end(key)

    def _pump(self, now: float) -> list[Effect]:
        effects: list[Effect] = []
        for key in list(self._waiting):
            (agent, digest), out = key, self._out[key]
            if now >= out.heard_at + QUIET_S:
                continue
            while self._room.chunks(PIECE_BYTES) and (found := out.sender.next()) is not None:
                index, nbytes = found
                chunk = Chunk(run=self.state.memory.run, digest=digest, index=index, data=b"")
                effects.append(Send(agent, chunk, stored=nbytes))
                out.since, out.sent_at = out.since + nbytes, now
                self._book(out, out.booked + nbytes)
            if out.sender.pending:
                break
            del self._waiting[key]
        if self._waiting:
            # Who is quiet gives its room back.
            dues = [out.heard_at + QUIET_S for out in self._out.values() if out.booked]
            self._timers.at("quiet", min(dues, default=math.inf), self._take_back)
        return effects

    def _take_back(self, now: float) -> list[Effect]:
        for out in self._out.values():
            if now >= out.heard_at + QUIET_S:
                self._book(out, 0)
        return self._pump(now)

    def _book(self, out: Outlet, nbytes: int) -> None:
        self._room.take(nbytes - out.booked)
        out.booked = nbytes

    def _end(self, key: tuple[str, str]) -> None:
        self._waiting.pop(key, None)
        if (out := self._out.pop(key, None)) is not None:
            self._book(out, 0)
            if self._waiting:
                self._timers.sooner("quiet", 0.0, self._take_back)

    def need_up(self, need: Need, *, link_idle: bool) -> list[Effect]:
        """Send what the coordinator authorised of the model we hold."""
        model = self.state.memory.model
        if not model or need.digest != model:
            raise Ignored("need_unknown")
        if self._up is None or self._up[0] != model:
            self._up = model, Sender(self.state.layout(self.state.memory.model_bytes))
        sender = self._up[1]
        sender.authorise(need.ranges, link_idle=link_idle)
        effects: list[Effect] = []
        while (found := sender.next()) is not None:
            chunk = Chunk(run=need.run, digest=model, index=found[0], data=b"")
            effects.append(Send(COORDINATOR, chunk, stored=found[1]))
        return effects
