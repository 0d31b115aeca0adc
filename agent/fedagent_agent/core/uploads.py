"""An update on its way out, from the outbox until its receipt."""

from collections.abc import Callable
from dataclasses import dataclass, field

from msgspec import structs

from fedagent_node.effects import Effect, Send
from fedagent_protocol.messages import Chunk, ContextReport
from fedagent_protocol.transfer import Layout, RangeList, Sender

from .effects import DropUpdate, Key, PendingUpdate

FIRST_REPEAT_S = 1.5
LONGEST_REPEAT_S = 15.0
AT_LINK = 2
"""Chunks that the link may hold unacknowledged: more only delay other messages."""
FIRST_POLL_S = 0.004
LONGEST_POLL_S = 0.1


@dataclass(slots=True)
class Upload:
    """One update, offered to the edge that ordered it until that receipts it.

    The offer is repeated, ever more patiently.
    """

    update: PendingUpdate
    offers: int = 0
    _sender: Sender = field(init=False)
    _asked: bool = False
    _repeat_at: float = 0.0
    _patience_s: float = FIRST_REPEAT_S
    _poll_at: float = 0.0
    _poll_s: float = FIRST_POLL_S
    _offered_at: float = 0.0

    def __post_init__(self) -> None:
        """Begin without credit."""
        offer = self.update.offer
        self._sender = Sender(Layout(offer.size, offer.chunk_bytes))

    def offer(self, context: ContextReport, now: float, *, busy: bool) -> list[Effect]:
        """Offer the update, with chunk 0 where that was granted and is not under way.

        Over a `busy` link nothing is repeated: the last offer is most likely in it.
        """
        self._repeat_at = now + self._patience_s
        if busy:
            return []
        if self.offers:
            self._patience_s = min(2 * self._patience_s, LONGEST_REPEAT_S)
            self._repeat_at = now + self._patience_s
        else:
            self._offered_at = now
        self.offers += 1
        offer = self.update.offer
        first = self.update.credit > 0 and not self._asked
        if first:
            self._sender.authorise(((0, 1),), link_idle=True)
            self._sender.next()
        offer = structs.replace(offer, context=context)
        return [Send(self.update.key.edge, offer, stored=first)]

    def need(self, ranges: RangeList, pending: Callable[[], int], now: float) -> list[Effect]:
        """Take credit from the edge, and use it."""
        self._asked = True
        self._patience_s = FIRST_REPEAT_S
        self._repeat_at = now + LONGEST_REPEAT_S
        self._sender.authorise(ranges, link_idle=pending() == 0)
        return self.pump(pending, now)

    def pump(self, pending: Callable[[], int], now: float) -> list[Effect]:
        """Hand authorised chunks to the link, few at a time."""
        effects: list[Effect] = []
        chunk_bytes = self.update.offer.chunk_bytes
        at_link = pending()
        while self._sender.pending and at_link < AT_LINK * chunk_bytes:
            index = self._sender.next()
            assert index is not None
            key, digest = self.update.key, self.update.offer.digest
            chunk = Chunk(run=key.run, round=key.round, digest=digest, index=index, data=b"")
            effects.append(Send(key.edge, chunk, stored=True))
            at_link += chunk_bytes
        if effects:
            self._poll_s = FIRST_POLL_S
            self._repeat_at = max(self._repeat_at, now + LONGEST_REPEAT_S)
        else:
            self._poll_s = min(self._poll_s * 2, LONGEST_POLL_S)
        self._poll_at = now + self._poll_s
        return effects

    def reconnected(self) -> None:
        """The edge may have lost what was under way: offer again, and at once."""
        self._patience_s = FIRST_REPEAT_S
        self._repeat_at = 0.0
        self._sender = Sender(self._sender.layout)

    @property
    def repeat_at(self) -> float:
        """When the offer is to be repeated."""
        return self._repeat_at

    @property
    def poll_at(self) -> float | None:
        """When `pump` is wanted; None while there is no credit to use."""
        return self._poll_at if self._sender.pending else None

    def measured(self, now: float) -> tuple[int, float] | None:
        """Bytes and seconds from first offer to receipt; None if they say nothing.

        A small update's time is the edge's disk, and a repeated one's is silence.
        """
        offer = self.update.offer
        if self.offers != 1 or offer.size <= offer.chunk_bytes:
            return None
        return offer.size, now - self._offered_at


@dataclass(slots=True)
class Uploads:
    """Every update that has no receipt yet, by what ordered it."""

    by_key: dict[Key, Upload] = field(default_factory=dict)
    dropped: bool = False
    """Removals wait for a commit."""

    def add(self, update: PendingUpdate) -> Upload:
        """Add an update that is durable."""
        upload = self.by_key[update.key] = Upload(update)
        return upload

    def of(self, edge: str) -> list[Upload]:
        """Return the updates for one edge."""
        return [upload for key, upload in self.by_key.items() if key.edge == edge]

    def end(self, key: Key) -> list[Effect]:
        """Forget an update that is receipted or over."""
        if self.by_key.pop(key, None) is None:
            return []
        self.dropped = True
        return [DropUpdate(key)]

    def end_others(self, key: Key) -> list[Effect]:
        """Forget what the edge ordered before: a newer order ends it."""
        old = [other for other in self.by_key if other.edge == key.edge and other != key]
        return [effect for other in old for effect in self.end(other)]
