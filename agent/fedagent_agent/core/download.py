"""One blob on its way from an edge, chunk by chunk under the credit that the agent gives."""

from collections import Counter
from dataclasses import dataclass

from fedagent_node.effects import Effect, ModelFinished, Send, WriteModel
from fedagent_node.timers import Timers
from fedagent_protocol.errors import ProtocolError
from fedagent_protocol.messages import MAX_CHUNKS, Chunk, Need
from fedagent_protocol.transfer import Layout, Pace, Receiver

from .device import LinkQuality
from .effects import FinishModel, Key, ModelOpened, OpenModel

MAX_MODEL_BYTES = 512 << 20


@dataclass(slots=True)
class Download:
    """A model, or with `once` the file that a task's devices get once."""

    key: Key  # edge that it comes from, run and round
    digest: str
    size: int
    chunk_bytes: int
    counters: Counter[str]
    timers: Timers
    once: bool = False
    answers: bool = False  # the edge has not heard yet that its order is here
    first: bytes = b""  # all of it, where it came with the order
    whole_at: float | None = None
    moved_at: float = -1e9  # when something of it came last
    problem: str = ""
    loading: bool = False
    _receiver: Receiver | None = None
    _first_at: float = 0.0
    _first_bytes: int = 0
    _got: int = 0

    @property
    def fits(self) -> bool:
        """Whether it is of a size that is fetched."""
        return 0 < self.size <= min(MAX_MODEL_BYTES, self.chunk_bytes * MAX_CHUNKS)

    @property
    def _lacking(self) -> bool:
        return self.loading and self._receiver is not None and not self._receiver.complete

    def begin(self) -> list[Effect]:
        """Look for what of it is on disk already."""
        self.loading = True
        return [OpenModel(self.digest, self.size, self.chunk_bytes, once=self.once)]

    def opened(self, event: ModelOpened, link: LinkQuality | None, now: float) -> list[Effect]:
        """Go and get the chunks that are not here, at the pace of the link."""
        if event.have is None:
            self.loading, self.whole_at = False, now
            return []
        layout = Layout(self.size, self.chunk_bytes)
        pace = link.down if link is not None else Pace()
        self._receiver = Receiver(layout, pace, set(event.have))
        if self._receiver.complete:
            return [FinishModel(self.digest)]
        first, self.first = self.first, b""
        if len(first) == self.size:
            self._receiver.accept(0, self.size, now)
            return [WriteModel(self.digest, 0, first), FinishModel(self.digest)]
        return self._ask(now)

    def receive(self, chunk: Chunk, now: float) -> list[Effect]:
        """Take a chunk; `ProtocolError`: it does not fit the layout, or was not asked for."""
        receiver = self._receiver
        if receiver is None:
            raise ProtocolError(f"chunk {chunk.index} was not asked for", "bad_chunk")
        if not receiver.accept(chunk.index, len(chunk.data), now):
            self.counters["chunk_twice"] += 1
            return []
        if self._got == 0:
            self._first_at, self._first_bytes = now, len(chunk.data)
        self._got += len(chunk.data)
        self.moved_at = now
        written = WriteModel(self.digest, chunk.index * self.chunk_bytes, chunk.data)
        return [written, *([FinishModel(self.digest)] if receiver.complete else self._ask(now))]

    def finished(self, event: ModelFinished, link: LinkQuality | None, now: float) -> list[Effect]:
        """Note that it is whole, or that it does not hash to its name."""
        self.loading = False
        self.timers.stop(("chunks", self.digest))
        if event.refused:
            self.counters["digest_mismatch"] += 1
            self.problem = event.refused
            return []
        self.whole_at = now
        nbytes, seconds = self._got - self._first_bytes, self.moved_at - self._first_at
        # The first message waits for the edge; only what follows shows the link.
        if link is not None and nbytes > 0 and seconds > 0:
            link.note_download(nbytes, seconds)
        return []

    def pause(self) -> None:
        """Let go of the network; `begin` goes on with what is on disk."""
        self.loading, self._receiver, self._got = False, None, 0

    def resume(self, now: float, *, lost: bool = True) -> list[Effect]:
        """Ask for what is lacking, also for what was `lost` with a link or an edge's process."""
        if self._receiver is not None and (lost or self._receiver.stalled):
            self._receiver.forget_credit()
        return self._ask(now)

    def go_on(self, key: Key, now: float) -> list[Effect]:
        """Go on for a later round; what was on its way still comes."""
        self.key, self.answers = key, self.answers or not self._lacking
        return self.resume(now, lost=False)

    def acknowledge(self) -> list[Effect]:
        """Tell the edge that nothing needs to be sent, once that is so."""
        return [self._need(())] if self.whole_at is not None else []

    def _ask(self, now: float) -> list[Effect]:
        """Ask for what may come now; again for what did not."""
        receiver = self._receiver
        if receiver is None or not self._lacking:
            return []
        ranges = receiver.ask(now)
        if receiver.due is not None:
            self.timers.at(("chunks", self.digest), receiver.due, self._ask)
        return [self._need(ranges)] if ranges else []

    def _need(self, ranges: tuple[tuple[int, int], ...]) -> Send:
        self.answers = False
        edge, run, number = self.key
        return Send(edge, Need(run=run, round=number, digest=self.digest, ranges=ranges))
