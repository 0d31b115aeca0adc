"""Updates on their way out, from the books until the receipt."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

from msgspec import structs

from fedagent_node.effects import Effect, Emit, Send
from fedagent_protocol.messages import (
    Chunk,
    ContextReport,
    Need,
    Receipt,
    ReceiptStatus,
    TrainOrder,
)
from fedagent_protocol.transfer import PIECE_BYTES, Layout, Pace, Sender

from .effects import CarryUpdate, DropUpdate, Key, PendingUpdate, Timer, UpdateStored
from .session import Session, Sessions

REPEAT_S = 5.0
"""After so long without a sign of the edge an update is offered again."""
AT_LINK = 2
"""Messages that the link may hold unacknowledged: more only delay others."""
FIRST_POLL_S = 0.004
LONGEST_POLL_S = 0.1


@dataclass(slots=True)
class Upload:
    """One update, offered to the edge that ordered it until that receipts it."""

    update: PendingUpdate
    offers: int = 0
    paused: bool = False  # its round is over; the edge asks for the rest with a later order
    repeat_at: float = 0.0
    poll_at: float = 0.0
    offered_at: float = 0.0
    _sender: Sender = field(init=False)
    _asked: bool = False
    _at_link: int = 0  # bytes that the link held at a moment, with those that it got since
    _since: float = 0.0
    _poll_s: float = FIRST_POLL_S

    def __post_init__(self) -> None:
        offer = self.update.offer
        self._sender = Sender(Layout(offer.size, offer.chunk_bytes))

    @property
    def waiting(self) -> bool:
        """Whether there is credit to use."""
        return self._sender.pending > 0

    def offer(
        self, context: ContextReport | None, pace: Pace, now: float, *, busy: bool
    ) -> list[Effect]:
        """Offer the update, with its first bytes where those were granted and are not under way.

        Over a `busy` link nothing is repeated: the last offer is most likely in it.
        """
        self.repeat_at = now + REPEAT_S
        if busy:
            return []
        if not self.offers:
            self.offered_at = now
        self.offers += 1
        granted = self.update.credit > 0 and not self._asked
        first = self._sender.first(pace.piece_bytes) if granted else 0
        self._at_link, self._since = first, now
        offer = structs.replace(self.update.offer, context=context)
        return [Send(self.update.key.edge, offer, stored=first)]

    def need(self, need: Need, at_link: int, pace: Pace, now: float) -> list[Effect]:
        """Take credit from the edge, and use it."""
        self._asked = True
        self.repeat_at = now + REPEAT_S
        self._sender.authorise(need.ranges, link_idle=at_link == 0)
        return self.pump(at_link, pace, now)

    def pump(self, at_link: int, pace: Pace, now: float) -> list[Effect]:
        """Hand authorised chunks to a link with so many bytes in it, few at a time."""
        effects: list[Effect] = []
        went = self._at_link - at_link
        if went > 0 and (at_link == 0 or went >= pace.piece_bytes):
            pace.note(went, now - self._since)
            self._at_link, self._since = at_link, now
        piece = pace.piece_bytes
        key, digest = self.update.key, self.update.offer.digest
        while at_link < AT_LINK * piece and (found := self._sender.next(piece)) is not None:
            index, nbytes = found
            chunk = Chunk(run=key.run, round=key.round, digest=digest, index=index, data=b"")
            effects.append(Send(key.edge, chunk, stored=nbytes))
            if at_link == 0:
                self._at_link, self._since = 0, now
            at_link += nbytes
            self._at_link += nbytes
        if effects:
            self._poll_s = FIRST_POLL_S
            self.repeat_at = now + REPEAT_S
        else:
            self._poll_s = min(self._poll_s * 2, LONGEST_POLL_S)
        self.poll_at = now + self._poll_s
        return effects

    def reconnected(self) -> None:
        """Forget what was under way: the edge may have lost it."""
        self._sender = Sender(self._sender.layout)


@dataclass(slots=True)
class Uploads:
    """Every update that has no receipt yet."""

    by_key: dict[Key, Upload]
    _sessions: Sessions
    _pending_bytes: Callable[[str], int]  # that a link holds
    _counters: Counter[str]

    def stored(self, event: UpdateStored, now: float) -> list[Effect]:
        """Offer an update that is durable."""
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
            "made_in": offer.made_in,
        }
        return [*self._offer(upload, now), Emit("update", fields)]

    def offer_again(self, key: Key, now: float) -> list[Effect] | None:
        """Offer an update that was ordered again; None if there is none."""
        upload = self.by_key.get(key)
        if upload is None:
            return None
        return self._offer(upload, now)

    def reconnected(self, edge: str, now: float) -> list[Effect]:
        """Offer an edge all that it has no receipt for."""
        effects: list[Effect] = []
        for upload in self.by_key.values():
            if upload.update.key.edge == edge and not upload.paused:
                upload.reconnected()
                effects += self._offer(upload, now)
        return effects

    def need(self, session: Session, need: Need, now: float) -> list[Effect]:
        """Send the chunks that an edge asks for."""
        upload = self._of(session.edge, need)
        if upload is None:
            self._counters["need_unknown"] += 1
            return []
        offer = upload.update.offer
        # The edge has all of it. A small one's time is the way there, a repeated one's silence.
        whole = not need.ranges and upload.offers == 1 and not offer.made_in
        if whole and offer.size > PIECE_BYTES:
            session.measured.note_upload(offer.size, now - upload.offered_at)
        return upload.need(need, self._at_link(session.edge), session.measured.up, now)

    def receipt(self, session: Session, receipt: Receipt, now: float) -> list[Effect]:  # noqa: ARG002 - as all handlers
        """Forget an update that the edge receipts."""
        upload, void = self._of(session.edge, receipt), receipt.status is ReceiptStatus.VOID
        if upload is None and not void:
            self._counters["receipt_unknown"] += 1
            return []
        self._counters[f"receipt_{receipt.status}"] += 1
        fields = {
            "round": receipt.round,
            "edge": session.edge,
            "status": str(receipt.status),
            "reason": receipt.reason,
        }
        key = Key(session.edge, receipt.run, receipt.round)
        ended: list[Effect] = [self._end(key)] if key in self.by_key else []
        return [*ended, Emit("receipt", fields)]

    def closed(self, key: Key, *, kept: bool) -> list[Effect]:
        """Forget an update whose round is over without a receipt, unless its edge may want it."""
        if key not in self.by_key:
            return []
        if kept:
            self.by_key[key].paused = True
            return []
        self._counters["closed_unreceipted"] += 1
        fields = {"round": key.round, "edge": key.edge, "reason": "closed"}
        return [self._end(key), Emit("abandoned", fields)]

    def carry(self, key: Key, order: TrainOrder) -> list[Effect]:
        """Answer an order with an update that the edge has a part of; nothing if it is not here."""
        wanted = key.edge, key.run, order.made_from, order.made_in
        for old, upload in self.by_key.items():
            offer = upload.update.offer
            made_in = offer.made_in or offer.round
            if (old.edge, old.run, offer.base, made_in) == wanted:
                del self.by_key[old]
                offer = structs.replace(offer, round=key.round, made_in=made_in, claim=b"")
                return [CarryUpdate(old, PendingUpdate(key, offer, 0))]
        return []

    def end_others(self, key: Key) -> list[Effect]:
        """Forget what the edge ordered before: a newer order ends it."""
        old = [other for other in self.by_key if other.edge == key.edge and other != key]
        return [self._end(other) for other in old]

    def timers(self) -> Iterator[Timer]:
        """Go on with transfers, and repeat offers."""
        for key, upload in self.by_key.items():
            session = self._sessions.open(key.edge)
            if session is not None and not upload.paused:
                if upload.waiting:
                    at_link, up = self._at_link(key.edge), session.measured.up
                    yield upload.poll_at, partial(upload.pump, at_link, up)
                yield upload.repeat_at, partial(self._offer, upload)

    @property
    def urgent(self) -> bool:
        """Whether an update waits for an edge in sight: one that is paused does not."""
        waiting = (key.edge for key, upload in self.by_key.items() if not upload.paused)
        return any(self._sessions.in_sight(edge) for edge in waiting)

    def _offer(self, upload: Upload, now: float) -> list[Effect]:
        edge = upload.update.key.edge
        session = self._sessions.open(edge)
        if session is None:
            return []
        busy = upload.offers > 0 and self._at_link(edge) > 0
        news = self._sessions.news(session, now)
        return upload.offer(news, session.measured.up, now, busy=busy)

    def _of(self, edge: str, message: Need | Receipt) -> Upload | None:
        upload = self.by_key.get(Key(edge, message.run, message.round))
        same = upload is not None and upload.update.offer.digest == message.digest
        return upload if same else None

    def _end(self, key: Key) -> DropUpdate:
        del self.by_key[key]
        return DropUpdate(key)

    def _at_link(self, edge: str) -> int:
        link = self._sessions.link_of(edge)
        return self._pending_bytes(link) if link else 0
