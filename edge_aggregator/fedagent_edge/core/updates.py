"""Updates on their way in: offers, chunks under credit, checks, receipts.

Whatever an agent sends can only hurt itself: what does not fit is counted by reason, answered
where there is something to answer, and changes nothing else.
"""

from msgspec.structs import replace

from fedagent_node.effects import Effect, Mark, Received, Send, Warn
from fedagent_protocol.messages import (
    LEFT,
    Chunk,
    Decline,
    Need,
    OutcomeStatus,
    Receipt,
    ReceiptStatus,
    RoundClosed,
    UpdateOffer,
)
from fedagent_protocol.transfer import CreditPool, Layout, Receiver

from .effects import (
    Admit,
    Admitted,
    DiskFailed,
    DropSpool,
    EdgeState,
    ForgetRound,
    Ignored,
    WriteSpool,
)
from .exchange import Exchange
from .part import Part, Stage, Work
from .round import Round

WINDOW = 4
LONGEST_REST_S = 15.0
KEPT_BYTES = 256 << 20
"""Bound on the files of unfinished updates; the oldest go first."""


class Updates:
    """The newest round, and the updates of its agents.

    The pool caps what all agents have authorised together. `late` is work that a round's end
    interrupted, at most one for each agent, the newest last.
    """

    def __init__(self, state: EdgeState, exchange: Exchange) -> None:
        self.round: Round | None = None
        self.pool = CreditPool(state.config.credit_bytes)
        self.late: dict[str, Work] = {}
        self.most_late_bytes = KEPT_BYTES
        self._state = state
        self._counters = state.counters
        self._exchange = exchange
        self._active: dict[str, Part] = {}
        self._hungry: dict[str, None] = {}
        """Agents that wait for credit of the pool, in the order of asking."""
        self._resting: dict[str, float] = {}
        """Agents whose transfer is silent, and when they are asked again."""

    @property
    def open_round(self) -> Round | None:
        """The round that is open, if there is one."""
        return self.round if self.round is not None and self.round.is_open else None

    def named(self, run: str, number: int, *, closed: bool = False) -> Round | None:
        """Return the open round if this is its name, or one that is `closed` and not reported."""
        rnd = self.round
        if rnd is None or rnd.name != (run, number) or not rnd.is_live:
            return None
        return rnd if closed or rnd.is_open else None

    def part(self, agent: str) -> tuple[Round, Part] | None:
        """Return the open round and an agent's part in it."""
        rnd = self.open_round
        part = rnd.parts.get(agent) if rnd is not None else None
        return (rnd, part) if rnd is not None and part is not None else None

    # ---------------------------------------------------- from offer to receipt

    def offer(self, event: Received, offer: UpdateOffer, now: float) -> list[Effect]:
        """Take, refuse or go on with an update, while the round is open."""
        rnd = self.named(offer.run, offer.round)
        if rnd is None:
            return self._of_no_open_round(event.sender, offer, now)
        part = rnd.parts.get(event.sender)
        if part is None:
            self._counters["not_ordered"] += 1
            return [_receipt(event.sender, offer, ReceiptStatus.EXPIRED, "not_ordered")]
        part.come_back()
        part.answered = True
        known, effects = part.offer, list[Effect]()
        if (status := part.receipt) is not None:
            self._counters["offer_twice"] += 1
            return [_again(part, offer, status)]
        if known is None:
            reason, detail = rnd.refusal(part, offer)
            if reason:
                return self._reject(rnd, part, offer, reason, detail, now)
            effects = self._begin(rnd, part, offer, now)
        elif known.digest != offer.digest:
            self._counters["second_update"] += 1
            return [_receipt(part.agent, offer, ReceiptStatus.REJECTED, "second_update")]
        else:
            # After a reconnect, or by a duplicate.
            self._counters["offer_twice"] += 1
        receiver = part.receiver
        if part.stage is not Stage.SENDING or receiver is None:
            return effects
        if offer.first and 0 not in receiver.have:
            effects += self._accept(rnd, part, event, 0, offer.first, now)
        elif receiver.complete:
            effects += self._check(rnd, part, event)
        if known is not None and not receiver.complete:
            self._take_back(part)
        return effects + self._grant(part, now)

    def _begin(self, rnd: Round, part: Part, offer: UpdateOffer, now: float) -> list[Effect]:
        """Take an admissible offer; go on with what is here of the same update."""
        bare, effects = (
            replace(offer, first=b"", context=None),
            self._exchange.done(part.agent, now),
        )
        before = part.work
        work = part.late if offer.made_in and part.late is not None else rnd.own_work(part)
        if before not in (None, work, part.late) and before.offer is not None:
            effects.append(DropSpool((part.agent, before.offer.digest)))
        if work.offer is None or not _same(work.offer, bare):
            if work.offer is not None:
                effects.append(DropSpool((part.agent, work.offer.digest)))
            work.forget_file()
            if not rnd.is_small(bare):
                work.offer = bare
        layout = Layout(bare.size, bare.chunk_bytes)
        part.work, part.offer, part.stage, part.stalls = work, bare, Stage.SENDING, 0
        part.receiver = Receiver(layout, window=WINDOW, have=work.have)
        part.credit_bytes = 0
        self._book(part)
        self._active[part.agent] = part
        return effects

    def chunk(self, event: Received, chunk: Chunk, now: float) -> list[Effect]:
        """Take a part of an update, whichever round it names.

        Raises:
            ChunkError: It does not fit; nothing changed.
        """
        rnd, part = self.part(event.sender) or (None, None)
        offer = part.offer if part is not None else None
        named = chunk.run, chunk.digest
        if rnd is None or part is None or offer is None or named != (offer.run, offer.digest):
            return self._late_chunk(event.sender, chunk)
        if part.stage is not Stage.SENDING:
            raise Ignored("chunk_twice")
        effects = self._accept(rnd, part, event, chunk.index, chunk.data, now)
        return effects + self._grant(part, now)

    def _late_chunk(self, agent: str, chunk: Chunk) -> list[Effect]:
        """Take a chunk that was under way when its round ended."""
        work = self.late.get(agent)
        if work is None or work.offer is None or work.offer.digest != chunk.digest:
            raise Ignored("chunk_unasked")
        layout = Layout(work.offer.size, work.offer.chunk_bytes)
        offset = layout.check(chunk.index, len(chunk.data))
        if chunk.index in work.have:
            raise Ignored("chunk_twice")
        work.have.add(chunk.index)
        return [WriteSpool((agent, chunk.digest), offset, chunk.data)]

    def _accept(
        self, rnd: Round, part: Part, event: Received, index: int, data: bytes, now: float
    ) -> list[Effect]:
        """Take a chunk, and have the update checked with the last one."""
        receiver, offer = part.receiver, part.offer
        assert receiver is not None
        assert offer is not None
        fresh = receiver.accept(index, len(data), now)
        self._book(part)
        if not fresh:
            self._counters["chunk_twice"] += 1
            return []
        part.stalls, receiver.window = 0, WINDOW
        self._resting.pop(part.agent, None)
        if rnd.is_small(offer):
            return self._check(rnd, part, event, data)
        effects: list[Effect] = [WriteSpool(part.file, index * offer.chunk_bytes, data)]
        return effects + self._check(rnd, part, event) if receiver.complete else effects

    def _check(self, rnd: Round, part: Part, event: Received, whole: bytes = b"") -> list[Effect]:
        assert part.offer is not None
        self.end(part)
        part.stage, part.after_s = Stage.CHECKING, rnd.after(event.at)
        # The length of what is masked is that of the mask.
        limit = rnd.order.norm_limit if rnd.masking is None else 0.0
        edge = self._state.me.edge if event.proof else ""
        return [Admit(part.key, part.offer, part.after_s, limit, edge, whole)]

    def admitted(self, event: Admitted, now: float) -> list[Effect]:
        """Take in the verdict on an update: it is durable, so that the receipt may go out."""
        run, number, agent = event.key
        rnd, verdict = self.named(run, number), event.verdict
        part = rnd.parts.get(agent) if rnd is not None else None
        if rnd is None or part is None or part.stage is not Stage.CHECKING or part.offer is None:
            return []
        if not verdict.valid:
            return self._reject(rnd, part, part.offer, verdict.reason, verdict.detail, now)
        rnd.admit(part, verdict)
        status = part.receipt
        assert status is not None
        self._counters[f"updates_{status.name.lower()}"] += 1
        return [_receipt(part.agent, part.offer, status, part.reason), Mark("edge.receipted")]

    def disk_failed(self, failed: DiskFailed, now: float) -> list[Effect]:
        """Wait for an update to be offered again that the disk did not take."""
        self._counters["disk_failed"] += 1
        agent, effects = failed.agent, list[Effect]()
        effects.append(Warn(agent, f"the spool failed: {failed.detail}"))
        rnd, part = self.part(agent) or (None, None)
        for work in (self.late.get(agent), part.work if part is not None else None):
            if work is not None:
                work.forget_file()
        if rnd is None or part is None or part.stage is Stage.ENDED:
            return effects
        self.end(part)
        if part.offer is not None:
            effects.append(DropSpool(part.file))
        part.reset()
        if not self._state.sessions.is_present(agent):
            effects += self.without(rnd, part, OutcomeStatus.GONE, LEFT, now)
        return effects

    def _of_no_open_round(self, agent: str, offer: UpdateOffer, now: float) -> list[Effect]:
        """Answer an update that changes nothing, and is not looked at.

        Who has a receipt of the last round gets it again; who was ordered is too late, fit or not.
        """
        rnd, late = self.round, self.late.get(agent)
        if late is not None and (late.run, late.base) == (offer.run, offer.base):
            # It is wanted in a later round.
            return [Send(agent, RoundClosed(run=offer.run, round=offer.round, kept=True))]
        if rnd is None or rnd.name != (offer.run, offer.round):
            self._counters["expired"] += 1
            this = offer.run == self._state.memory.run
            reason = "the round is over" if this else "another run"
            return [_receipt(agent, offer, ReceiptStatus.EXPIRED, reason)]
        part = rnd.parts.get(agent)
        if part is None:
            return [_receipt(agent, offer, ReceiptStatus.EXPIRED, "not_ordered")]
        if (status := part.receipt) is not None:
            return [_again(part, offer, status)]
        self._counters["updates_too_late"] += 1
        tau = round(rnd.after(now) * 1000)
        text = f"update of round {offer.round} arrived after the close, {tau} ms after the order"
        receipt = _receipt(agent, offer, ReceiptStatus.TOO_LATE, "the round is closed")
        return [receipt, Warn(agent, text)]

    def without(
        self, rnd: Round, part: Part, status: OutcomeStatus, reason: str, now: float
    ) -> list[Effect]:
        """End the wait for an agent whose update is not whole, or not valid."""
        part.end(status, reason, rnd.after(now))
        self.end(part)
        effects: list[Effect] = []
        if status is not OutcomeStatus.GONE and part.offer is not None:
            # Who left may come back, and go on; the others are final.
            effects.append(DropSpool(part.file))
        return effects + self._exchange.done(part.agent, now)

    def decline(self, event: Received, decline: Decline, now: float) -> list[Effect]:
        """End the wait for an agent that does not train, while the round is open."""
        rnd = self.named(decline.run, decline.round)
        if rnd is None:
            raise Ignored("out_of_round")
        reason, part = decline.reason, rnd.parts.get(event.sender)
        if part is None or part.is_settled:
            raise Ignored("decline_unasked")
        self._counters[f"declined_{reason}"] += 1
        text = f"{reason}: {decline.detail}" if decline.detail else str(reason)
        return self.without(rnd, part, OutcomeStatus.DECLINED, text[:200], now)

    def left(self, agent: str, now: float) -> list[Effect]:
        """Wait no more for an agent that left."""
        rnd, part = self.part(agent) or (None, None)
        if rnd is None or part is None or part.is_settled:
            return []
        return self.without(rnd, part, OutcomeStatus.GONE, LEFT, now)

    def _reject(
        self, rnd: Round, part: Part, offer: UpdateOffer, reason: str, detail: str, now: float
    ) -> list[Effect]:
        self._counters[f"rejected_{reason}"] += 1
        return [
            *self.without(rnd, part, OutcomeStatus.REJECTED, reason, now),
            _receipt(part.agent, offer, ReceiptStatus.REJECTED, reason),
            Warn(part.agent, f"update of round {rnd.number} rejected: {reason}: {detail}"),
        ]

    # ------------------------------------------------------------ unfinished work

    def begin(self, rnd: Round) -> None:
        """Name what agents may go on with in this round; forget what is too old, or of another."""
        for agent, one in list(self.late.items()):
            if one.run != rnd.run or not 0 < rnd.number - one.round <= rnd.weighing.late_rounds:
                del self.late[agent]
        for agent, part in rnd.parts.items():
            part.late = part.work = self.late.get(agent)

    def close(self, rnd: Round) -> list[Effect]:
        """End all that is under way; stop those who still work, who may go on in later rounds."""
        effects: list[Effect] = []
        for agent, part in rnd.parts.items():
            self.end(part)
            self.late.pop(agent, None)
            if kept := _may_go_on(rnd, part):
                self.late[agent] = kept
            if part.stage is not Stage.ENDED:
                closed = RoundClosed(run=rnd.run, round=rnd.number, kept=kept is not None)
                effects.append(Send(agent, closed))
        room = self.most_late_bytes
        for agent, work in reversed(list(self.late.items())):
            size = work.offer.size if work.offer is not None else 0
            if size > room:
                del self.late[agent]
            else:
                room -= size
        return effects

    def forget_base(self, base: str) -> None:
        """Ask for nothing of a model that is lost."""
        self.late = {agent: one for agent, one in self.late.items() if one.base != base}

    def forget_round(self) -> ForgetRound:
        """Have the disk drop the round, but for what agents may go on with."""
        late = self.late.items()
        files = frozenset((agent, one.offer.digest) for agent, one in late if one.offer is not None)
        return ForgetRound(files, frozenset(one.base for _, one in late))

    # ------------------------------------------------------------------- credit

    def first_credit(self, part: Part, nbytes: int) -> int:
        """Return the chunks an order may grant in advance: one of `nbytes`, or none.

        Half of the pool stays for transfers under way: agents that died with an
        order must not bring the others to a stop.
        """
        part.credit_bytes = 0
        self._book(part)
        if self.pool.used_bytes + nbytes > self.pool.limit_bytes // 2:
            return 0
        part.credit_bytes = nbytes
        self._book(part)
        return 1

    def renew(self, part: Part, now: float) -> list[Effect]:
        """Grant again what may have been lost with a connection."""
        self._take_back(part)
        return self._grant(part, now)

    def end(self, part: Part) -> None:
        """Give back the credit of a transfer that is complete or over."""
        part.credit_bytes = 0
        self._take_back(part)
        self._active.pop(part.agent, None)
        self._hungry.pop(part.agent, None)

    def tick(self, now: float) -> list[Effect]:
        """Ask again after silence, ever more patiently."""
        effects: list[Effect] = []
        for agent, part in list(self._active.items()):
            receiver = part.receiver
            if receiver is None or receiver.due is None or now < receiver.due:
                continue
            part.stalls += 1
            if part.stalls % 2:
                effects += self._ask(agent, now)
                continue
            # Silent twice: others may use its credit. It gets one chunk when it wakes.
            self._take_back(part)
            receiver.window = 1
            self._resting[agent] = now + min(LONGEST_REST_S, 0.5 * 2**part.stalls)
        for agent in [agent for agent, at in self._resting.items() if now >= at]:
            del self._resting[agent]
            self._hungry[agent] = None
        for agent in list(self._hungry):
            effects += self._ask(agent, now)
        return effects

    def next_due(self) -> float:
        """Return when `tick` is wanted although nothing came."""
        dues = [part.receiver.due for part in self._active.values() if part.receiver is not None]
        return min((*self._resting.values(), *filter(None, dues)), default=float("inf"))

    def _grant(self, part: Part, now: float) -> list[Effect]:
        """Give this agent credit as far as the pool has some, then those who wait."""
        effects = self._ask(part.agent, now)
        for other in list(self._hungry):
            if not self.pool.chunks(_chunk_bytes(self._active[other])):
                break
            effects += self._ask(other, now)
        return effects

    def _ask(self, agent: str, now: float) -> list[Effect]:
        part = self._active.get(agent)
        if part is None or part.receiver is None or part.offer is None or agent in self._resting:
            self._hungry.pop(agent, None)
            return []
        receiver, room = part.receiver, self.pool.chunks(_chunk_bytes(part))
        ranges = receiver.ask(now, allowance=room)
        self._book(part)
        if not receiver.outstanding and not room:
            self._hungry[agent] = None
        else:
            self._hungry.pop(agent, None)
        if not ranges:
            return []
        run, number, _ = part.key
        return [Send(agent, Need(run=run, round=number, digest=part.offer.digest, ranges=ranges))]

    def _take_back(self, part: Part) -> None:
        if part.receiver is not None:
            part.receiver.forget_credit()
        self._resting.pop(part.agent, None)
        self._book(part)

    def _book(self, part: Part) -> None:
        """Have the pool count what an agent may send now."""
        nbytes = part.credit_bytes
        if part.receiver is not None:
            nbytes += part.receiver.outstanding * _chunk_bytes(part)
        self.pool.take(nbytes - part.booked_bytes)
        part.booked_bytes = nbytes


def _may_go_on(rnd: Round, part: Part) -> Work | None:
    """Return what an agent has begun and may finish in the next round."""
    work = part.work
    if work is None or part.stage is Stage.CHECKING or part.receipt is not None:
        return None
    # Nothing of a model of one chunk can be half here.
    offered = part.offer is not None or work.offer is not None
    begun = work is part.late or offered or rnd.layout.count > 1
    young = rnd.number + 1 - work.round <= rnd.weighing.late_rounds
    return work if begun and young else None


def _again(part: Part, offer: UpdateOffer, status: ReceiptStatus) -> Send:
    declined = "declined: " if part.status is OutcomeStatus.DECLINED else ""
    return _receipt(part.agent, offer, status, declined + part.reason)


def _receipt(agent: str, offer: UpdateOffer, status: ReceiptStatus, reason: str) -> Send:
    message = Receipt(
        run=offer.run, round=offer.round, digest=offer.digest, status=status, reason=reason[:200]
    )
    return Send(agent, message)


def _chunk_bytes(part: Part) -> int:
    assert part.offer is not None
    return min(part.offer.chunk_bytes, part.offer.size)


def _same(stored: UpdateOffer, offer: UpdateOffer) -> bool:
    """Whether two offers are of the same bytes, cut alike."""
    known = (stored.digest, stored.size, stored.chunk_bytes)
    return known == (offer.digest, offer.size, offer.chunk_bytes)
