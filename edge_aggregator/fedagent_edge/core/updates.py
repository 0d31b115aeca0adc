"""Updates on their way in: offers, chunks under credit, checks, receipts.

Whatever an agent sends can only hurt itself: what does not fit is counted by reason, answered
where there is something to answer, and changes nothing else.
"""

from msgspec.structs import replace

from fedagent_node.effects import Effect, Mark, Received, Send, Warn
from fedagent_protocol.messages import (
    LEFT,
    Chunk,
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
    DropSpool,
    EdgeState,
    Ignored,
    KeepWork,
    MoveSpool,
    NoteEnd,
    OpenSpool,
    WriteSpool,
)
from .exchange import Exchange
from .part import LateWork, Part, Stage
from .round import Round

WINDOW = 4
LONGEST_REST_S = 15.0
KEPT_BYTES = 256 << 20
"""Bound on the files of unfinished updates; the oldest go first."""


class Updates:
    """The updates of the rounds of an edge, one round after the other.

    The pool caps what all agents have authorised together. `late` is work that a round's end
    interrupted, at most one for each agent.
    """

    def __init__(self, state: EdgeState, exchange: Exchange) -> None:
        self.pool = CreditPool(state.config.credit_bytes)
        self.late: dict[str, LateWork] = {}
        self.most_late_bytes = KEPT_BYTES
        self._state = state
        self._counters = state.counters
        self._exchange = exchange
        self._active: dict[str, Part] = {}
        self._hungry: dict[str, None] = {}
        """Agents that wait for credit of the pool, in the order of asking."""
        self._resting: dict[str, float] = {}
        """Agents whose transfer is silent, and when they are asked again."""

    # ---------------------------------------------------- from offer to receipt

    def offer(self, rnd: Round, event: Received, offer: UpdateOffer, now: float) -> list[Effect]:
        """Take, refuse or go on with an update, while the round is open."""
        part = rnd.parts.get(event.sender)
        if part is None:
            self._counters["not_ordered"] += 1
            return [receipt(event.sender, offer, ReceiptStatus.EXPIRED, "not_ordered")]
        part.come_back()
        part.answered = True
        known = part.offer
        if part.stage is Stage.ENDED:
            self._counters["offer_twice"] += 1
            return [receipt(part.agent, offer, part.receipt or ReceiptStatus.EXPIRED, part.reason)]
        if known is not None and known.digest == offer.digest:
            return self._again(rnd, part, event, offer, now)
        if known is not None:
            self._counters["second_update"] += 1
            return [receipt(part.agent, offer, ReceiptStatus.REJECTED, "second_update")]
        reason, detail = rnd.refusal(part, offer)
        if reason:
            return self._reject(rnd, part, offer, reason, detail, now)
        return self._begin(rnd, part, event, offer, now)

    def _begin(
        self, rnd: Round, part: Part, event: Received, offer: UpdateOffer, now: float
    ) -> list[Effect]:
        """Take an admissible offer, and its first chunk."""
        bare = replace(offer, first=b"", context=None)
        effects = self._exchange.done(part.agent, now)
        stored, late = part.spooled, part.late
        part.spooled = None
        if late is not None and late.key is not None:
            if offer.made_in and late.offer is not None and _same(late.offer, offer):
                effects.append(MoveSpool(late.key, part.key, bare))
                stored = late.offer, late.have
            else:
                effects.append(DropSpool(late.key))
            late.key, late.offer, late.have = None, None, set()
        have = set(stored[1]) if stored is not None and _same(stored[0], offer) else set[int]()
        if not have:
            effects.append(OpenSpool(part.key, bare))
        self._release(part)
        part.stage, part.offer, part.stalls = Stage.SENDING, bare, 0
        part.receiver = Receiver(Layout(bare.size, bare.chunk_bytes), window=WINDOW, have=have)
        self._active[part.agent] = part
        if offer.first and 0 not in have:
            effects += self._accept(part, 0, offer.first, now)
        return effects + self._go_on(rnd, part, event, now)

    def _again(
        self, rnd: Round, part: Part, event: Received, offer: UpdateOffer, now: float
    ) -> list[Effect]:
        """Go on with an update that is offered again: after a reconnect, or by a duplicate."""
        self._counters["offer_twice"] += 1
        if part.stage is not Stage.SENDING or part.receiver is None:
            return []
        effects: list[Effect] = []
        if offer.first and 0 not in part.receiver.have:
            effects = self._accept(part, 0, offer.first, now)
        if not part.receiver.complete:
            self._take_back(part)
        return effects + self._go_on(rnd, part, event, now)

    def chunk(self, rnd: Round, event: Received, chunk: Chunk, now: float) -> list[Effect]:
        """Take a part of an update, while the round is open.

        Raises:
            ChunkError: It does not fit; nothing changed.
        """
        part = rnd.parts.get(event.sender)
        if part is None or part.offer is None or part.offer.digest != chunk.digest:
            raise Ignored("chunk_unasked")
        if part.stage is not Stage.SENDING:
            raise Ignored("chunk_twice")
        effects = self._accept(part, chunk.index, chunk.data, now)
        if not effects:
            self._counters["chunk_twice"] += 1
        return effects + self._go_on(rnd, part, event, now)

    def _go_on(self, rnd: Round, part: Part, event: Received, now: float) -> list[Effect]:
        """Have an update checked if its last chunk is here; grant what credit there is."""
        receiver, offer = part.receiver, part.offer
        assert receiver is not None
        assert offer is not None
        effects: list[Effect] = []
        if receiver.complete:
            self.end(part)
            part.stage, part.after_s = Stage.CHECKING, rnd.after(event.at)
            # The length of what is masked is that of the mask.
            limit = rnd.order.norm_limit if rnd.masking is None else 0.0
            control = rnd.weighing.control_limit
            edge = self._state.me.edge if event.proof else ""
            effects.append(Admit(part.key, offer, part.after_s, limit, control, edge))
        return effects + self.grant(part, now)

    def admitted(self, rnd: Round, event: Admitted, now: float) -> list[Effect]:
        """Take in the verdict on an update: it is durable, so that the receipt may go out."""
        part, verdict = rnd.parts.get(event.key[2]), event.verdict
        if part is None or part.stage is not Stage.CHECKING or part.offer is None:
            return []
        if not verdict.valid:
            return self._reject(rnd, part, part.offer, verdict.reason, verdict.detail, now)
        rnd.admit(part, verdict)
        assert part.receipt is not None
        self._counters[f"updates_{part.receipt.name.lower()}"] += 1
        done = receipt(part.agent, part.offer, part.receipt, part.reason)
        return [done, Mark("edge.receipted")]

    def disk_failed(self, rnd: Round, agent: str, detail: str, now: float) -> list[Effect]:
        """The disk did not take an update: wait for it to be offered again."""
        self._counters["disk_failed"] += 1
        warning = Warn(agent, f"the spool failed: {detail}")
        part = rnd.parts.get(agent)
        if part is None or part.stage is Stage.ENDED:
            return [warning]
        self.end(part)
        part.reset()
        effects: list[Effect] = [DropSpool(part.key), warning]
        if not self._state.sessions.is_present(agent):
            effects += self.without(rnd, part, OutcomeStatus.GONE, LEFT, now) or []
        return effects

    def too_late(
        self, rnd: Round | None, agent: str, offer: UpdateOffer, now: float
    ) -> list[Effect]:
        """Answer an update of no open round: it changes nothing, and is not looked at.

        Who has a receipt of the last round gets it again; who was ordered is too late, fit or not.
        """
        late = self.late.get(agent)
        if late is not None and (late.run, late.base) == (offer.run, offer.base):
            # It is wanted in a later round.
            return [Send(agent, RoundClosed(run=offer.run, round=offer.round, kept=True))]
        if rnd is None or rnd.name != (offer.run, offer.round):
            self._counters["expired"] += 1
            this = offer.run == self._state.memory.run
            reason = "the round is over" if this else "another run"
            return [receipt(agent, offer, ReceiptStatus.EXPIRED, reason)]
        part = rnd.parts.get(agent)
        if part is None or part.receipt is not None:
            status = ReceiptStatus.EXPIRED if part is None else part.receipt
            assert status is not None
            return [receipt(agent, offer, status, "not_ordered" if part is None else part.reason)]
        self._counters["updates_too_late"] += 1
        tau = round(rnd.after(now) * 1000)
        text = f"update of round {offer.round} arrived after the close, {tau} ms after the order"
        late_ = receipt(agent, offer, ReceiptStatus.TOO_LATE, "the round is closed")
        return [late_, Warn(agent, text)]

    def without(
        self, rnd: Round, part: Part, status: OutcomeStatus, reason: str, now: float
    ) -> list[Effect] | None:
        """End the wait for an agent that sends nothing; None if that cannot be any more."""
        if not part.withdraw(status, reason, rnd.after(now)):
            return None
        return self._ended(part, now)

    def _reject(
        self, rnd: Round, part: Part, offer: UpdateOffer, reason: str, detail: str, now: float
    ) -> list[Effect]:
        self._counters[f"rejected_{reason}"] += 1
        part.receipt = ReceiptStatus.REJECTED
        part.end(OutcomeStatus.REJECTED, reason, rnd.after(now))
        return [
            *self._ended(part, now),
            receipt(part.agent, offer, ReceiptStatus.REJECTED, reason),
            Warn(part.agent, f"update of round {rnd.number} rejected: {reason}: {detail}"),
        ]

    def _ended(self, part: Part, now: float) -> list[Effect]:
        """Clear up after an agent that ended without an update."""
        self.end(part)
        part.spooled = None
        effects: list[Effect] = []
        left = part.status is OutcomeStatus.GONE
        if part.offer is not None and part.receiver is not None and left:
            part.spooled = part.offer, set(part.receiver.have)
        elif part.offer is not None:
            effects.append(DropSpool(part.key))
        if not left:
            # Who left may come back; the others are final.
            effects.append(NoteEnd(part.record()))
        return effects + self._exchange.done(part.agent, now)

    # ------------------------------------------------------------ unfinished work

    def begin(self, rnd: Round) -> list[Effect]:
        """Name what agents may go on with in this round; forget what is too old, or of another."""
        for agent, one in list(self.late.items()):
            age = rnd.number - one.round
            if one.run != rnd.run or not 0 < age <= rnd.weighing.late_rounds:
                del self.late[agent]
        for agent, part in rnd.parts.items():
            part.late = self.late.get(agent)
        return [self.saved()]

    def close(self, rnd: Round) -> list[Effect]:
        """End all that is under way; stop those who still work, who may go on in later rounds."""
        effects: list[Effect] = []
        for agent, part in rnd.parts.items():
            work = self._unfinished(rnd, part)
            self.end(part)
            self.late.pop(agent, None)
            if work is not None:
                self._keep(agent, work)
            if part.stage is not Stage.ENDED:
                closed = RoundClosed(run=rnd.run, round=rnd.number, kept=work is not None)
                effects.append(Send(agent, closed))
        return effects

    def _unfinished(self, rnd: Round, part: Part) -> LateWork | None:
        """Return what an agent may go on with in later rounds; None if there is nothing."""
        if part.stage is Stage.CHECKING:
            return None
        if part.stage is Stage.ENDED and part.status is not OutcomeStatus.GONE:
            return None
        offer, late = part.offer, part.late
        have = set(part.receiver.have) if part.receiver is not None else set[int]()
        if offer is None and part.spooled is not None:
            offer, have = part.spooled
        work = None
        if late is not None and (offer.made_in if offer is not None else not part.fresh):
            work = late
        elif offer is not None or (part.fresh and rnd.layout.count > 1):
            work = LateWork(rnd.run, rnd.number, rnd.base, rnd.layout)
        if work is None or rnd.number + 1 - work.round > rnd.weighing.late_rounds:
            return None
        if offer is not None and have:
            work.key, work.offer, work.have = part.key, offer, have
        return work

    def _keep(self, agent: str, work: LateWork) -> None:
        self.late[agent] = work
        nbytes = sum(one.offer.size for one in self.late.values() if one.offer)
        for name, one in list(self.late.items()):
            if one.offer is not None and nbytes > self.most_late_bytes:
                nbytes -= one.offer.size
                del self.late[name]

    def late_chunk(self, agent: str, chunk: Chunk) -> list[Effect]:
        """Take a chunk that was under way when its round ended; `ChunkError`: it does not fit."""
        work = self.late.get(agent)
        if work is None or work.key is None or work.offer is None:
            return []
        if work.offer.digest != chunk.digest or chunk.index in work.have:
            return []
        Layout(work.offer.size, work.offer.chunk_bytes).check(chunk.index, len(chunk.data))
        work.have.add(chunk.index)
        return [WriteSpool(work.key, chunk.index, chunk.data)]

    def forget_base(self, base: str) -> None:
        """Ask for nothing of a model that is lost."""
        self.late = {agent: one for agent, one in self.late.items() if one.base != base}

    def saved(self) -> KeepWork:
        """Return what the disk must not drop with its round."""
        works = self.late.values()
        keys = frozenset(one.key for one in works if one.key is not None)
        return KeepWork(keys, frozenset(one.base for one in works))

    # ------------------------------------------------------------------- credit

    def first_credit(self, part: Part, nbytes: int) -> int:
        """Return the chunks an order may grant in advance: one of `nbytes`, or none.

        Half of the pool stays for transfers under way: agents that died with an
        order must not bring the others to a stop.
        """
        self._release(part)
        if self.pool.used_bytes + nbytes > self.pool.limit_bytes // 2:
            return 0
        part.credit_bytes = nbytes
        self.pool.take(nbytes)
        return 1

    def grant(self, part: Part, now: float) -> list[Effect]:
        """Give this agent credit as far as the pool has some, then those who wait."""
        effects = self._ask(part.agent, now)
        for other in list(self._hungry):
            if not self.pool.chunks(_chunk_bytes(self._active[other])):
                break
            effects += self._ask(other, now)
        return effects

    def renew(self, part: Part, now: float) -> list[Effect]:
        """Grant again what may have been lost with a connection."""
        self._take_back(part)
        return self.grant(part, now)

    def end(self, part: Part) -> None:
        """Give back the credit of a transfer that is complete or over."""
        self._take_back(part)
        self._active.pop(part.agent, None)
        self._hungry.pop(part.agent, None)
        self._release(part)

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

    def _accept(self, part: Part, index: int, data: bytes, now: float) -> list[Effect]:
        """Take a chunk into the spool; `ChunkError` if it does not fit."""
        receiver = part.receiver
        assert receiver is not None
        before = receiver.outstanding
        fresh = receiver.accept(index, len(data), now)
        self._settle(part, before)
        if not fresh:
            return []
        part.stalls, receiver.window = 0, WINDOW
        self._resting.pop(part.agent, None)
        return [WriteSpool(part.key, index, data)]

    def _ask(self, agent: str, now: float) -> list[Effect]:
        part = self._active.get(agent)
        if part is None or part.receiver is None or part.offer is None or agent in self._resting:
            self._hungry.pop(agent, None)
            return []
        receiver, room = part.receiver, self.pool.chunks(_chunk_bytes(part))
        before = receiver.outstanding
        ranges = receiver.ask(now, allowance=room)
        self._settle(part, before)
        if not receiver.outstanding and not room:
            self._hungry[agent] = None
        else:
            self._hungry.pop(agent, None)
        if not ranges:
            return []
        run, number, _ = part.key
        return [Send(agent, Need(run=run, round=number, digest=part.offer.digest, ranges=ranges))]

    def _take_back(self, part: Part) -> None:
        if part.receiver is not None and part.agent in self._active:
            before = part.receiver.outstanding
            part.receiver.forget_credit()
            self._settle(part, before)
            self._resting.pop(part.agent, None)

    def _settle(self, part: Part, before: int) -> None:
        """Book what its receiver has authorised more, or less, than `before`."""
        assert part.receiver is not None
        change = (part.receiver.outstanding - before) * _chunk_bytes(part)
        if change > 0:
            self.pool.take(change)
        else:
            self.pool.give_back(-change)

    def _release(self, part: Part) -> None:
        self.pool.give_back(part.credit_bytes)
        part.credit_bytes = 0


def receipt(agent: str, offer: UpdateOffer, status: ReceiptStatus, reason: str) -> Send:
    """Return the receipt of an update."""
    message = Receipt(
        run=offer.run, round=offer.round, digest=offer.digest, status=status, reason=reason
    )
    return Send(agent, message)


def _chunk_bytes(part: Part) -> int:
    assert part.offer is not None
    return min(part.offer.chunk_bytes, part.offer.size)


def _same(stored: UpdateOffer, offer: UpdateOffer) -> bool:
    """Whether two offers are of the same bytes, cut alike."""
    known = (stored.digest, stored.size, stored.chunk_bytes)
    return known == (offer.digest, offer.size, offer.chunk_bytes)
