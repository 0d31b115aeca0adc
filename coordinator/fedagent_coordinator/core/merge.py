"""Pulling edge models for a merge, and offering the merged one to everybody."""

from dataclasses import dataclass, field

from fedagent_protocol.errors import ChunkError
from fedagent_protocol.messages import CHUNK_BYTES, Chunk, Need
from fedagent_protocol.transfer import Layout, Receiver, Sender

from .effects import Effect, FinishPart, Send, SendChunks, StorePart

ATTEMPTS = 3
"""Times that an edge model may arrive damaged before the merge goes on without it."""
CHUNKS_AT_ONCE = 8


@dataclass(slots=True)
class Pull:
    """One edge model on its way here.

    Attributes:
        edge: Who sends it.
        state: ``pulling``, ``checking``, ``here`` or ``lost``.
    """

    edge: str
    digest: str
    receiver: Receiver
    state: str = "pulling"
    attempts: int = 1


@dataclass(slots=True)
class MergeWork:
    """One merge under way.

    Attributes:
        round: The round after which it happens.
        weights: Weight of each distinct edge model, by digest.
        pulls: Models that are not here, by digest.
        give_up_at: When it goes on with what is here.
        started_at: When it began.
    """

    run: str
    round: int
    started_at: float
    give_up_at: float
    weights: dict[str, float] = field(default_factory=dict)
    pulls: dict[str, Pull] = field(default_factory=dict)
    asked: bool = False

    @property
    def complete(self) -> bool:
        """Whether no model is waited for."""
        return all(pull.state in {"here", "lost"} for pull in self.pulls.values())

    def add(self, digest: str, weight: float) -> None:
        """Count a model that is here; equal models add up."""
        self.weights[digest] = self.weights.get(digest, 0.0) + weight

    def pull(
        self, edge: str, digest: str, weight: float, layout: Layout, first: bytes
    ) -> list[Effect]:
        """Count a model that an edge has, and fetch it unless its report brought it."""
        self.add(digest, weight)
        if digest in self.pulls:
            return []
        pull = self.pulls[digest] = Pull(edge, digest, Receiver(layout))
        start, stop = layout.span(0)
        if len(first) != stop - start:
            return self._ask(pull, self.started_at)
        return self._take(pull, 0, first, self.started_at)

    def on_chunk(self, edge: str, chunk: Chunk, now: float) -> list[Effect]:
        """Take in a chunk; one that nobody waits for changes nothing.

        Raises:
            ChunkError: It does not fit its transfer.
        """
        pull = self.pulls.get(chunk.digest)
        if pull is None or pull.edge != edge or pull.state != "pulling":
            return []
        return self._take(pull, chunk.index, chunk.data, now)

    def checked(self, digest: str, *, intact: bool, now: float) -> list[Effect]:
        """Note whether a pulled model hashes to its name; a damaged one is pulled again."""
        pull = self.pulls[digest]
        if intact:
            pull.state = "here"
            return []
        pull.attempts += 1
        if pull.attempts > ATTEMPTS:
            self.lose(pull)
            return []
        pull.state = "pulling"
        pull.receiver = Receiver(pull.receiver.layout)
        return self._ask(pull, now)

    def tick(self, now: float) -> list[Effect]:
        """Ask again after silence; give up at the end."""
        effects: list[Effect] = []
        for pull in self.pulls.values():
            if pull.state == "pulling":
                if now >= self.give_up_at:
                    self.lose(pull)
                else:
                    effects += self._ask(pull, now)
        return effects

    def lose(self, pull: Pull) -> None:
        """Go on without a model."""
        pull.state = "lost"
        self.weights.pop(pull.digest, None)

    def next_due(self) -> float | None:
        """Return when `tick` is wanted."""
        times = [
            min(pull.receiver.due or self.give_up_at, self.give_up_at)
            for pull in self.pulls.values()
            if pull.state == "pulling"
        ]
        return min(times, default=None)

    def _take(self, pull: Pull, index: int, data: bytes, now: float) -> list[Effect]:
        if not pull.receiver.accept(index, len(data), now):
            return []
        layout = pull.receiver.layout
        start, _ = layout.span(index)
        effects: list[Effect] = [StorePart(pull.digest, layout.size, start, data)]
        if pull.receiver.complete:
            pull.state = "checking"
            effects.append(FinishPart(pull.digest))
            return effects
        return effects + self._ask(pull, now)

    def _ask(self, pull: Pull, now: float) -> list[Effect]:
        ranges = pull.receiver.ask(now)
        if not ranges:
            return []
        need = Need(run=self.run, round=self.round, digest=pull.digest, ranges=ranges)
        return [Send(pull.edge, need)]


@dataclass(slots=True)
class Serving:
    """The global model on its way to the edges that lack it.

    Attributes:
        digest: The global model.
        size: Its bytes.
    """

    digest: str
    size: int
    chunk_bytes: int = CHUNK_BYTES
    _senders: dict[str, Sender] = field(default_factory=dict)

    @property
    def layout(self) -> Layout:
        """How the model is cut."""
        return Layout(self.size, self.chunk_bytes)

    def replace(self, digest: str, size: int) -> None:
        """Serve another model from now on."""
        self.digest, self.size = digest, size
        self._senders.clear()

    def offer(self, edge: str) -> None:
        """Start over with an edge that is offered the model."""
        self._senders.pop(edge, None)

    def on_need(self, edge: str, need: Need, *, link_idle: bool) -> tuple[list[Effect], bool]:
        """Send what an edge asks for; True with the model's last chunk.

        Raises:
            ChunkError: It asks for chunks that do not exist.
        """
        if need.digest != self.digest:
            return [], False
        sender = self._senders.get(edge)
        if sender is None:
            sender = self._senders[edge] = Sender(self.layout)
        count = sender.layout.count
        if any(stop > count or start >= stop for start, stop in need.ranges):
            raise ChunkError(f"asked for chunks beyond {count}")
        sender.authorise(need.ranges, link_idle=link_idle)
        chunks: list[int] = []
        while len(chunks) < CHUNKS_AT_ONCE and (index := sender.next()) is not None:
            chunks.append(index)
        if not chunks:
            return [], False
        return [SendChunks(edge, self.digest, tuple(chunks))], count - 1 in chunks
