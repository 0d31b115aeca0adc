"""Updates on their way out, from the books until the receipt."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from msgspec import structs

from fedagent_node.effects import Effect, Emit, Send
from fedagent_node.timers import Timers
from fedagent_protocol.messages import Chunk, Need, Receipt, ReceiptStatus, TrainOrder
from fedagent_protocol.transfer import PIECE_BYTES, Layout, Sender

from .effects import CarryUpdate, DropUpdate, Key, PendingUpdate, UpdateStored
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
    sender: Sender
    offers: int = 0
    paused: bool = False  # its round is over; the edge asks for the rest with a later order
    offered_at: float = 0.0
    asked: bool = False
    at_link: int = 0  # bytes that the link held at a moment, with those that it got since
    since: float = 0.0
    poll_s: float = FIRST_POLL_S

    @classmethod
    def of(cls, update: PendingUpdate) -> "Upload":
        """Return that of an update of which nothing is under way."""
        return cls(update, Sender(Layout(update.offer.size, update.offer.chunk_bytes)))


@dataclass(slots=True)
class Uploads:
    """Every update that has no receipt yet."""

    by_key: dict[Key, Upload]
    _sessions: Sessions
    _pending_bytes: Callable[[str], int]  # that a link holds
    _counters: Counter[str]
    _timers: Timers

    @property
    def urgent(self) -> bool:
        """Whether an update waits for an edge in sight: one that is paused does not."""
        waiting = (key.edge for key, upload in self.by_key.items() if not upload.paused)
        return any(self._sessions.in_sight(edge) for edge in waiting)

    # ---------------------------------------------------------------- offering

    def stored(self, event: UpdateStored, now: float) -> list[Effect]:
        """Offer an update that is durable."""
        for old in event.expired:
            self._counters["outbox_full"] += 1
            self._forget(old)
        key, offer = event.update.key, event.update.offer
        upload = self.by_key[key] = Upload.of(event.update)
        fields = {
            "round": key.round,
            "edge": key.edge,
            "size": offer.size,
            "num_samples": offer.stats.num_samples,
            "lc_ms": offer.stats.lc_ms,
            "made_in": offer.made_in,
        }
        return [*self.offer(upload, now), Emit("update", fields)]

    def reconnected(self, edge: str, now: float) -> list[Effect]:
        """Offer an edge all that it has no receipt for; it may have lost what was under way."""
        effects: list[Effect] = []
        for upload in self.by_key.values():
            if upload.update.key.edge == edge and not upload.paused:
                upload.sender = Sender(upload.sender.layout)
                effects += self.offer(upload, now)
        return effects

    def offer(self, upload: Upload, now: float) -> list[Effect]:
        """Offer an update, with its first bytes where those were granted and are not under way.

        Over a busy link nothing is repeated: the last offer is most likely in it.
        """
        key = upload.update.key
        session = self._sessions.open(key.edge)
        if session is None:
            return []
        self._repeat(upload, now)
        if upload.offers and self._pending_bytes(session.link) > 0:
            return []
        if not upload.offers:
            upload.offered_at = now
        upload.offers += 1
        granted = upload.update.credit > 0 and not upload.asked
        first = upload.sender.first(session.measured.up.piece_bytes) if granted else 0
        upload.at_link, upload.since = first, now
        offer = structs.replace(upload.update.offer, context=self._sessions.news(session, now))
        return [Send(key.edge, offer, stored=first)]

    def _repeat(self, upload: Upload, now: float) -> None:
        """Offer it again, unless there is a sign of the edge before."""
        if not upload.paused:
            again = partial(self.offer, upload)
            self._timers.at(("offer", upload.update.key), now + REPEAT_S, again)

    # ----------------------------------------------------------------- sending

    def need(self, session: Session, need: Need, now: float) -> list[Effect]:
        """Send the chunks that an edge asks for."""
        upload = self.by_key.get(Key(session.edge, need.run, need.round))
        if upload is None or upload.update.offer.digest != need.digest:
            self._counters["need_unknown"] += 1
            return []
        offer = upload.update.offer
        # The edge has all of it. A small one's time is the way there, a repeated one's silence.
        whole = not need.ranges and upload.offers == 1 and not offer.made_in
        if whole and offer.size > PIECE_BYTES:
            session.measured.note_upload(offer.size, now - upload.offered_at)
        upload.asked = True
        idle = self._pending_bytes(session.link) == 0
        upload.sender.authorise(need.ranges, link_idle=idle)
        self._repeat(upload, now)
        return self._pump(upload, now, session)

    def _pump(self, upload: Upload, now: float, session: Session | None = None) -> list[Effect]:
        """Hand authorised chunks to the link, few at a time, and measure what it carries."""
        key, digest = upload.update.key, upload.update.offer.digest
        session, effects = session or self._sessions.open(key.edge), list[Effect]()
        if session is None:
            return []
        at_link, pace = self._pending_bytes(session.link), session.measured.up
        went = upload.at_link - at_link
        if went > 0 and (at_link == 0 or went >= pace.piece_bytes):
            pace.note(went, now - upload.since)
            upload.at_link, upload.since = at_link, now
        piece = pace.piece_bytes
        while at_link < AT_LINK * piece and (found := upload.sender.next(piece)) is not None:
            index, nbytes = found
            chunk = Chunk(run=key.run, round=key.round, digest=digest, index=index, data=b"")
            effects.append(Send(key.edge, chunk, stored=nbytes))
            if at_link == 0:
                upload.at_link, upload.since = 0, now
            at_link += nbytes
            upload.at_link += nbytes
        if effects:
            self._repeat(upload, now)
        if upload.sender.pending and not upload.paused:
            upload.poll_s = FIRST_POLL_S if effects else min(upload.poll_s * 2, LONGEST_POLL_S)
            self._timers.at(("pump", key), now + upload.poll_s, partial(self._pump, upload))
        return effects

    # -------------------------------------------------------------------- ends

    def receipt(self, session: Session, receipt: Receipt, now: float) -> list[Effect]:  # noqa: ARG002 - as all handlers
        """Forget an update that the edge receipts."""
        key, void = Key(session.edge, receipt.run, receipt.round), ReceiptStatus.VOID
        upload = self.by_key.get(key)
        known = upload is not None and upload.update.offer.digest == receipt.digest
        if not known and receipt.status is not void:
            self._counters["receipt_unknown"] += 1
            return []
        self._counters[f"receipt_{receipt.status}"] += 1
        fields = {
            "round": receipt.round,
            "edge": session.edge,
            "status": str(receipt.status),
            "reason": receipt.reason,
        }
        return [*self.end([key]), Emit("receipt", fields)]

    def closed(self, key: Key, *, kept: bool) -> list[Effect]:
        """Forget an update whose round is over without a receipt, unless its edge may want it."""
        if key not in self.by_key:
            return []
        if kept:
            self.by_key[key].paused = True
            self._timers.stop(("offer", key))
            self._timers.stop(("pump", key))
            return []
        self._counters["closed_unreceipted"] += 1
        fields = {"round": key.round, "edge": key.edge, "reason": "closed"}
        return [*self.end([key]), Emit("abandoned", fields)]

    def carry(self, key: Key, order: TrainOrder) -> list[Effect]:
        """Answer an order with an update that the edge has a part of; nothing if it is not here."""
        wanted = key.edge, key.run, order.made_from, order.made_in
        for old, upload in self.by_key.items():
            offer = upload.update.offer
            made_in = offer.made_in or offer.round
            if (old.edge, old.run, offer.base, made_in) == wanted:
                self._forget(old)
                offer = structs.replace(offer, round=key.round, made_in=made_in, claim=b"")
                return [CarryUpdate(old, PendingUpdate(key, offer, 0))]
        return []

    def end(self, keys: list[Key]) -> list[Effect]:
        """Forget these updates, as far as they are here."""
        for key in (here := [key for key in keys if key in self.by_key]):
            self._forget(key)
        return [DropUpdate(key) for key in here]

    def _forget(self, key: Key) -> None:
        self.by_key.pop(key, None)
        self._timers.stop(("offer", key))
        self._timers.stop(("pump", key))
