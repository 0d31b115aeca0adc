"""Updates on their way out, from the outbox until the receipt."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

from msgspec import structs

from fedagent_node.effects import Effect, Emit, Send
from fedagent_protocol.messages import Chunk, ContextReport, Need, Receipt, TrainOrder
from fedagent_protocol.transfer import Layout, RangeList, Sender

from .effects import CarryUpdate, DropUpdate, FlushOutbox, Key, PendingUpdate, UpdateStored
from .session import Session, Sessions

FIRST_REPEAT_S = 1.5
LONGEST_REPEAT_S = 15.0
AT_LINK = 2
"""Chunks that the link may hold unacknowledged: more only delay other messages."""
FIRST_POLL_S = 0.004
LONGEST_POLL_S = 0.1
FLUSH_S = 2.0
"""How long a removal may wait for a commit to ride in."""
FLUSH_AGAIN_S = 30.0


@dataclass(slots=True)
class Upload:
    """One update, offered to the edge that ordered it until that receipts it.

    Attributes:
        paused: Its round is over; the edge will ask for the rest with a later order.
    """

    update: PendingUpdate
    offers: int = 0
    paused: bool = False
    _sender: Sender = field(init=False)
    _asked: bool = False
    repeat_at: float = 0.0
    _patience_s: float = FIRST_REPEAT_S
    _poll_at: float = 0.0
    _poll_s: float = FIRST_POLL_S
    _offered_at: float = 0.0

    def __post_init__(self) -> None:
        offer = self.update.offer
        self._sender = Sender(Layout(offer.size, offer.chunk_bytes))

    def offer(self, context: ContextReport, now: float, *, busy: bool) -> list[Effect]:
        """Offer the update, with chunk 0 where that was granted and is not under way.

        Over a `busy` link nothing is repeated: the last offer is most likely in it.
        """
        self.repeat_at = now + self._patience_s
        if busy:
            return []
        if self.offers:
            self._patience_s = min(2 * self._patience_s, LONGEST_REPEAT_S)
            self.repeat_at = now + self._patience_s
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
        self.repeat_at = now + LONGEST_REPEAT_S
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
            self.repeat_at = max(self.repeat_at, now + LONGEST_REPEAT_S)
        else:
            self._poll_s = min(self._poll_s * 2, LONGEST_POLL_S)
        self._poll_at = now + self._poll_s
        return effects

    def reconnected(self) -> None:
        """The edge may have lost what was under way: offer again, and at once."""
        self._patience_s = FIRST_REPEAT_S
        self.repeat_at = 0.0
        self._sender = Sender(self._sender.layout)

    @property
    def poll_at(self) -> float | None:
        """When `pump` is wanted; None while there is no credit to use."""
        return self._poll_at if self._sender.pending and not self.paused else None

    def measured(self, now: float) -> tuple[int, float] | None:
        """Bytes and seconds from first offer to receipt; None if they say nothing.

        A small update's time is the edge's disk, and a repeated one's is silence.
        """
        offer = self.update.offer
        if self.offers != 1 or offer.size <= offer.chunk_bytes or offer.made_in:
            return None
        return offer.size, now - self._offered_at


class Uploads:
    """Every update that has no receipt yet, and the removals that wait for a commit."""

    def __init__(
        self,
        updates: Iterable[PendingUpdate],
        sessions: Sessions,
        pending: Callable[[str], int],
        counters: Counter[str],
    ) -> None:
        self.by_key = {update.key: Upload(update) for update in updates}
        self._sessions = sessions
        self._pending_bytes = pending
        self._counters = counters
        self._flush_at: float | None = None

    def stored(self, event: UpdateStored, now: float) -> list[Effect]:
        """Offer an update that is durable."""
        self._flush_at = None
        for old in event.expired:
            self._counters["outbox_full"] += 1
            self.by_key.pop(old, None)
        key, offer = event.update.key, event.update.offer
        upload = self.by_key[key] = Upload(event.update)
        fields = {
            "round": key.round,
            "edge": key.edge,
            "size": offer.size,
            "num_samples": offer.stats.num_samples,
            "lc_ms": offer.stats.lc_ms,
        }
        return [*self._offer(upload, now), Emit("update", fields)]

    def offer_again(self, key: Key, now: float) -> list[Effect] | None:
        """Offer an update that was ordered again; None if there is none."""
        upload = self.by_key.get(key)
        if upload is None:
            return None
        self._counters["order_repeated"] += 1
        return self._offer(upload, now)

    def reconnected(self, edge: str, now: float) -> list[Effect]:
        """Offer an edge all that it has no receipt for."""
        effects: list[Effect] = []
        for upload in self.by_key.values():
            if upload.update.key.edge == edge and not upload.paused:
                upload.reconnected()
                effects += self._offer(upload, now)
        return effects

    def need(self, edge: str, need: Need, now: float) -> list[Effect]:
        """Send the chunks that an edge asks for."""
        upload = self._of(edge, need)
        if upload is None:
            self._counters["need_unknown"] += 1
            return []
        return upload.need(need.ranges, partial(self._pending, edge), now)

    def receipt(self, session: Session, receipt: Receipt, now: float) -> list[Effect]:
        """Forget an update that the edge receipts."""
        upload = self._of(session.edge, receipt)
        if upload is None:
            self._counters["receipt_unknown"] += 1
            return []
        self._counters[f"receipt_{receipt.status}"] += 1
        if (measured := upload.measured(now)) is not None:
            session.measured.note_upload(*measured)
        fields = {
            "round": receipt.round,
            "edge": session.edge,
            "status": str(receipt.status),
            "reason": receipt.reason,
        }
        return [*self._end(upload.update.key, now), Emit("receipt", fields)]

    def closed(self, key: Key, now: float, *, kept: bool) -> list[Effect]:
        """Forget an update whose round is over without a receipt, unless its edge may want it."""
        if key not in self.by_key:
            return []
        if kept:
            self.by_key[key].paused = True
            return []
        self._counters["closed_unreceipted"] += 1
        fields = {"round": key.round, "edge": key.edge, "reason": "closed"}
        return [*self._end(key, now), Emit("abandoned", fields)]

    def carry(self, key: Key, order: TrainOrder) -> list[Effect]:
        """Answer an order with an update that the edge has a part of; nothing if it is not here."""
        base, number = order.made_from, order.made_in
        for old, upload in self.by_key.items():
            offer = upload.update.offer
            made_in = offer.made_in or offer.round
            if (old.edge, old.run, offer.base, made_in) == (key.edge, key.run, base, number):
                del self.by_key[old]
                self._counters["carried_on"] += 1
                offer = structs.replace(offer, round=key.round, made_in=made_in, claim=b"")
                return [CarryUpdate(old, PendingUpdate(key, offer, 0))]
        return []

    def end_others(self, key: Key, now: float) -> list[Effect]:
        """Forget what the edge ordered before: a newer order ends it."""
        old = [other for other in self.by_key if other.edge == key.edge and other != key]
        return [effect for other in old for effect in self._end(other, now)]

    def flush_failed(self, now: float) -> list[Effect]:
        """Try later to commit removals; nothing is lost without them."""
        self._counters["outbox_flush_failed"] += 1
        self._flush_at = now + FLUSH_AGAIN_S
        return []

    def tick(self, now: float) -> list[Effect]:
        """Go on with transfers, repeat offers, and commit removals."""
        effects: list[Effect] = []
        for upload in self.by_key.values():
            edge = upload.update.key.edge
            if self._sessions.open(edge) is None or upload.paused:
                continue
            if upload.poll_at is not None and now >= upload.poll_at:
                effects += upload.pump(partial(self._pending, edge), now)
            if now >= upload.repeat_at:
                effects += self._offer(upload, now)
        if self._flush_at is not None and now >= self._flush_at:
            self._flush_at = None
            effects.append(FlushOutbox())
        return effects

    def dues(self) -> list[float]:
        """Return when `tick` is wanted."""
        times = [self._flush_at] if self._flush_at is not None else []
        for upload in self.by_key.values():
            if self._sessions.open(upload.update.key.edge) is not None and not upload.paused:
                times.append(upload.repeat_at)
                if upload.poll_at is not None:
                    times.append(upload.poll_at)
        return times

    def _offer(self, upload: Upload, now: float) -> list[Effect]:
        edge = upload.update.key.edge
        session = self._sessions.open(edge)
        if session is None:
            return []
        busy = upload.offers > 0 and self._pending(edge) > 0
        return upload.offer(self._sessions.report(session, now), now, busy=busy)

    def _of(self, edge: str, message: Need | Receipt) -> Upload | None:
        upload = self.by_key.get(Key(edge, message.run, message.round))
        same = upload is not None and upload.update.offer.digest == message.digest
        return upload if same else None

    def _end(self, key: Key, now: float) -> list[Effect]:
        del self.by_key[key]
        if self._flush_at is None:
            self._flush_at = now + FLUSH_S  # unless another commit takes the removal along
        return [DropUpdate(key)]

    def _pending(self, edge: str) -> int:
        link = self._sessions.link_of(edge)
        return self._pending_bytes(link) if link else 0
