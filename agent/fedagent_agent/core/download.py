"""A model on its way in."""

from collections import Counter
from dataclasses import dataclass

from fedagent_protocol.errors import ChunkError
from fedagent_protocol.messages import Chunk, Need
from fedagent_protocol.transfer import Layout, Receiver

from .effects import (
    Effect,
    FinishModel,
    OpenModel,
    Send,
    SubscribeModel,
    UnsubscribeModel,
    WriteModel,
)
from .reporting import LinkQuality

WINDOW = 4
MAX_FRESH_STARTS = 3


@dataclass(slots=True)
class Download:
    """One model from one edge, for the orders that name it.

    Attributes:
        edge: Who sends it.
        layout: How it is cut.
        fresh_starts: How often a complete model did not hash to its name.
    """

    edge: str
    run: str
    digest: str
    layout: Layout
    fresh_starts: int = 0
    duplicates: int = 0
    _receiver: Receiver | None = None
    _listening: bool = False
    _first_at: float = 0.0
    _first_bytes: int = 0
    _got: int = 0
    _last_at: float = 0.0

    def begin(self) -> list[Effect]:
        """Look for what is on disk already."""
        return [OpenModel(self.digest, self.layout.size, self.layout.chunk_bytes)]

    def opened(self, have: frozenset[int]) -> list[Effect]:
        """Take in which chunks are here; go and get the others."""
        self._receiver = Receiver(self.layout, window=WINDOW, have=set(have))
        if self._receiver.complete:
            return [FinishModel(self.digest)]
        return [SubscribeModel(self.edge, self.digest)]

    def subscribed(self, round_: int, now: float) -> list[Effect]:
        """Chunks can come now."""
        self._listening = True
        return self.ask(round_, now)

    def chunk(self, index: int, data: bytes, round_: int, now: float) -> list[Effect]:
        """Take a chunk.

        Raises:
            ChunkError: It does not fit the layout.
        """
        receiver = self._receiver
        if receiver is None:
            raise ChunkError(f"chunk {index} was not asked for")
        if not receiver.accept(index, len(data), now):
            self.duplicates += 1
            return []
        self._note(len(data), now)
        effects: list[Effect] = [WriteModel(self.digest, index, data)]
        if receiver.complete:
            return [*effects, *self.leave(), FinishModel(self.digest)]
        return effects + self.ask(round_, now)

    def take(self, chunk: Chunk, round_: int, now: float, counters: Counter[str]) -> list[Effect]:
        """Take a chunk as it came; one that is here already is counted.

        Raises:
            ChunkError: It does not fit the layout.
        """
        before = self.duplicates
        effects = self.chunk(chunk.index, chunk.data, round_, now)
        counters["chunk_twice"] += self.duplicates - before
        return effects

    def measure(self, link: LinkQuality | None) -> None:
        """Tell what is known of a link how fast the model came."""
        if link is not None and self.measured is not None:
            link.note_download(*self.measured)

    def ask(self, round_: int, now: float) -> list[Effect]:
        """Authorise what may come next, or ask again for what did not come."""
        if not self._listening or self._receiver is None or self._receiver.complete:
            return []
        ranges = self._receiver.ask(now)
        if not ranges:
            return []
        need = Need(run=self.run, round=round_, digest=self.digest, ranges=ranges)
        return [Send(self.edge, need)]

    def reconnected(self) -> list[Effect]:
        """The edge is back, perhaps on a new link: subscribe again, then ask again."""
        if self._receiver is None or self._receiver.complete:
            return []
        self._listening = False
        self._receiver.forget_credit()
        return [SubscribeModel(self.edge, self.digest)]

    def start_over(self) -> list[Effect]:
        """The content was wrong: forget it, and begin again."""
        self.fresh_starts += 1
        self._receiver = None
        self._got = 0
        return self.begin()

    def leave(self) -> list[Effect]:
        """Unsubscribe, if need be."""
        if not self._listening and self._receiver is None:
            return []
        self._listening = False
        return [UnsubscribeModel(self.edge, self.digest)]

    @property
    def due(self) -> float | None:
        """When `ask` is wanted although nothing came."""
        return self._receiver.due if self._receiver is not None and self._listening else None

    @property
    def measured(self) -> tuple[int, float] | None:
        """Bytes and seconds of the transfer after its first chunk; None if that says nothing.

        The first chunk waits for other agents; only what follows shows the link.
        """
        nbytes = self._got - self._first_bytes
        seconds = self._last_at - self._first_at
        return (nbytes, seconds) if nbytes > 0 and seconds > 0 else None

    def _note(self, nbytes: int, now: float) -> None:
        if self._got == 0:
            self._first_at, self._first_bytes = now, nbytes
        self._got += nbytes
        self._last_at = now
