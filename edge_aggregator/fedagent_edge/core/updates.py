"""Updates on their way in: offers, chunks under credit, checks.

Whatever an agent sends can only hurt itself: what does not fit is counted by reason, answered
where there is something to answer, and changes nothing else.
"""

from msgspec.structs import replace

from fedagent_node.effects import Effect, Received, Send, Warn
from fedagent_protocol import messages as m
from fedagent_protocol.errors import ProtocolError
from fedagent_protocol.tensors import MAX_HEADER_BYTES
from fedagent_protocol.transfer import Layout

from .admission import SMALL_BYTES
from .effects import (
    Admit,
    Admitted,
    DiskFailed,
    DropSpool,
    ForgetRound,
    Ignored,
    Save,
    WriteSpool,
)
from .exchange import Exchange
from .receipts import Receipts
from .round import Client, Round, Stage, Work, receipt_of
from .state import EdgeState
from .uploads import Uploads

SMALLEST_CHUNK = 16 * 1024
"""Smaller chunks are taken only where the round's model has such, too."""
MOST_BYTES_MASKED = 4
"""A masked number is of 8 bytes, that of a model of 2 or more."""
KEPT_BYTES = 256 << 20
"""Bound on the files of unfinished updates; the oldest go first."""


class Updates:
    """The updates of the newest round's clients.

    `kept` is work that a round's end interrupted, at most one for each agent, the newest last.
    """

    def __init__(self, state: EdgeState, exchange: Exchange, receipts: Receipts) -> None:
        self.uploads = Uploads(state.config.credit_bytes, state.timers)
        self.kept: dict[str, Work] = {}
        self.most_kept_bytes = KEPT_BYTES
        self._state = state
        self._counters = state.counters
        self._exchange = exchange
        self._receipts = receipts

    # ---------------------------------------------------- from offer to verdict

    def offer(self, event: Received, offer: m.UpdateOffer, now: float) -> list[Effect]:
        """Take, refuse or go on with an update, while the round is open."""
        agent, rnd = event.sender, self._state.named(offer.run, offer.round)
        if rnd is None or not rnd.is_open:
            return self._of_no_open_round(agent, offer, now)
        client = rnd.clients.get(agent)
        if client is None:
            self._counters["not_ordered"] += 1
            return [_receipt(agent, offer, m.ReceiptStatus.EXPIRED, "not_ordered")]
        client.come_back()
        client.answered = True
        if agent in self._receipts.owed:
            return []
        if (again := client.word(offer)) is not None:
            return [Send(agent, again)]
        known, effects = client.offer, list[Effect]()
        if known is None:
            reason, detail = _refusal(client, offer)
            if reason:
                return self._reject(client, offer, reason, detail, now)
            effects = self._begin(client, offer)
            if _is_small(client, offer, offer.first):
                return effects + self._check(client, event, now, offer.first)
            self.uploads.begin(client, self._state.sessions.by_id[agent].up)
        elif known.digest != offer.digest:
            self._counters["second_update"] += 1
            return [_receipt(agent, offer, m.ReceiptStatus.REJECTED, "second_update")]
        receiver = client.receiver
        if client.stage is not Stage.SENDING or receiver is None:
            return effects
        if offer.first and 0 not in receiver.have:
            return effects + self._accept(client, event, 0, offer.first, now)
        if receiver.complete:
            return effects + self._check(client, event, now)
        if known is not None:
            self.uploads.take_back(client)
        return effects + self.uploads.grant(client, now)

    def _begin(self, client: Client, offer: m.UpdateOffer) -> list[Effect]:
        """Take an admissible offer; go on with what is here of the same update."""
        rnd, effects = client.round, list[Effect]()
        bare = replace(offer, first=b"", context=None)
        self._exchange.done(client.agent)
        before = client.work
        work = client.kept if offer.made_in and client.kept is not None else rnd.own_work(client)
        if before not in (None, work, client.kept) and before.offer is not None:
            effects.append(DropSpool((client.agent, before.offer.digest)))
        if work.offer is None or not _same(work.offer, bare):
            if work.offer is not None:
                effects.append(DropSpool((client.agent, work.offer.digest)))
            work.forget_file()
            if not _is_small(client, offer, offer.first):
                work.offer = bare
        client.work, client.offer = work, bare
        client.go(Stage.SENDING)
        return effects

    def chunk(self, event: Received, chunk: m.Chunk, now: float) -> list[Effect]:
        """Take a part of an update, whichever round it names.

        Raises:
            ProtocolError: It does not fit; nothing changed.
        """
        client = self._state.client(event.sender)
        offer = client.offer if client is not None else None
        named = chunk.run, chunk.digest
        if client is None or offer is None or named != (offer.run, offer.digest):
            return self._chunk_of_kept(event.sender, chunk)
        if client.stage is not Stage.SENDING:
            raise Ignored("chunk_twice")
        return self._accept(client, event, chunk.index, chunk.data, now)

    def _chunk_of_kept(self, agent: str, chunk: m.Chunk) -> list[Effect]:
        """Take a chunk that was under way when its round ended."""
        work = self.kept.get(agent)
        if work is None or work.offer is None or work.offer.digest != chunk.digest:
            raise Ignored("chunk_unasked")
        layout = Layout(work.offer.size, work.offer.chunk_bytes)
        chunks = layout.check(chunk.index, len(chunk.data))
        if work.have.issuperset(chunks):
            raise Ignored("chunk_twice")
        work.have.update(chunks)
        work.moved = self._state.memory.last_round
        offset = chunk.index * layout.chunk_bytes
        return [WriteSpool((agent, chunk.digest), offset, chunk.data)]

    def _accept(
        self, client: Client, event: Received, index: int, data: bytes, now: float
    ) -> list[Effect]:
        receiver, offer = client.receiver, client.offer
        assert receiver is not None
        assert offer is not None
        if not self.uploads.accept(client, index, len(data), now):
            self._counters["chunk_twice"] += 1
            return self.uploads.grant(client, now)
        if client.work is not None:
            client.work.moved = client.round.order.round
        if _is_small(client, offer, data):
            return self._check(client, event, now, data)
        effects: list[Effect] = [WriteSpool(client.file, index * offer.chunk_bytes, data)]
        if not receiver.complete:
            return effects + self.uploads.grant(client, now)
        whole = m.Need(run=offer.run, round=offer.round, digest=offer.digest, ranges=())
        return [*effects, Send(client.agent, whole), *self._check(client, event, now)]

    def _check(
        self, client: Client, event: Received, now: float, whole: bytes = b""
    ) -> list[Effect]:
        rnd = client.round
        assert client.offer is not None
        self.uploads.end(client)
        client.go(Stage.CHECKING)
        client.after_s = rnd.after(event.at)
        # The length of what is masked is that of the mask.
        limit = rnd.order.norm_limit if rnd.masking is None else 0.0
        edge = self._state.me.edge if event.proof else ""
        admit = Admit(client.key, client.offer, client.after_s, limit, edge, whole)
        return [admit, *self.uploads.grant_waiting(now)]

    def admitted(self, event: Admitted, now: float) -> list[Effect]:
        """Take in the verdict on an update; a valid one is owed a receipt."""
        run, number, agent = event.key
        rnd, verdict = self._state.named(run, number), event.verdict
        client = rnd.clients.get(agent) if rnd is not None and rnd.is_open else None
        if rnd is None or client is None or client.stage is not Stage.CHECKING:
            return []
        assert client.offer is not None
        if not verdict.valid:
            return self._reject(client, client.offer, verdict.reason, verdict.detail, now)
        rnd.admit(client, verdict)
        status = client.receipt
        assert status is not None
        self._counters[f"updates_{status.name.lower()}"] += 1
        self._receipts.owe(client, now)
        return []

    def disk_failed(self, failed: DiskFailed, now: float) -> list[Effect]:
        """Wait for an update to be offered again that the disk did not take."""
        agent = failed.agent
        effects: list[Effect] = [Warn(agent, f"the spool failed: {failed.detail}")]
        client = self._state.client(agent)
        for work in (self.kept.get(agent), client.work if client is not None else None):
            if work is not None:
                work.forget_file()
        if client is None or client.stage is Stage.ENDED:
            return effects
        self.uploads.end(client)
        if client.offer is not None:
            effects.append(DropSpool(client.file))
        client.reset()
        if not self._state.sessions.is_present(agent):
            effects += self.without(client, m.OutcomeStatus.GONE, m.LEFT, now)
        return effects

    def _of_no_open_round(self, agent: str, offer: m.UpdateOffer, now: float) -> list[Effect]:
        """Answer an update that changes nothing, and is not looked at.

        Who has a receipt of the last round gets it again; who was ordered is too late, fit or not.
        """
        rnd, kept = self._state.round, self.kept.get(agent)
        if kept is not None and (kept.run, kept.base) == (offer.run, offer.base):
            # It is wanted in a later round.
            return [Send(agent, m.RoundClosed(run=offer.run, round=offer.round, kept=True))]
        if rnd is None or rnd.name != (offer.run, offer.round):
            if (paid := self._receipts.of_report(agent, offer)) is not None:
                return [Send(agent, paid)]
            self._counters["expired"] += 1
            same = offer.run == self._state.memory.run
            reason = "the round is over" if same else "another run"
            return [_receipt(agent, offer, m.ReceiptStatus.EXPIRED, reason)]
        client = rnd.clients.get(agent)
        if client is None:
            return [_receipt(agent, offer, m.ReceiptStatus.EXPIRED, "not_ordered")]
        if (again := client.word(offer)) is not None:
            return [Send(agent, again)]
        self._counters["updates_too_late"] += 1
        tau = round(rnd.after(now) * 1000)
        text = f"update of round {offer.round} arrived after the close, {tau} ms after the order"
        receipt = _receipt(agent, offer, m.ReceiptStatus.TOO_LATE, "the round is closed")
        return [receipt, Warn(agent, text)]

    # -------------------------------------------------------- ends without an update

    def without(
        self, client: Client, status: m.OutcomeStatus, reason: str, now: float
    ) -> list[Effect]:
        """End the wait for an agent whose update is not whole, or not valid."""
        client.end(status, reason, client.round.after(now))
        self.uploads.end(client)
        effects: list[Effect] = []
        if status is not m.OutcomeStatus.GONE:
            # Who left may come back, and go on; the others are final, also after a restart.
            effects.append(Save(client.ended))
            if client.offer is not None:
                effects.append(DropSpool(client.file))
        self._exchange.done(client.agent)
        return effects

    def decline(self, event: Received, decline: m.Decline, now: float) -> list[Effect]:
        """End the wait for an agent that does not train, while the round is open."""
        rnd = self._state.named(decline.run, decline.round)
        if rnd is None or not rnd.is_open:
            raise Ignored("out_of_round")
        reason, client = decline.reason, rnd.clients.get(event.sender)
        if client is None or client.is_settled:
            raise Ignored("decline_unasked")
        self._counters[f"declined_{reason}"] += 1
        text = f"{reason}: {decline.detail}" if decline.detail else str(reason)
        return self.without(client, m.OutcomeStatus.DECLINED, text[:200], now)

    def left(self, agent: str, now: float) -> list[Effect]:
        """Wait no more for an agent that left."""
        client = self._state.client(agent)
        if client is None or client.is_settled:
            return []
        return self.without(client, m.OutcomeStatus.GONE, m.LEFT, now)

    def _reject(
        self, client: Client, offer: m.UpdateOffer, reason: str, detail: str, now: float
    ) -> list[Effect]:
        self._counters[f"rejected_{reason}"] += 1
        return [
            *self.without(client, m.OutcomeStatus.REJECTED, reason, now),
            _receipt(client.agent, offer, m.ReceiptStatus.REJECTED, reason),
            Warn(client.agent, f"update of round {offer.round} rejected: {reason}: {detail}"),
        ]

    # ------------------------------------------------------------ unfinished work

    def begin(self, rnd: Round) -> None:
        """Name what agents may go on with in this round; forget what is too old, or of another."""
        self.kept = {
            agent: one
            for agent, one in self.kept.items()
            if one.run == rnd.run and one.lasts(rnd.order.round, rnd.weighing.late_rounds)
        }
        self._exchange.keep(rnd.base, *(one.base for one in self.kept.values()))
        for agent, client in rnd.clients.items():
            client.kept = client.work = self.kept.get(agent)

    def close(self, rnd: Round, now: float) -> list[Effect]:
        """End all that is under way; stop those who still work, who may go on in later rounds."""
        rnd.close(now)
        effects: list[Effect] = []
        for agent, client in rnd.clients.items():
            self.uploads.end(client)
            self.kept.pop(agent, None)
            if work := _unfinished(client):
                self.kept[agent] = work
            else:
                self._exchange.done(agent)
            if client.stage is not Stage.ENDED:
                closed = m.RoundClosed(run=rnd.run, round=rnd.order.round, kept=work is not None)
                effects.append(Send(agent, closed))
        room = self.most_kept_bytes
        for agent, work in reversed(list(self.kept.items())):
            if work.size > room:
                del self.kept[agent]
            else:
                room -= work.size
        return effects

    def forget_base(self, base: str) -> None:
        """Ask for nothing of a model that is lost."""
        self.kept = {agent: one for agent, one in self.kept.items() if one.base != base}

    def forget_round(self) -> ForgetRound:
        """Have the disk drop the round, but for what agents may go on with."""
        kept = self.kept.items()
        files = frozenset((agent, one.offer.digest) for agent, one in kept if one.offer is not None)
        return ForgetRound(files, frozenset(one.base for _, one in kept))


def _refusal(client: Client, offer: m.UpdateOffer) -> tuple[str, str]:
    """Return reason and detail why an offer cannot be taken, or empty strings.

    Costs no memory: nothing of the update has been stored yet.
    """
    rnd, kept = client.round, client.kept
    order, model, masking = rnd.order, rnd.layout, rnd.masking
    if offer.task != order.task:
        return "wrong_task", offer.task[:12]
    if not offer.made_in and offer.base != rnd.base:
        return "stale_base", offer.base[:12]
    if offer.made_in and (kept is None or (kept.round, kept.base) != (offer.made_in, offer.base)):
        return "stale_base", f"no update of round {offer.made_in} is expected"
    samples = offer.stats.num_samples
    if not 0 < samples <= order.max_samples:
        return "sample_count", f"{samples} samples, at most {order.max_samples} are allowed"
    if masking is not None and any(why := masking.refusal(client.agent, offer.agreed)):
        return why
    words = 1 if masking is None else MOST_BYTES_MASKED
    if not 0 < offer.size <= words * model.size + MAX_HEADER_BYTES:
        return "oversize", f"{offer.size} bytes for a model of {model.size}"
    if offer.chunk_bytes < min(SMALLEST_CHUNK, model.chunk_bytes, offer.size):
        return "bad_chunk", f"chunks of {offer.chunk_bytes}"
    try:
        layout = Layout(offer.size, offer.chunk_bytes)
        if offer.first:
            layout.check(0, len(offer.first))
    except ProtocolError as error:
        return error.reason, str(error)
    return "", ""


def _unfinished(client: Client) -> Work | None:
    """Return what an agent has begun and may finish in the next round."""
    rnd, work = client.round, client.work
    if work is None or client.stage is Stage.CHECKING or client.receipt is not None:
        return None
    # Nothing of a model of one chunk can be half here.
    offered = client.offer is not None or work.offer is not None
    begun = work is client.kept or offered or rnd.layout.count > 1
    return work if begun and work.lasts(rnd.order.round + 1, rnd.weighing.late_rounds) else None


def _receipt(agent: str, offer: m.UpdateOffer, status: m.ReceiptStatus, reason: str) -> Send:
    return Send(agent, receipt_of(offer, status, reason))


def _same(stored: m.UpdateOffer, offer: m.UpdateOffer) -> bool:
    known = (stored.digest, stored.size, stored.chunk_bytes)
    return known == (offer.digest, offer.size, offer.chunk_bytes)


def _is_small(client: Client, offer: m.UpdateOffer, data: bytes) -> bool:
    """Whether an update that came in one message goes to the disk together with its verdict."""
    return len(data) == offer.size <= SMALL_BYTES and client.round.layout.size <= SMALL_BYTES
