"""The global model: which edge should hold it, and its way there.

The store puts the bytes into what is sent.
"""

from dataclasses import dataclass, field

from fedagent_node.effects import Effect, Send
from fedagent_protocol.errors import ChunkError
from fedagent_protocol.messages import CHUNK_BYTES, Chunk, GlobalModel, Need
from fedagent_protocol.transfer import Layout, Sender

from .edges import EdgeSession, EdgeTable
from .effects import Forget

REOFFER_S = 1.5
CHUNKS_AT_ONCE = 8


@dataclass(slots=True)
class GlobalModels:
    """Keeps edges at the global model, which was merged after `round`; all have `size` bytes."""

    run: str
    edges: EdgeTable
    digest: str
    size: int
    round: int
    chunk_bytes: int = CHUNK_BYTES
    _senders: dict[str, Sender] = field(default_factory=dict)

    @property
    def layout(self) -> Layout:
        """How the model is cut."""
        return Layout(self.size, self.chunk_bytes)

    @property
    def learnt(self) -> bool:
        """Whether an edge has learnt since the last merge."""
        return any(edge.window_weight > 0 for edge in self.edges.live())

    def catch_up(self, edge: EdgeSession, round_: int, now: float) -> list[Effect]:
        """Offer the global model to an edge that holds another than it should.

        What it had learnt since the last merge is given up, in the books too: a coordinator
        that comes back must not count it again.
        """
        if edge.offered_at is not None and now - edge.offered_at < REOFFER_S:
            return []
        effects: list[Effect] = []
        if self._has_learnt(edge):
            effects.append(Forget(round_ - 1, (edge.id,)))
        edge.expected = self.digest
        edge.window_weight = 0.0
        return effects if edge.model == self.digest else [*effects, self._offer(edge, round_, now)]

    def serve(
        self, edge: EdgeSession, need: Need, now: float, *, link_idle: bool
    ) -> tuple[list[Effect], bool]:
        """Send chunks of the model that an edge asked for; True with the last one.

        Raises:
            ChunkError: It asks for chunks that do not exist.
        """
        edge.offered_at = now
        layout = self.layout
        sender = self._senders.get(edge.id)
        if sender is None:
            sender = self._senders[edge.id] = Sender(layout)
        if any(stop > layout.count or start >= stop for start, stop in need.ranges):
            raise ChunkError(f"asked for chunks beyond {layout.count}")
        sender.authorise(need.ranges, link_idle=link_idle)
        chunks: list[int] = []
        while len(chunks) < CHUNKS_AT_ONCE and (index := sender.next()) is not None:
            chunks.append(index)
        sends: list[Effect] = [
            Send(edge.id, Chunk(run=self.run, digest=self.digest, index=i, data=b""), stored=True)
            for i in chunks
        ]
        return sends, layout.count - 1 in chunks

    def adopt(self, digest: str, round_: int, now: float) -> list[Effect]:
        """Make this the global model after a round; offer it to those that lack it."""
        effects: list[Effect] = []
        if digest != self.digest:
            self.digest, self.round = digest, round_
            self._senders.clear()
        else:
            effects += self._forget_all(round_)
        # Edges that did not come in time for this merge start from it when they come.
        self.edges.windows.clear()
        for edge in self.edges.by_id.values():
            edge.expected = digest
            edge.window_weight = 0.0
            edge.offered_at = None
            if edge.live and edge.model != digest:
                effects.append(self._offer(edge, round_, now))
        return effects

    def _has_learnt(self, edge: EdgeSession) -> bool:
        return edge.window_weight > 0 or edge.expected != self.digest

    def _offer(self, edge: EdgeSession, round_: int, now: float) -> Effect:
        edge.offered_at = now
        self._senders.pop(edge.id, None)
        offer = GlobalModel(
            run=self.run,
            round=round_,
            digest=self.digest,
            size=self.size,
            chunk_bytes=self.chunk_bytes,
            first=b"",
        )
        return Send(edge.id, offer, stored=True)

    def _forget_all(self, round_: int) -> list[Effect]:
        """Give up what a merge did not take, where no new model supersedes it in the books."""
        learnt = [edge.id for edge in self.edges.by_id.values() if self._has_learnt(edge)]
        lost = (*learnt, *self.edges.windows)
        return [Forget(round_, lost)] if lost else []
