"""One blob on its way from an edge, chunk by chunk under the credit that the agent gives."""

from collections import Counter

from fedagent_node.effects import Effect, ModelFinished, Send, WriteModel
from fedagent_protocol.errors import ChunkError
from fedagent_protocol.messages import MAX_CHUNKS, Chunk, Need
from fedagent_protocol.transfer import Layout, Receiver

from .device import LinkQuality
from .effects import FinishModel, Key, OpenModel, SubscribeModel, UnsubscribeModel

MAX_MODEL_BYTES = 512 << 20
WINDOW = 4
MAX_FRESH_STARTS = 3


class Download:
    """A model, or with `once` the file that a task's devices get once.

    Attributes:
        key: Edge that it comes from, run and round.
        whole_at: When it was whole.
        moved_at: When something of it came last.
    """

    def __init__(
        self,
        key: Key,
        digest: str,
        size: int,
        chunk_bytes: int,
        counters: Counter[str],
        *,
        once: bool = False,
    ) -> None:
        self.key = key
        self.digest, self.size, self.chunk_bytes = digest, size, chunk_bytes
        self.counters = counters
        self.whole_at: float | None = None
        self.moved_at = -1e9
        self.problem = ""
        self.loading = False
        self._once = once
        self._fresh_starts = 0
        self._receiver: Receiver | None = None
        self._listening = False
        self._first_at = 0.0
        self._first_bytes = 0
        self._got = 0

    def begin(self) -> list[Effect]:
        """Look for what of it is on disk already."""
        self.loading = True
        return [OpenModel(self.digest, self.size, self.chunk_bytes, once=self._once)]

    def opened(self, have: frozenset[int] | None, now: float) -> list[Effect]:
        """Go and get the chunks that are not here; None: all of it is."""
        if have is None:
            self.loading, self.whole_at = False, now
            return self.acknowledge()
        layout = Layout(self.size, self.chunk_bytes)
        self._receiver = Receiver(layout, window=WINDOW, have=set(have))
        if self._receiver.complete:
            return [FinishModel(self.digest)]
        return [SubscribeModel(self.key.edge, self.digest)]

    def subscribed(self, edge: str, now: float, *, ok: bool) -> list[Effect]:
        """Ask for chunks, which can come now."""
        if edge != self.key.edge:
            return []
        if not ok:
            self.problem = "the broker refused the subscription to the model"
            return []
        self._listening = True
        return self._ask(now)

    def receive(self, chunk: Chunk, now: float) -> list[Effect]:
        """Take a chunk; raise `ChunkError` if it does not fit the layout, or was not asked for."""
        receiver = self._receiver
        if receiver is None:
            raise ChunkError(f"chunk {chunk.index} was not asked for")
        if not receiver.accept(chunk.index, len(chunk.data), now):
            self.counters["chunk_twice"] += 1
            return []
        if self._got == 0:
            self._first_at, self._first_bytes = now, len(chunk.data)
        self._got += len(chunk.data)
        self.moved_at = now
        offset = chunk.index * self.chunk_bytes
        effects: list[Effect] = [WriteModel(self.digest, offset, chunk.data)]
        if receiver.complete:
            return [*effects, *self._unsubscribe(), FinishModel(self.digest)]
        return effects + self._ask(now)

    def finished(self, result: ModelFinished, link: LinkQuality | None, now: float) -> list[Effect]:
        """Note that it is whole; begin again if it does not hash to its name."""
        if not result.refused:
            self.loading, self.whole_at = False, now
            nbytes, seconds = self._got - self._first_bytes, self.moved_at - self._first_at
            # The first chunk waits for other agents; only what follows shows the link.
            if link is not None and nbytes > 0 and seconds > 0:
                link.note_download(nbytes, seconds)
            return [] if self._got else self.acknowledge()
        self.counters["digest_mismatch"] += 1
        if self._fresh_starts >= MAX_FRESH_STARTS:
            self.problem = result.refused
            return []
        self._fresh_starts += 1
        self._receiver, self._got = None, 0
        return self.begin()

    def acknowledge(self) -> list[Effect]:
        """Tell the edge, if it waits for that, that nothing needs to be sent."""
        return []

    def pause(self) -> list[Effect]:
        """Let go of the network; `begin` goes on with what is on disk."""
        effects = self._unsubscribe() if self.loading else []
        self.loading, self._receiver, self._got = False, None, 0
        return effects

    def resume(self) -> list[Effect]:
        """Ask again for what may be lost, perhaps on a new link."""
        if not self.loading or self._receiver is None or self._receiver.complete:
            return []
        self._listening = False
        self._receiver.forget_credit()
        return [SubscribeModel(self.key.edge, self.digest)]

    def go_on(self, key: Key, now: float) -> list[Effect]:
        """Go on for a later round, which gives new credit."""
        self.key = key
        if not self.loading or self._receiver is None or self._receiver.complete:
            return self.acknowledge()
        self._receiver.forget_credit()
        return self._ask(now)

    def look(self, now: float) -> list[Effect]:
        """Ask again for what did not come, if that is due."""
        return self._ask(now) if (due := self.due) is not None and now >= due else []

    @property
    def due(self) -> float | None:
        """When `look` is wanted."""
        return self._receiver.due if self._receiver is not None and self._listening else None

    def _ask(self, now: float) -> list[Effect]:
        if not self._listening or self._receiver is None or self._receiver.complete:
            return []
        ranges = self._receiver.ask(now)
        return [Send(self.key.edge, self._need(ranges))] if ranges else []

    def _need(self, ranges: tuple[tuple[int, int], ...]) -> Need:
        run, number = self.key.rank
        return Need(run=run, round=number, digest=self.digest, ranges=ranges)

    def _unsubscribe(self) -> list[Effect]:
        if not self._listening and self._receiver is None:
            return []
        self._listening = False
        return [UnsubscribeModel(self.key.edge, self.digest)]


def fits(size: int, chunk_bytes: int) -> bool:
    """Whether a blob is of a size that is fetched."""
    return 0 < size <= min(MAX_MODEL_BYTES, chunk_bytes * MAX_CHUNKS)
