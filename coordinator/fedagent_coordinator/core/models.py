"""The global model: which edge should hold what, and how the next one comes about."""

from collections.abc import Mapping
from dataclasses import dataclass

from fedagent_protocol.messages import Chunk, Need, Weighting
from fedagent_protocol.transfer import Layout

from .edges import EdgeSession, EdgeTable
from .effects import Effect, Forget, Merge, SendGlobal
from .merge import MergeWork, Serving
from .settings import Settings

REOFFER_S = 1.5


@dataclass(slots=True)
class Models:
    """Keeps edges at the global model, and merges theirs.

    Attributes:
        digest: The global model.
        size: Its bytes; the same for every model of the run.
        work: The merge under way, if any.
    """

    settings: Settings
    edges: EdgeTable
    digest: str
    size: int
    serving: Serving
    work: MergeWork | None = None

    # ------------------------------------------------------------ bring up to date

    def catch_up(self, edge: EdgeSession, round_: int, now: float) -> list[Effect]:
        """Offer the global model to an edge that holds another than it should.

        What it had learnt since the last merge is given up, in the books too: a
        coordinator that comes back must not count it again.
        """
        if edge.offered_at is not None and now - edge.offered_at < REOFFER_S:
            return []
        effects: list[Effect] = []
        if self._has_learnt(edge):
            effects.append(Forget(round_ - 1, (edge.id,)))
        edge.expected = self.digest
        edge.window_weight = 0.0
        return effects if edge.model == self.digest else effects + self._offer(edge, round_, now)

    def on_need(
        self, edge: EdgeSession, need: Need, now: float, *, link_idle: bool
    ) -> tuple[list[Effect], bool]:
        """Send chunks that an edge asked for; True with the last one.

        Raises:
            ChunkError: It asks for chunks that do not exist.
        """
        edge.offered_at = now
        return self.serving.on_need(edge.id, need, link_idle=link_idle)

    def _has_learnt(self, edge: EdgeSession) -> bool:
        return edge.window_weight > 0 or edge.expected != self.digest

    def _offer(self, edge: EdgeSession, round_: int, now: float) -> list[Effect]:
        edge.offered_at = now
        self.serving.offer(edge.id)
        return [SendGlobal(edge.id, self.digest, round_)]

    # ----------------------------------------------------------------------- merge

    @property
    def learnt(self) -> bool:
        """Whether an edge has learnt since the last merge."""
        return any(edge.window_weight > 0 for edge in self.edges.live())

    def begin(self, round_: int, firsts: Mapping[str, bytes], now: float) -> list[Effect]:
        """Fetch the edge models; `ask` follows when they are here.

        Args:
            round_: The round after which it happens.
            firsts: Chunk 0 of their models, where the reports brought it.
            now: When it begins.
        """
        s = self.settings
        work = self.work = MergeWork(s.run, round_, now, now + s.merge_timeout_s)
        effects: list[Effect] = []
        for edge in self.edges.live():
            weight = self._weight(edge)
            if weight > 0 and edge.expected == self.digest:
                work.add(self.digest, weight)
            elif weight > 0:
                layout = Layout(self.size, edge.chunk_bytes)
                first = firsts.get(edge.id, b"")
                effects += work.pull(edge.id, edge.expected, weight, layout, first)
        return effects

    def _weight(self, edge: EdgeSession) -> float:
        """Return how much an edge's model counts (docs/coordinator.md)."""
        if self.settings.weighting is Weighting.UNIFORM and not self.settings.placed:
            return 1.0 if edge.model or edge.window_weight > 0 else 0.0
        return edge.window_weight

    def on_chunk(self, edge: str, chunk: Chunk, now: float) -> list[Effect]:
        """Take in a chunk of an edge model.

        Raises:
            ChunkError: It does not fit its transfer.
        """
        return [] if self.work is None else self.work.on_chunk(edge, chunk, now)

    def ask(self) -> Merge | None:
        """Return the job, once, when every model is here or given up."""
        work = self.work
        if work is None or work.asked or not work.complete:
            return None
        work.asked = True
        return Merge(work.round, tuple(sorted(work.weights.items())))

    def adopt(self, digest: str, now: float) -> list[Effect]:
        """End the merge with this global model; offer it to those that lack it."""
        assert self.work is not None
        round_ = self.work.round
        self.work = None
        effects: list[Effect] = []
        if digest != self.digest:
            self.digest = digest
            self.serving.replace(digest, self.size)
        else:
            effects += self._forget_all(round_)
        # Edges that did not come in time for this merge start from it when they come.
        self.edges.windows.clear()
        for edge in self.edges.by_id.values():
            edge.expected = digest
            edge.window_weight = 0.0
            edge.offered_at = None
            if edge.live and edge.model != digest:
                effects += self._offer(edge, round_, now)
        return effects

    def _forget_all(self, round_: int) -> list[Effect]:
        """Give up what a merge did not take, where no new model says so in the books."""
        learnt = [edge.id for edge in self.edges.by_id.values() if self._has_learnt(edge)]
        lost = (*learnt, *self.edges.windows)
        return [Forget(round_, lost)] if lost else []
