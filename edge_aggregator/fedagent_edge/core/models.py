"""Models on their way: one of the coordinator's comes in, the edge's own goes up to be merged."""

from collections import Counter
from dataclasses import dataclass

from fedagent_node.effects import Effect, FinishModel, Send, Warn, WriteModel
from fedagent_protocol.messages import Chunk, GlobalModel, Need
from fedagent_protocol.transfer import Layout, Receiver, Sender

from .effects import COORDINATOR, OpenModel

WINDOW = 8


@dataclass(slots=True)
class Incoming:
    """At most one model of the coordinator on its way in, of `max_bytes` at most."""

    counters: Counter[str]
    max_bytes: int
    _digest: str = ""
    _receiver: Receiver | None = None
    _finishing: bool = False

    def expects(self, digest: str) -> bool:
        """Whether this model is on its way."""
        return self._receiver is not None and self._digest == digest

    def offered(self, offer: GlobalModel, now: float) -> list[Effect]:
        """Begin, or go on, to take a model.

        Raises:
            ProtocolError: Size, chunks or the first chunk do not fit.
        """
        if offer.size > self.max_bytes:
            self.counters["oversize"] += 1
            return [Warn("", f"a model of {offer.size} bytes is too large")]
        effects: list[Effect] = []
        if not self.expects(offer.digest):
            self._receiver = Receiver(Layout(offer.size, offer.chunk_bytes), window=WINDOW)
            self._digest, self._finishing = offer.digest, False
            effects.append(OpenModel(offer.digest))
        if offer.first:
            effects += self._take(0, offer.first, now)
        return effects + self._ask(offer.run, now)

    def chunk(self, chunk: Chunk, now: float) -> list[Effect]:
        """Take a chunk of it.

        Raises:
            ChunkError: It does not fit; nothing changed.
        """
        if not self.expects(chunk.digest):
            self.counters["chunk_unasked"] += 1
            return []
        return self._take(chunk.index, chunk.data, now) + self._ask(chunk.run, now)

    def forget(self) -> None:
        """Want no model any more."""
        self._receiver = None

    def tick(self, run: str, now: float) -> list[Effect]:
        """Ask again for what is due."""
        due = self.due
        return self._ask(run, now) if due is not None and now >= due else []

    @property
    def due(self) -> float | None:
        """When `tick` is wanted."""
        return self._receiver.due if self._receiver is not None and not self._finishing else None

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

    def _ask(self, run: str, now: float) -> list[Effect]:
        """Ask for chunks: new credit, or again after silence."""
        if self._receiver is None or self._finishing:
            return []
        ranges = self._receiver.ask(now)
        need = Need(run=run, digest=self._digest, ranges=ranges)
        return [Send(COORDINATOR, need)] if ranges else []


@dataclass(slots=True)
class Outgoing:
    """The edge's own model on its way to the coordinator."""

    counters: Counter[str]
    _digest: str = ""
    _sender: Sender | None = None

    def need(self, need: Need, *, model: str, layout: Layout, link_idle: bool) -> list[Effect]:
        """Send what the coordinator authorised of the model we hold."""
        if need.digest != model:
            self.counters["need_unknown"] += 1
            return []
        if self._sender is None or self._digest != model:
            self._digest, self._sender = model, Sender(layout)
        self._sender.authorise(need.ranges, link_idle=link_idle)
        effects: list[Effect] = []
        while (index := self._sender.next()) is not None:
            chunk = Chunk(run=need.run, round=need.round, digest=model, index=index, data=b"")
            effects.append(Send(COORDINATOR, chunk, stored=True))
        return effects
