"""One round at one edge: who is waited for, what counts, when it is over, what is reported.

ALGORITHMS section 1. An update's time is the stamp of its last chunk, not the moment its
verification ended.
"""

from dataclasses import dataclass, field
from enum import Enum

from msgspec import structs

from fedagent_protocol.errors import ProtocolError
from fedagent_protocol.messages import (
    UNANSWERED,
    Outcome,
    OutcomeStatus,
    RoundOrder,
    RoundReport,
    TrainOrder,
    UpdateOffer,
    Weighting,
)
from fedagent_protocol.signed import proof_of
from fedagent_protocol.tensors import MAX_HEADER_BYTES
from fedagent_protocol.transfer import Layout
from fedagent_task.aggregation import Contribution, RoundRule, Sums
from fedagent_task.aggregation.sums import most_steps

from .admission import SMALL_BYTES, Verdict
from .effects import Commit, OpenRound, UpdateRecord
from .masking import Masking
from .part import AFTER_MAX_WAIT, Part, Stage, Work
from .weighing import PLAIN, Usual, Weighing

HANDOVER_S = 0.005
"""How long what was stamped before an instant may take to come here from the network."""
SMALLEST_CHUNK = 16 * 1024
"""Smaller chunks are taken only where the round's model has such, too."""
MOST_BYTES_MASKED = 4
"""A masked number is of 8 bytes, that of a model of 2 or more."""


class Phase(Enum):
    """Where a round stands; it goes from one to a later one, and never back."""

    OPEN = "open"
    UNMASKING = "unmasking"  # closed; its sum is masked until enough have answered
    COMMITTING = "committing"  # the disk makes the model of it
    OVER = "over"  # reported, or given up


@dataclass(slots=True)
class Round:
    """Collect updates until the deadline, or until there are enough, and make one model of them.

    `base` is what is trained from, cut as in `layout`; from `began_at` on tau counts.
    """

    run: str
    order: RoundOrder
    base: str
    layout: Layout
    began_at: float
    weighing: Weighing = PLAIN
    usual: Usual = field(default_factory=Usual)
    phase: Phase = Phase.OPEN
    parts: dict[str, Part] = field(default_factory=dict)
    placed: list[Part] = field(default_factory=list)
    """Those whose updates are in the sum, in the order in which they came."""
    masking: Masking | None = None
    void: str = ""  # why it is given up, once all that is complete is checked
    closed_s: float = 0.0
    outcomes: tuple[Outcome, ...] = ()  # how each agent ended, once it is closed
    rule: RoundRule = field(init=False)

    def __post_init__(self) -> None:
        order = self.order
        self.rule = RoundRule(order.deadline_ms / 1000, order.max_wait_ms / 1000, order.min_updates)
        for one in order.assignments:
            self.parts.setdefault(one.agent, Part((self.run, order.round, one.agent), one))

    @property
    def number(self) -> int:
        """Number of the round."""
        return self.order.round

    @property
    def name(self) -> tuple[str, int]:
        """What messages and jobs name it by."""
        return self.run, self.order.round

    @property
    def is_open(self) -> bool:
        """Whether updates are still taken."""
        return self.phase is Phase.OPEN

    @property
    def is_live(self) -> bool:
        """Whether it is not reported yet."""
        return self.phase is not Phase.OVER

    @property
    def unanswered(self) -> list[Part]:
        """Those whose order is repeated."""
        parts = self.parts.values()
        return [one for one in parts if one.stage is Stage.WORKING and not one.answered]

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
        used, enough = len(self.placed), self.rule.enough(len(self.parts))
        return self.hopeless or ("" if used >= enough else f"{used} of {enough} updates")

    @property
    def hopeless(self) -> str:
        """Why it can come to nothing, whatever still arrives."""
        return self.void or (self.masking.void if self.masking is not None else "")

    def after(self, now: float) -> float:
        """Return the seconds since the order."""
        return now - self.began_at

    # ------------------------------------------------------------- what counts

    def refusal(self, part: Part, offer: UpdateOffer) -> tuple[str, str]:
        """Return reason and detail why an offer cannot be taken, or empty strings.

        Costs no memory: nothing of the update has been stored yet.
        """
        order, model, masking = self.order, self.layout, self.masking
        if offer.task != order.task:
            return "wrong_task", offer.task[:12]
        late = part.late
        if not offer.made_in and offer.base != self.base:
            return "stale_base", offer.base[:12]
        if offer.made_in and (
            late is None or (late.round, late.base) != (offer.made_in, offer.base)
        ):
            return "stale_base", f"no late update of round {offer.made_in} is expected"
        samples = offer.stats.num_samples
        if not 0 < samples <= order.max_samples:
            return "sample_count", f"{samples} samples, at most {order.max_samples} are allowed"
        if masking is not None and any(why := masking.refusal(part.agent, offer.agreed)):
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

    def own_work(self, part: Part) -> Work:
        """Return what an agent has begun in this round: from now on, if nothing before."""
        if part.work is None or part.work is part.late:
            part.work = Work(self.run, self.number, self.base, self.layout)
        return part.work

    def is_small(self, offer: UpdateOffer) -> bool:
        """Whether an update of one chunk goes to the disk together with its verdict."""
        size = max(offer.size, self.layout.size)
        return size <= SMALL_BYTES and offer.size <= offer.chunk_bytes

    def admit(self, part: Part, verdict: Verdict) -> None:
        """Decide about a valid update whether it is in time, paid, and in the sum.

        It is used if it came in time, or while fewer than Z_eff are in the sum. Late is paid, too
        late is not. To be called in the order in which updates were complete: a restart decides the
        same again.
        """
        offer, after_s, rule = part.offer, part.after_s, self.rule
        assert offer is not None
        assert after_s is not None
        part.stage, part.status = Stage.ENDED, OutcomeStatus.ARRIVED
        if after_s > rule.deadline_s:
            late = after_s <= rule.give_up_s
            part.status = OutcomeStatus.LATE if late else OutcomeStatus.MISSED
        part.reason = "" if part.valid else AFTER_MAX_WAIT
        part.verdict = verdict
        if not rule.counts(after_s, used=len(self.placed), ordered=len(self.parts)):
            return
        stats, learner = offer.stats, self.weighing.learner
        age = max(0, self.number - offer.made_in) if offer.made_in else 0
        told = Contribution(
            num_samples=float(stats.num_samples),
            # What is masked is as long as its mask: that is nobody's norm.
            norm=verdict.norm if self.masking is None else 0.0,
            base_loss=stats.course.base_loss,
            local_steps=stats.course.local_steps,
            uniform=self.order.weighting is not Weighting.SAMPLES,
            rate=learner.rate,
            most_steps=most_steps(learner, part.assignment.iterations),
            discount=(1.0 + age) ** -0.5,
        )
        part.weighed = self.weighing.weigh(told)
        part.reason = part.reason or part.weighed.reason
        if part.weight > 0:
            part.told = told
            self.placed.append(part)

    def settle(self) -> None:
        """Weigh the updates of the sum anew, now that all are known. Once, at the close."""
        asked = {p.agent: (p.told, p.verdict) for p in self.placed if p.told is not None}
        places, self.usual = self.usual.settle(self.weighing, asked)
        for name, (weighed, reason) in places.items():
            part = self.parts[name]
            part.weighed, part.reason = weighed, part.reason or reason

    def commit(self) -> Commit:
        """Return what makes the model of the sum."""
        return Commit(
            self.run,
            self.number,
            self.base,
            self.weighing.scale(self.sums),
            (self.masking.seeds or ()) if self.masking is not None else (),
            tuple((part.file, part.weighed) for part in self.placed if part.weight > 0),
        )

    def order_for(self, part: Part, credit: int, now: float) -> TrainOrder:
        """Return an agent's order as it is now."""
        assignment, late, after_s = part.assignment, part.late, self.after(now)
        return TrainOrder(
            run=self.run,
            round=self.number,
            task=self.order.task,
            model=self.base,
            size=self.layout.size,
            chunk_bytes=self.layout.chunk_bytes,
            deadline_ms=max(0, round((self.rule.deadline_s - after_s) * 1000)),
            give_up_ms=max(0, round((self.rule.give_up_s - after_s) * 1000)),
            iterations=assignment.iterations,
            credit=credit,
            price=assignment.price,
            context_seq=assignment.context_seq,
            load_limit_ms=self.order.load_limit_ms,
            made_in=late.round if late is not None else 0,
            made_from=late.base if late is not None else "",
            releases=assignment.releases,
            assigned=assignment.assigned,
        )

    # -------------------------------------------------------------- the disk

    def opened(self) -> OpenRound:
        """Return what the disk is to know of it."""
        return OpenRound(run=self.run, order=self.order, base=self.base, began_at=self.began_at)

    def restore(self, known: UpdateRecord, verdict: Verdict) -> None:
        """Take up an update that was here."""
        if part := self.parts.get(known.key[2]):
            part.answered, part.after_s, part.offer = True, known.after_s, known.offer
            self.admit(part, verdict)

    # -------------------------------------------------------------- the close

    def is_over(self, now: float) -> bool:
        """Whether the round closes now.

        Who is complete is waited for, and paid also where the round comes to nothing: a check takes
        moments, and cannot be begun twice.
        """
        stages = {part.stage for part in self.parts.values()}
        if Stage.CHECKING in stages:
            return False
        if self.hopeless or stages <= {Stage.ENDED}:
            return True
        used, ordered = len(self.placed), len(self.parts)
        return self.rule.is_over(self.after(now), used=used, ordered=ordered, slack_s=HANDOVER_S)

    def next_due(self, now: float) -> float:
        """Return when `is_over` may change by time alone."""
        rule = self.rule
        waits = self.after(now) <= rule.deadline_s + HANDOVER_S
        limit = rule.deadline_s if waits else rule.give_up_s
        return self.began_at + limit + 1.1 * HANDOVER_S

    def tau_ms(self, part: Part, now: float) -> int:
        """Milliseconds from the order to the update, or waited so far."""
        end = self.after(now) if part.after_s is None else part.after_s
        return max(0, round(end * 1000))

    def outcome(self, part: Part, now: float) -> Outcome:
        """Return how an agent ended."""
        tau, offer = self.tau_ms(part, now), part.offer
        if offer is None or not part.valid:
            mute = part.status is OutcomeStatus.MISSED and not part.answered
            reason = part.reason or (UNANSWERED if mute else "")
            return Outcome(
                agent=part.agent, status=part.status, tau_ms=tau, censored=True, reason=reason
            )
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
            in_time=part.status is OutcomeStatus.ARRIVED,
            used=part.weight > 0,
            valid=True,
            weight=part.weight,
            tau_ms=tau,
            ut_ms=tau - dt - lc - prepare,
            # Where sums alone are told, no single update is, by its length neither.
            norm=0.0 if self.weighing.deviation or self.masking is not None else part.verdict.norm,
            stats=stats,
            reason=part.reason or offer.note,
            proof=proof_of(offer),
            made_in=offer.made_in,
        )

    def report(self, failed: str, now: float) -> RoundReport:
        """Return what is reported; with `failed` nothing is used."""
        outcomes = self.outcomes
        if failed:
            outcomes = tuple(structs.replace(one, used=False, weight=0.0) for one in outcomes)
        aggregate_s = self.after(now) - self.closed_s
        return RoundReport(
            run=self.run,
            round=self.number,
            epoch="",
            outcomes=outcomes,
            failed=failed,
            used=sum(one.used for one in outcomes),
            weight=sum(one.weight for one in outcomes),
            local_steps=0.0 if failed else self.sums.local_steps,
            timing_ms={
                "collect": round(self.closed_s * 1e3, 3),
                "aggregate": round(aggregate_s * 1e3, 3),
            },
        )
