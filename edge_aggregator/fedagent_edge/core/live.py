"""A round at work: orders out, the model out, updates in, until it closes.

Whatever an agent sends can only hurt itself: what does not fit is counted by
reason, answered where there is something to answer, and changes nothing else.
"""

from msgspec.structs import replace

from fedagent_node.effects import Effect, Emit, Mark, Received, Send, Warn
from fedagent_protocol.messages import (
    LEFT,
    Chunk,
    Decline,
    MaskKeys,
    MaskOpening,
    MaskShares,
    Need,
    Outcome,
    OutcomeStatus,
    ReceiptStatus,
    RoundClosed,
    TrainOrder,
    UpdateOffer,
)
from fedagent_protocol.transfer import CreditPool

from .admission import Verdict
from .effects import (
    Admit,
    Check,
    DropSpool,
    Key,
    MoveSpool,
    NoteEnd,
    OpenSpool,
    ReopenedRound,
)
from .late import LateWork, LateWorks, dropped, same_content
from .masking import NOT_IN_COHORT, Masking
from .offers import receipt, refusal
from .round import EdgeRound, Part, Stage
from .state import EdgeState
from .transfers import Distribution, Uploads

HEADER_ROOM = 8192
"""By how much an update may be larger than the model's tensors for advance credit."""


class LiveRound:
    """One round with its transfers.

    Args:
        start_at: When the model goes out although some have not answered.
        late: What agents may go on with.

    Attributes:
        outcomes: How each agent ended, once it is closed.
    """

    def __init__(
        self,
        rnd: EdgeRound,
        state: EdgeState,
        pool: CreditPool,
        *,
        start_at: float,
        late: LateWorks,
    ) -> None:
        self.rnd = rnd
        self._late = late
        self.masking = None if rnd.weighing.ring is None else Masking(rnd, state)
        self.model = state.layout
        self.outcomes: tuple[Outcome, ...] = ()
        self._edge = state.me.edge
        self._counters = state.counters
        self._sessions = state.sessions
        self._uploads = Uploads(rnd, pool)
        self._distribution = Distribution(
            rnd.run, rnd.round, rnd.base, self.model, start_at, set(rnd.parts)
        )
        self._older: dict[str, Distribution] = {}
        """The models of earlier rounds, for those who go on with work from them."""
        self._spooled: dict[str, tuple[UpdateOffer, set[int]]] = {}
        for agent, part in rnd.parts.items():
            part.late = late.by_agent.get(agent)

    def begin(self, now: float) -> list[Effect]:
        """Order the agents; tau starts here."""
        effects: list[Effect] = []
        for agent, part in self.rnd.parts.items():
            if self._sessions.is_present(agent):
                effects += self._order(part, now)
            else:
                self._counters["ordered_absent"] += 1
                effects += self.gone(agent, now)
        return effects

    def resume(self, reopened: ReopenedRound) -> None:
        """Go on after a restart with updates, and the chunks on disk of unfinished ones.

        Agents without a receipt offer theirs again, or are ordered again when they say hello.
        """
        for known, have in reopened.updates:
            if known.status is None and known.offer is not None:
                self._spooled[known.agent] = (known.offer, have)
            self.rnd.restore(known, reopened.sketches.get(known.agent))
        self._distribution.waiting.clear()
        if self.masking is not None:
            self.rnd.void = "secure aggregation: the edge was restarted in the round"

    # ------------------------------------------------------------- from agents

    def offer(self, event: Received, offer: UpdateOffer, now: float) -> list[Effect]:
        """Take, refuse or go on with an update, while the round is open."""
        part = self.rnd.parts.get(event.sender)
        if part is None:
            return self._not_ordered(event.sender, offer)
        part.come_back()
        part.answered = True
        if part.stage is Stage.ENDED:
            self._counters["offer_twice"] += 1
            status = part.receipt or ReceiptStatus.EXPIRED
            return [receipt(part.agent, offer, status, part.reason)]
        if part.offer is not None and part.offer.digest == offer.digest:
            return self._again(part, event, offer, now)
        if part.offer is not None:
            self._counters["second_update"] += 1
            return [receipt(part.agent, offer, ReceiptStatus.REJECTED, "second_update")]
        reason, detail = refusal(self.rnd, self.masking, self.model, part, offer)
        if reason:
            return self._reject(part, offer, reason, detail, now)
        return self._begin(part, event, offer, now)

    def chunk(self, event: Received, chunk: Chunk, now: float) -> list[Effect]:
        """Take a part of an update, while the round is open.

        Raises:
            ChunkError: It does not fit; nothing changed.
        """
        part = self.rnd.parts.get(event.sender)
        if part is None or part.offer is None or part.offer.digest != chunk.digest:
            self._counters["chunk_unasked"] += 1
            return []
        if part.stage is not Stage.SENDING:
            self._counters["chunk_twice"] += 1
            return []
        effects = self._uploads.accept(part, chunk.index, chunk.data, now)
        if not effects:
            self._counters["chunk_twice"] += 1
        effects += self._check_whole(part, event)
        return effects + self._uploads.grant(part.agent, now)

    def receives(self, agent: str, chunk: Chunk) -> bool:
        """Whether a chunk is of an update that is on its way, whichever round it names."""
        part = self.rnd.parts.get(agent)
        offer = part.offer if part is not None else None
        return offer is not None and (offer.run, offer.digest) == (chunk.run, chunk.digest)

    def mask(
        self, agent: str, message: MaskKeys | MaskShares | MaskOpening, now: float
    ) -> list[Effect]:
        """Take keys, shares and answers; also once the round is closed.

        Raises:
            MaskingError: They do not fit; nothing changed.
        """
        part = self.rnd.parts.get(agent)
        if part is None or self.masking is None:
            self._counters["masking_unasked"] += 1
            return []
        part.answered = True
        return self.masking.receive(agent, message, now) + self._leave_out(now)

    def _leave_out(self, now: float) -> list[Effect]:
        """Wait no more for agents that are not in the masks."""
        effects: list[Effect] = []
        for part in self.masking.left_out() if self.masking is not None else ():
            assert self.masking is not None
            part.end(OutcomeStatus.MISSED, self.masking.why_out(part.agent), now)
            self._counters[NOT_IN_COHORT] += 1
            effects += self._ended(part, now)
            closed = RoundClosed(run=self.rnd.run, round=self.rnd.round)
            effects.append(Send(part.agent, closed))
        return effects

    def decline(self, agent: str, decline: Decline, now: float) -> list[Effect]:
        """End the wait for an agent that does not train, while the round is open."""
        part = self.rnd.parts.get(agent)
        reason, detail = decline.reason, decline.detail
        text = f"{reason}: {detail}" if detail else str(reason)
        if part is None or not part.withdraw(OutcomeStatus.DECLINED, text[:200], now):
            self._counters["decline_unasked"] += 1
            return []
        self._counters[f"declined_{reason}"] += 1
        return self._ended(part, now)

    def hello(self, agent: str, now: float) -> list[Effect]:
        """Go on with an agent that came, or came back, in mid round."""
        part = self.rnd.parts.get(agent)
        if part is None:
            return []
        part.come_back()
        if part.stage is Stage.WORKING:
            return self._order(part, now)
        if part.stage is Stage.SENDING:
            # Its credit may have been lost with the connection.
            self._uploads.renew(part)
            return self._uploads.grant(agent, now)
        return []

    def need(self, event: Received, need: Need, now: float) -> list[Effect]:
        """Send the model to those who were ordered to train from it, and to no other."""
        part = self.rnd.parts.get(event.sender)
        late = part.late.base if part is not None and part.late is not None else ""
        if part is None or need.digest not in (self.rnd.base, late):
            self._counters["need_unknown"] += 1
            return []
        part.answered = True
        part.fresh = part.fresh or need.digest == self.rnd.base != late
        if need.digest == self.rnd.base:
            return self._distribution.need(event, need, now)
        return self._distribution.answered(part.agent, now) + self._older_need(
            part, event, need, now
        )

    def _older_need(self, part: Part, event: Received, need: Need, now: float) -> list[Effect]:
        """Go on sending the model of an earlier round."""
        assert part.late is not None
        if need.digest not in self._older:
            self._older[need.digest] = Distribution(
                self.rnd.run, self.rnd.round, need.digest, part.late.layout, now, set()
            )
        return self._older[need.digest].need(event, need, now)

    def _needs_nothing(self, agent: str, now: float) -> list[Effect]:
        effects = self._distribution.answered(agent, now)
        for older in self._older.values():
            effects += older.answered(agent, now)
        return effects

    def task_need(self, agent: str) -> None:
        """Note that an agent has its order."""
        if part := self.rnd.parts.get(agent):
            part.answered = True

    def gone(self, agent: str, now: float) -> list[Effect]:
        """End the wait for an agent that left."""
        part = self.rnd.parts.get(agent)
        if part is None or not part.withdraw(OutcomeStatus.GONE, LEFT, now):
            return []
        return self._ended(part, now)

    def _begin(self, part: Part, event: Received, offer: UpdateOffer, now: float) -> list[Effect]:
        bare = replace(offer, first=b"", context=None)
        effects: list[Effect] = self._needs_nothing(part.agent, now)
        stored, have = self._spooled.pop(part.agent, (None, set()))
        late, key = part.late, self._key(part.agent)
        if offer.made_in and late is not None and late.key is not None and late.is_of(offer):
            effects.append(MoveSpool(late.key, key, bare))
            stored, have, late.key = late.offer, set(late.have), None
        effects += dropped(late)
        part.resumed = stored is not None and same_content(stored, offer)
        if part.resumed:
            self._counters["resumed"] += 1
        else:
            have = set()
            effects.append(OpenSpool(key, bare))
        part.stage = Stage.SENDING
        effects += self._uploads.begin(part, bare, have, now, first=offer.first)
        effects += self._check_whole(part, event)
        return effects + self._uploads.grant(part.agent, now)

    def _again(self, part: Part, event: Received, offer: UpdateOffer, now: float) -> list[Effect]:
        """Go on with an update that is offered again: after a reconnect, or by a duplicate."""
        self._counters["offer_twice"] += 1
        if part.stage is not Stage.SENDING or part.receiver is None:
            return []
        effects: list[Effect] = []
        if offer.first and 0 not in part.receiver.have:
            effects = self._uploads.accept(part, 0, offer.first, now)
            effects += self._check_whole(part, event)
        if not part.receiver.complete:
            self._uploads.renew(part)
        return effects + self._uploads.grant(part.agent, now)

    def _check_whole(self, part: Part, event: Received) -> list[Effect]:
        """Have an update checked if its last chunk is here."""
        assert part.receiver is not None
        assert part.offer is not None
        if not part.receiver.complete:
            return []
        self._uploads.end(part)
        part.complete(event.at)
        limit, control = self.rnd.order.norm_limit, self.rnd.weighing.control_limit
        if self.masking is not None:
            limit = 0.0  # the length of what is masked is that of the mask
        edge = self._edge if event.proof else ""
        return [Check(self._key(part.agent), part.offer, limit, control, edge)]

    # ----------------------------------------------------------- results of jobs

    def checked(self, agent: str, verdict: Verdict, now: float) -> list[Effect]:
        """Take in the verdict of a `Check`."""
        part = self.rnd.parts.get(agent)
        if part is None or part.stage is not Stage.CHECKING or part.offer is None:
            return []
        if verdict.reason == "digest_mismatch" and part.resumed:
            # Chunks that a power cut damaged are not the agent's fault: all over again.
            self._counters["spool_damaged"] += 1
            part.resumed, part.stage, part.completed_at = False, Stage.SENDING, 0.0
            self._uploads.begin(part, part.offer, set(), now)
            again: list[Effect] = [OpenSpool(self._key(agent), part.offer)]
            return again + self._uploads.grant(agent, now) + self._absent(agent, now)
        if not verdict.valid:
            return self._reject(part, part.offer, verdict.reason, verdict.detail, now)
        self.rnd.checked(part, verdict)
        return [Admit(self.rnd.record(part, now))]

    def admitted(self, agent: str) -> list[Effect]:
        """Take in that an update is durable: now the receipt may go out."""
        part = self.rnd.parts.get(agent)
        if part is None or part.offer is None or part.receipt is None:
            return []
        part.stage = Stage.ENDED
        self._counters[f"updates_{part.receipt.name.lower()}"] += 1
        return [receipt(agent, part.offer, part.receipt, part.reason), Mark("edge.receipted")]

    def disk_failed(self, agent: str, detail: str, now: float) -> list[Effect]:
        """The disk did not take an update: wait for it to be offered again."""
        self._counters["disk_failed"] += 1
        warning = Warn(agent, f"the spool failed: {detail}")
        part = self.rnd.parts.get(agent)
        if part is None or part.stage is Stage.ENDED:
            return [warning]
        self._uploads.end(part)
        part.reset()
        return [DropSpool(self._key(agent)), *self._absent(agent, now), warning]

    def _absent(self, agent: str, now: float) -> list[Effect]:
        """Wait no more for an agent that left while its update was whole, but is not now."""
        return [] if self._sessions.is_present(agent) else self.gone(agent, now)

    # ------------------------------------------------------------------- time

    def tick(self, now: float) -> list[Effect]:
        """Repeat what was not answered, and send what may be sent."""
        effects = self._uploads.tick(now) + self._distribution.pump(now)
        for older in self._older.values():
            effects += older.pump(now)
        if self.masking is not None:
            effects += self.masking.tick(now) + self._leave_out(now)
        for part in self.rnd.parts.values():
            if part.stage is Stage.WORKING and not part.answered and now >= part.order_again_at:
                self._counters["order_again"] += 1
                part.order_wait_s *= 2
                effects += self._order(part, now)
        return effects

    def next_due(self, now: float) -> float:
        """Return when `tick`, or a look at the close, is wanted."""
        times = [self.rnd.next_due(now), self._uploads.next_due(), self._distribution.next_due(now)]
        if self.masking is not None:
            times.append(self.masking.next_due())
        times += [older.next_due(now) for older in self._older.values()]
        times += [
            part.order_again_at
            for part in self.rnd.parts.values()
            if part.stage is Stage.WORKING and not part.answered
        ]
        return min(times)

    def close(self, now: float) -> list[Effect]:
        """End all that is under way; stop those who still work."""
        rnd = self.rnd
        rnd.closed, rnd.closed_at = True, now
        self.outcomes = rnd.outcomes(now)
        effects: list[Effect] = []
        for agent, part in rnd.parts.items():
            work = self._unfinished(part)
            self._uploads.end(part)
            if work is not None:
                self._late.keep(work)
            else:
                self._late.forget(agent)
            if part.stage is not Stage.ENDED:
                closed = RoundClosed(run=rnd.run, round=rnd.round, kept=work is not None)
                effects.append(Send(agent, closed))
        return effects

    def _unfinished(self, part: Part) -> LateWork | None:
        """Return what an agent may go on with in later rounds; None if there is nothing."""
        rnd, offer, late = self.rnd, part.offer, part.late
        if part.stage is Stage.CHECKING:
            return None
        if part.stage is Stage.ENDED and part.status is not OutcomeStatus.GONE:
            return None
        have = set(part.receiver.have) if part.receiver is not None else set[int]()
        if offer is None and part.agent in self._spooled:
            offer, have = self._spooled[part.agent]
        work = None
        if late is not None and (offer.made_in if offer is not None else not part.fresh):
            work = late
        elif offer is not None or (part.fresh and self.model.count > 1):
            work = LateWork(part.agent, rnd.run, rnd.round, rnd.base, self.model)
        if work is None or rnd.round + 1 - work.round > rnd.weighing.late_rounds:
            return None
        if offer is not None and have:
            work.key, work.offer, work.have = self._key(part.agent), offer, have
        return work

    def too_late(self, agent: str, offer: UpdateOffer, now: float) -> list[Effect]:
        """Answer an update that comes after the close: it changes nothing, and is not looked at.

        Who has a receipt gets it again; who was ordered is too late, fit or not.
        """
        part = self.rnd.parts.get(agent)
        if part is None:
            return self._not_ordered(agent, offer)
        if part.receipt is not None:
            return [receipt(agent, offer, part.receipt, part.reason)]
        self._counters["updates_too_late"] += 1
        tau = round((now - self.rnd.began_at) * 1000)
        return [
            receipt(agent, offer, ReceiptStatus.TOO_LATE, "the round is closed"),
            Warn(
                agent,
                f"update of round {offer.round} arrived after the close, {tau} ms after the order",
            ),
        ]

    # ----------------------------------------------------------------- details

    def _not_ordered(self, agent: str, offer: UpdateOffer) -> list[Effect]:
        self._counters["not_ordered"] += 1
        return [receipt(agent, offer, ReceiptStatus.EXPIRED, "not_ordered")]

    def _reject(
        self, part: Part, offer: UpdateOffer, reason: str, detail: str, now: float
    ) -> list[Effect]:
        self._counters[f"rejected_{reason}"] += 1
        part.receipt = ReceiptStatus.REJECTED
        part.end(OutcomeStatus.REJECTED, reason, now)
        data: dict[str, object] = {"round": self.rnd.round, "agent": part.agent, "reason": reason}
        return [
            *self._ended(part, now),
            receipt(part.agent, offer, ReceiptStatus.REJECTED, reason),
            Emit("update_rejected", data),
            Warn(part.agent, f"update of round {self.rnd.round} rejected: {reason}: {detail}"),
        ]

    def _ended(self, part: Part, now: float) -> list[Effect]:
        """Clear up after an agent that ended without an update."""
        receiver = part.receiver
        self._uploads.end(part)
        self._spooled.pop(part.agent, None)
        effects: list[Effect] = []
        if part.offer is not None and receiver is not None and part.status is OutcomeStatus.GONE:
            self._spooled[part.agent] = (part.offer, set(receiver.have))
        elif part.offer is not None:
            effects.append(DropSpool(self._key(part.agent)))
        if part.status is not OutcomeStatus.GONE:
            # Who left may come back; the others are final.
            effects.append(NoteEnd(replace(self.rnd.record(part, now), offer=None)))
        return effects + self._needs_nothing(part.agent, now)

    def _order(self, part: Part, now: float) -> list[Effect]:
        rnd = self.rnd
        part.order_again_at = now + part.order_wait_s
        first = min(self.model.chunk_bytes, self.model.size + HEADER_ROOM)
        order = TrainOrder(
            run=rnd.run,
            round=rnd.round,
            task=rnd.order.task,
            model=rnd.base,
            size=self.model.size,
            chunk_bytes=self.model.chunk_bytes,
            deadline_ms=max(0, round((rnd.rule.deadline_s - now) * 1000)),
            give_up_ms=max(0, round((rnd.rule.give_up_s - now) * 1000)),
            iterations=part.assignment.iterations,
            credit=self._uploads.first_credit(part, first),
            price=part.assignment.price,
            context_seq=part.assignment.context_seq,
            load_limit_ms=rnd.order.load_limit_ms,
            made_in=part.late.round if part.late is not None else 0,
            made_from=part.late.base if part.late is not None else "",
            releases=part.assignment.releases,
            assigned=part.assignment.assigned,
        )
        return [Send(part.agent, order)]

    def _key(self, agent: str) -> Key:
        return (self.rnd.run, self.rnd.round, agent)
