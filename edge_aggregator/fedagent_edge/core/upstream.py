"""The edge's side of its session with the coordinator, and models in both directions."""

from collections import Counter
from dataclasses import dataclass

from fedagent_node.effects import Effect, Send, Warn
from fedagent_protocol.messages import Chunk, GlobalModel, Need
from fedagent_protocol.transfer import Layout, Receiver, Sender

from .effects import COORDINATOR, FinishModel, OpenModel, WriteModel

STATUS_S = 5.0
HELLO_AGAIN_S = 1.0
HELLO_SELDOM_S = 5.0
SILENT_S = 15.0
"""Three silent periods of the coordinator's beacon."""


@dataclass(slots=True)
class Upstream:
    """Which coordinator this edge serves, and when to say what to it.

    Attributes:
        coordinator: The one served now, or last.
        welcomed: It has answered our hello since the connection came up.
        joined: A person was told that it is there.
    """

    coordinator: str = ""
    welcomed: bool = False
    joined: bool = False
    heard_at: float = -1e9
    hello_at: float = 0.0
    status_at: float = 0.0

    def is_other(self, coordinator: str, now: float) -> bool:
        """Whether this is not the coordinator that is served, which is alive.

        Two coordinators of one site must not tear an edge from each other.
        """
        alive = self.welcomed and now - self.heard_at <= SILENT_S
        return alive and coordinator != self.coordinator

    def welcome(self, coordinator: str, now: float) -> bool:
        """Note the session; True if a person should be told."""
        news = not self.joined or coordinator != self.coordinator
        self.coordinator, self.welcomed, self.joined, self.heard_at = coordinator, True, True, now
        return news

    def lost(self, now: float) -> bool:
        """Whether the coordinator has just become silent for too long."""
        if not self.joined or now - self.heard_at <= SILENT_S:
            return False
        self.welcomed = self.joined = False
        return True

    def next_due(self) -> float:
        """Return when `lost`, a hello or a status is due."""
        due = self.status_at if self.welcomed else self.hello_at
        return min(due, self.heard_at + SILENT_S + 0.001) if self.joined else due

    def hello_sent(self, now: float) -> None:
        """Note that a hello went out."""
        near = now - self.heard_at <= SILENT_S
        self.hello_at = now + (HELLO_AGAIN_S if near else HELLO_SELDOM_S)


@dataclass(slots=True)
class ModelPull:
    """A model of the coordinator on its way in."""

    digest: str
    receiver: Receiver
    finishing: bool = False

    @classmethod
    def of(cls, offer: GlobalModel) -> "ModelPull":
        """Begin to take an offered model.

        Raises:
            ProtocolError: Its size and chunks do not fit.
        """
        return cls(offer.digest, Receiver(Layout(offer.size, offer.chunk_bytes), window=8))

    def begin(self) -> list[Effect]:
        """Make room for it."""
        return [OpenModel(self.digest)]

    def take(self, index: int, data: bytes, now: float) -> list[Effect]:
        """Take a chunk; the last one begins the verification.

        Raises:
            ChunkError: It does not fit; nothing changed.
        """
        if self.finishing or not self.receiver.accept(index, len(data), now):
            return []
        layout = self.receiver.layout
        effects: list[Effect] = [WriteModel(self.digest, layout.span(index)[0], data)]
        if self.receiver.complete:
            self.finishing = True
            effects.append(FinishModel(self.digest, layout.size))
        return effects

    def ask(self, run: str, now: float) -> list[Effect]:
        """Ask for chunks: new credit, or again after silence."""
        ranges = () if self.finishing else self.receiver.ask(now)
        need = Need(run=run, digest=self.digest, ranges=ranges)
        return [Send(COORDINATOR, need)] if ranges else []

    @property
    def due(self) -> float | None:
        """When to ask again."""
        return None if self.finishing else self.receiver.due


@dataclass(slots=True)
class Incoming:
    """At most one model of the coordinator on its way in.

    Attributes:
        max_bytes: Larger models are refused.
    """

    counters: Counter[str]
    max_bytes: int
    _pull: ModelPull | None = None

    def expects(self, digest: str) -> bool:
        """Whether this model is on its way."""
        return self._pull is not None and self._pull.digest == digest

    def offered(self, offer: GlobalModel, now: float) -> list[Effect]:
        """Begin, or go on, to take a model.

        Raises:
            ProtocolError: Size, chunks or the first chunk do not fit.
        """
        if offer.size > self.max_bytes:
            self.counters["oversize"] += 1
            return [Warn("", f"a model of {offer.size} bytes is too large")]
        effects: list[Effect] = []
        if self._pull is None or self._pull.digest != offer.digest:
            self._pull = ModelPull.of(offer)
            effects = self._pull.begin()
        if offer.first:
            effects += self._pull.take(0, offer.first, now)
        return effects + self._pull.ask(offer.run, now)

    def chunk(self, chunk: Chunk, now: float) -> list[Effect]:
        """Take a chunk of it.

        Raises:
            ChunkError: It does not fit; nothing changed.
        """
        pull = self._pull
        if pull is None or chunk.digest != pull.digest:
            self.counters["chunk_unasked"] += 1
            return []
        return pull.take(chunk.index, chunk.data, now) + pull.ask(chunk.run, now)

    def forget(self) -> None:
        """Want no model any more."""
        self._pull = None

    def tick(self, run: str, now: float) -> list[Effect]:
        """Ask again for what is due."""
        due = self.due
        return self._pull.ask(run, now) if self._pull and due is not None and now >= due else []

    @property
    def due(self) -> float | None:
        """When `tick` is wanted."""
        return self._pull.due if self._pull is not None else None


@dataclass(slots=True)
class ModelServing:
    """The edge's own model on its way to the coordinator, which merges it."""

    counters: Counter[str]
    _digest: str = ""
    _sender: Sender | None = None

    def need(self, need: Need, *, model: str, layout: Layout, link_idle: bool) -> list[Effect]:
        """Send what the coordinator authorised of the model we hold."""
        if not model or need.digest != model:
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
