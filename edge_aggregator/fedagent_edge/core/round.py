"""One round at one edge: who is waited for, what counts, when it is over.

ALGORITHMS section 1. Times are the caller's monotonic seconds; an update's time is
the stamp of its last chunk, not the moment its verification ended.
"""

from dataclasses import dataclass, field
from enum import Enum

from msgspec import structs

from fedagent_protocol.messages import (
    UNANSWERED,
    Assignment,
    Outcome,
    OutcomeStatus,
    ReceiptStatus,
    RoundOrder,
    UpdateOffer,
    Weighting,
)
from fedagent_protocol.transfer import Receiver
from fedagent_protocol.work import proof_of
from fedagent_task.aggregation import Contribution, RoundRule, Sums, Weighed
from fedagent_task.aggregation.bounds import Term
from fedagent_task.aggregation.sketch import Floats

from .admission import Verdict
from .effects import UpdateRecord
from .late import LateWork
from .usual import Scrutiny, Usual
from .weighing import PLAIN, Weighing

HANDOVER_S = 0.005
"""How long what was stamped before an instant may take to come here from the network."""

AFTER_MAX_WAIT = "complete after max_wait"
"""Reason of an update that came between `max_wait` and the close."""

RECEIPTS = {
    OutcomeStatus.ARRIVED: ReceiptStatus.ACCEPTED,
    OutcomeStatus.LATE: ReceiptStatus.LATE,
    OutcomeStatus.MISSED: ReceiptStatus.TOO_LATE,
    OutcomeStatus.REJECTED: ReceiptStatus.REJECTED,
}


UNWEIGHED = Weighed(0.0, 0.0)


class Stage(Enum):
    """Where an ordered agent stands."""

    WORKING = "working"
    SENDING = "sending"
    CHECKING = "checking"
    ENDED = "ended"


@dataclass(slots=True)
class Part:
    """One ordered agent's part in the round.

    Attributes:
        answered: It showed that it has this order, which is repeated otherwise.
        credit_bytes: Credit that the order gave in advance.
        resumed: A part of the update was on disk before this process began.
        stalls: How often in a row its transfer was silent.
        late: What it may go on with instead of training anew.
        fresh: It asked for the round's own model.
    """

    assignment: Assignment
    stage: Stage = Stage.WORKING
    answered: bool = False
    order_again_at: float = 0.0
    order_wait_s: float = 3.0
    credit_bytes: int = 0
    offer: UpdateOffer | None = None
    receiver: Receiver | None = None
    resumed: bool = False
    stalls: int = 0
    completed_at: float = 0.0
    status: OutcomeStatus = OutcomeStatus.MISSED
    receipt: ReceiptStatus | None = None
    reason: str = ""
    in_time: bool = False
    valid: bool = False
    norm: float = 0.0
    weighed: Weighed = UNWEIGHED
    scrutiny: Scrutiny | None = None
    late: LateWork | None = None
    fresh: bool = False

    @property
    def weight(self) -> float:
        """What it counts in the sum; 0 if it is not in it."""
        return self.weighed.weight

    @property
    def agent(self) -> str:
        """Its id."""
        return self.assignment.agent

    def complete(self, at: float) -> None:
        """Note when the last chunk of its update came."""
        self.stage, self.completed_at = Stage.CHECKING, at

    def end(self, status: OutcomeStatus, reason: str, now: float) -> bool:
        """End it without an update; False if it had ended."""
        if self.stage is Stage.ENDED:
            return False
        self.stage, self.status, self.reason = Stage.ENDED, status, reason
        self.completed_at = self.completed_at or now
        return True

    def withdraw(self, status: OutcomeStatus, reason: str, now: float) -> bool:
        """End it as the agent wants; False if its update is whole, which it cannot take back.

        Such an update is as good as in the sum (ADR 12), where nothing can be subtracted.
        """
        return self.stage is not Stage.CHECKING and self.end(status, reason, now)

    def reset(self) -> None:
        """Wait for this agent again, from the start of its transfer."""
        self.stage, self.status, self.reason = Stage.WORKING, OutcomeStatus.MISSED, ""
        self.offer, self.receiver, self.receipt = None, None, None
        self.completed_at = self.norm = 0.0
        self.weighed, self.scrutiny = UNWEIGHED, None
        self.in_time = self.valid = False

    def come_back(self) -> None:
        """Wait for it again if it had left."""
        if self.status is OutcomeStatus.GONE:
            self.reset()

    def decide(self, status: OutcomeStatus) -> None:
        """Note how its update ended: late is paid, too late is not."""
        self.status, self.receipt = status, RECEIPTS[status]
        if status is OutcomeStatus.MISSED:
            self.reason = AFTER_MAX_WAIT
        self.in_time = status is OutcomeStatus.ARRIVED
        self.valid = status in (OutcomeStatus.ARRIVED, OutcomeStatus.LATE)


@dataclass(slots=True)
class EdgeRound:
    """Collect updates until the deadline, or until there are enough.

    Attributes:
        base: Digest of the model that is trained from.
        began_at: When the agents were ordered; tau counts from here.
        rule: The round's limits, as instants.
        weighing: By what strategy updates are weighed.
    """

    run: str
    order: RoundOrder
    base: str
    began_at: float
    weighing: Weighing = PLAIN
    usual: Usual = field(default_factory=Usual)
    parts: dict[str, Part] = field(default_factory=dict)
    rule: RoundRule = field(init=False)
    void: str = ""  # why it can come to nothing, whatever still arrives
    closed: bool = False
    closed_at: float = 0.0
    _placed: int = 0

    def __post_init__(self) -> None:
        order = self.order
        deadline, max_wait = (ms / 1000 for ms in (order.deadline_ms, order.max_wait_ms))
        self.rule = RoundRule(self.began_at + deadline, self.began_at + max_wait, order.min_updates)
        for assignment in self.order.assignments:
            self.parts.setdefault(assignment.agent, Part(assignment))

    @property
    def round(self) -> int:
        """Number of the round."""
        return self.order.round

    @property
    def used(self) -> int:
        """Updates in the sum."""
        return sum(part.scrutiny is not None for part in self.parts.values())

    @property
    def sums(self) -> Sums:
        """The scalars of the sum."""
        sums = Sums()
        for part in self.parts.values():
            if part.weight > 0:
                sums.add(part.weighed)
        return sums

    @property
    def failed(self) -> str:
        """Why there is no aggregate, or an empty string."""
        if self.void:
            return self.void
        used, enough = self.used, self.rule.enough(len(self.parts))
        return "" if used >= enough else f"{used} of {enough} updates"

    def checked(self, part: Part, verdict: Verdict) -> None:
        """Decide about a valid update whether it is in time, paid, and in the sum.

        It is used if it came in time, or while fewer than Z_eff are in the sum.
        Updates are to be checked in the order in which they were complete.
        """
        assert part.offer is not None
        # What is masked is as long as its mask: that is nobody's norm.
        part.norm = verdict.norm if self.weighing.ring is None else 0.0
        late = (
            OutcomeStatus.LATE if part.completed_at <= self.rule.give_up_s else OutcomeStatus.MISSED
        )
        part.decide(OutcomeStatus.ARRIVED if part.completed_at <= self.rule.deadline_s else late)
        if self.rule.counts(part.completed_at, used=self.used, ordered=len(self.parts)):
            told = self._told(part, part.offer)
            part.weighed = self.weighing.weigh(told)
            part.reason = part.reason or part.weighed.reason
            if part.weight > 0:
                self._place(part, told, verdict.control_norm, verdict.sketch)

    def settle(self) -> None:
        """Weigh the updates of the sum anew, now that all are known. Once, at the close."""
        parts = {part.agent: part for part in self.in_order}
        asked = {name: part.scrutiny for name, part in parts.items() if part.scrutiny is not None}
        for name, (weighed, term, reason) in self.usual.settle(self.weighing, asked).items():
            part = parts[name]
            part.weighed, part.reason = weighed, part.reason or reason
            assert part.scrutiny is not None
            part.scrutiny.term = term

    @property
    def in_order(self) -> list[Part]:
        """Those whose updates are in the sum, in the order in which they came."""
        placed = [part for part in self.parts.values() if part.scrutiny is not None]
        return sorted(placed, key=lambda part: part.scrutiny.place if part.scrutiny else 0)

    @property
    def terms(self) -> tuple[tuple[str, Term], ...]:
        """The places of the updates in the sum."""
        return tuple(
            (part.agent, part.scrutiny.term)
            for part in self.in_order
            if part.scrutiny is not None and part.weight > 0
        )

    def _told(self, part: Part, offer: UpdateOffer) -> Contribution:
        return self.weighing.told(
            offer.stats,
            part.assignment,
            norm=part.norm,
            uniform=self.order.weighting is not Weighting.SAMPLES,
            age=max(0, self.round - offer.made_in) if offer.made_in else 0,
        )

    def _place(
        self, part: Part, told: Contribution, control_norm: float, sketch: Floats | None
    ) -> None:
        self._placed += 1
        term = Term(part.weighed.coefficient, part.weight)
        part.scrutiny = Scrutiny(self._placed, told, control_norm, sketch, term)

    def is_over(self, now: float) -> bool:
        """Whether the round closes now.

        Who is complete is waited for: a check takes moments, and cannot be begun twice.
        """
        if self.void or all(part.stage is Stage.ENDED for part in self.parts.values()):
            return True
        if now <= self.rule.deadline_s + HANDOVER_S:
            return False
        if any(part.stage is Stage.CHECKING for part in self.parts.values()):
            return False
        ordered = len(self.parts)
        return self.rule.is_over(now, used=self.used, ordered=ordered, slack_s=HANDOVER_S)

    def next_due(self, now: float) -> float:
        """Return when `is_over` may change by time alone."""
        instant = (
            self.rule.deadline_s
            if now <= self.rule.deadline_s + HANDOVER_S
            else self.rule.give_up_s
        )
        return instant + 1.1 * HANDOVER_S

    def tau_ms(self, part: Part, now: float) -> int:
        """Milliseconds from the order to the update, or waited so far."""
        end = part.completed_at or now
        return max(0, round((end - self.began_at) * 1000))

    def outcomes(self, now: float) -> tuple[Outcome, ...]:
        """Return how each agent ended."""
        return tuple(self._outcome(part, now) for part in self.parts.values())

    def record(self, part: Part, now: float) -> UpdateRecord:
        """Return how an agent's part stands, as it is kept on disk."""
        placed = part.scrutiny
        return UpdateRecord(
            run=self.run,
            round=self.round,
            agent=part.agent,
            offer=part.offer,
            status=part.status,
            reason=part.reason,
            tau_ms=self.tau_ms(part, now),
            weight=part.weight,
            norm=part.norm,
            coefficient=part.weighed.coefficient,
            local_steps=part.weighed.local_steps,
            control_norm=0.0 if placed is None else placed.control_norm,
            aside=placed is not None and self.usual.is_long(self.weighing, placed),
        )

    def restore(self, known: UpdateRecord, sketch: Floats | None = None) -> None:
        """Take up how an agent had ended, as it was decided then, in the order of the sum."""
        part = self.parts.get(known.agent)
        if part is None or known.status is None:
            return
        part.stage, part.status, part.reason = Stage.ENDED, known.status, known.reason
        part.answered = True
        part.completed_at = self.began_at + known.tau_ms / 1000
        if known.offer is not None or known.status is OutcomeStatus.REJECTED:
            # As it was decided: tau is rounded, and its receipt may be with the agent.
            part.decide(known.status)
            part.offer, part.norm = known.offer, known.norm
            coefficient = known.weight if known.coefficient is None else known.coefficient
            part.weighed = Weighed(coefficient, known.weight, known.local_steps)
            if part.weight > 0 and known.offer is not None:
                told = self._told(part, known.offer)
                self._place(part, told, known.control_norm, sketch)

    def _outcome(self, part: Part, now: float) -> Outcome:
        tau = self.tau_ms(part, now)
        if part.offer is None or not part.valid:
            mute = part.status is OutcomeStatus.MISSED and not part.answered
            reason = part.reason or (UNANSWERED if mute else "")
            return Outcome(
                agent=part.agent, status=part.status, tau_ms=tau, censored=True, reason=reason
            )
        offer = part.offer
        # What an agent claims cannot be longer than what its edge measured, and its score
        # counts by its samples: no more than for an update.
        # Of work of an earlier round, this one has seen the end of the upload alone.
        dt = 0 if offer.made_in else min(offer.stats.dt_ms, tau)
        lc = 0 if offer.made_in else min(offer.stats.lc_ms, tau - dt)
        prepare = 0 if offer.made_in else min(offer.stats.prepare_ms, tau - dt - lc)
        stats = structs.replace(
            offer.stats,
            dt_ms=dt,
            lc_ms=lc,
            prepare_ms=prepare,
            train_ms=min(offer.stats.train_ms, tau),
            score_n=min(offer.stats.score_n, self.order.max_samples),
        )
        return Outcome(
            agent=part.agent,
            status=part.status,
            in_time=part.in_time,
            used=part.weight > 0,
            valid=True,
            weight=part.weight,
            tau_ms=tau,
            ut_ms=tau - dt - lc - prepare,
            # Where sums alone are told, no single update is, by its length neither.
            norm=0.0 if self.weighing.deviation else part.norm,
            stats=stats,
            reason=part.reason or offer.note,
            proof=proof_of(offer),
            made_in=offer.made_in,
        )
