"""One round at one edge: who is waited for, what counts, when it is over.

ALGORITHMS section 1. Times are the caller's monotonic seconds; an update's time is
the stamp of its last chunk, not the moment its verification ended.
"""

from dataclasses import dataclass, field
from enum import Enum

from fedagent_protocol.messages import (
    Assignment,
    DeclineReason,
    Outcome,
    OutcomeStatus,
    ReceiptStatus,
    RoundOrder,
    UpdateOffer,
    Weighting,
)
from fedagent_protocol.transfer import Receiver

from .admission import Verdict


class Stage(Enum):
    """Where an ordered agent stands."""

    WORKING = "working"
    SENDING = "sending"
    CHECKING = "checking"
    ENDED = "ended"


@dataclass(slots=True)
class Part:
    """One ordered agent's part in the round."""

    assignment: Assignment
    stage: Stage = Stage.WORKING
    credit_bytes: int = 0
    offer: UpdateOffer | None = None
    receiver: Receiver | None = None
    completed_at: float = 0.0
    status: OutcomeStatus = OutcomeStatus.MISSED
    receipt: ReceiptStatus | None = None
    reason: str = ""
    in_time: bool = False
    weight: float = 0.0
    norm: float = 0.0

    @property
    def valid(self) -> bool:
        """Whether a valid update came while the round was open: this is paid."""
        return self.receipt in (ReceiptStatus.ACCEPTED, ReceiptStatus.LATE)


@dataclass(frozen=True, slots=True)
class Restored:
    """An update that had its receipt, or was about to, when the process ended."""

    agent: str
    offer: UpdateOffer
    completed_at: float
    weight: float
    norm: float
    in_time: bool


@dataclass(slots=True)
class EdgeRound:
    """Collect updates until the deadline, or until there are enough.

    Attributes:
        order: What the coordinator ordered.
        base: Digest of the model that is trained from.
        began_at: When the agents were ordered; tau counts from here.
    """

    run: str
    order: RoundOrder
    base: str
    began_at: float
    parts: dict[str, Part] = field(default_factory=dict)
    closed: bool = False

    def __post_init__(self) -> None:
        """Begin with everybody at work."""
        for assignment in self.order.assignments:
            self.parts.setdefault(assignment.agent, Part(assignment))

    @property
    def round(self) -> int:
        """Number of the round."""
        return self.order.round

    @property
    def deadline(self) -> float:
        """Instant until which an update counts as X=1."""
        return self.began_at + self.order.deadline_ms / 1000

    @property
    def give_up(self) -> float:
        """Instant after which nobody is waited for."""
        return self.began_at + max(self.order.max_wait_ms, self.order.deadline_ms) / 1000

    @property
    def enough(self) -> int:
        """Z_eff: how many updates the aggregate needs."""
        return max(1, min(self.order.min_updates, len(self.parts)))

    @property
    def used(self) -> int:
        """Updates in the sum."""
        return sum(part.weight > 0 for part in self.parts.values())

    @property
    def failed(self) -> str:
        """Why there is no aggregate, or an empty string."""
        used = self.used
        return "" if used >= self.enough else f"{used} of {self.enough} updates"

    def decline(self, agent: str, why: DeclineReason, detail: str, now: float) -> bool:
        """Note a refusal; False if it changes nothing."""
        return self._end(agent, OutcomeStatus.DECLINED, f"{why}: {detail}"[:200], now)

    def gone(self, agent: str, now: float) -> bool:
        """Note that an agent left."""
        return self._end(agent, OutcomeStatus.GONE, "left", now)

    def reject(self, agent: str, reason: str, now: float) -> bool:
        """Note an update that cannot be taken."""
        part = self.parts[agent]
        part.receipt = ReceiptStatus.REJECTED
        return self._end(agent, OutcomeStatus.REJECTED, reason, now)

    def complete(self, agent: str, at: float) -> None:
        """Note that the last chunk of an update came."""
        part = self.parts[agent]
        part.stage, part.completed_at = Stage.CHECKING, at

    def checked(self, agent: str, verdict: Verdict, now: float) -> float:
        """Decide about a verified update; return its weight in the sum, 0 if unused.

        It is used if it came in time, or while fewer than Z_eff are in the sum.
        """
        part = self.parts[agent]
        if not verdict.valid:
            self.reject(agent, verdict.reason, now)
            return 0.0
        assert part.offer is not None
        part.norm = verdict.norm
        part.in_time = part.completed_at <= self.deadline
        part.status = OutcomeStatus.ARRIVED if part.in_time else OutcomeStatus.LATE
        part.receipt = ReceiptStatus.ACCEPTED if part.in_time else ReceiptStatus.LATE
        if part.completed_at <= self.give_up and (part.in_time or self.used < self.enough):
            samples = self.order.weighting is Weighting.SAMPLES
            part.weight = float(part.offer.num_samples) if samples else 1.0
        return part.weight

    def is_over(self, now: float) -> bool:
        """Whether the round closes now."""
        checking = [p for p in self.parts.values() if p.stage is Stage.CHECKING]
        if all(part.stage is Stage.ENDED for part in self.parts.values()):
            return True
        if now <= self.deadline:
            return False
        # Who completed in time is waited for, however long the check takes.
        if any(part.completed_at <= self.deadline for part in checking):
            return False
        if self.used >= self.enough:
            return True
        return now > self.give_up and not any(p.completed_at <= self.give_up for p in checking)

    def next_due(self, now: float) -> float:
        """Return when `is_over` may change by time alone."""
        return self.deadline if now <= self.deadline else self.give_up

    def tau_ms(self, part: Part, now: float) -> int:
        """Milliseconds from the order to the update, or waited so far."""
        end = part.completed_at or now
        return max(0, round((end - self.began_at) * 1000))

    def outcomes(self, now: float) -> tuple[Outcome, ...]:
        """Return how everybody ended."""
        return tuple(self._outcome(agent, part, now) for agent, part in self.parts.items())

    def restore(self, update: Restored) -> None:
        """Take an admitted update from the spool as it was decided then."""
        part = self.parts.get(update.agent)
        if part is None:
            return
        part.stage, part.offer = Stage.ENDED, update.offer
        part.completed_at, part.norm, part.weight = update.completed_at, update.norm, update.weight
        part.in_time = update.in_time
        part.status = OutcomeStatus.ARRIVED if update.in_time else OutcomeStatus.LATE
        part.receipt = ReceiptStatus.ACCEPTED if update.in_time else ReceiptStatus.LATE

    def _outcome(self, agent: str, part: Part, now: float) -> Outcome:
        tau = self.tau_ms(part, now)
        if part.offer is None or not part.valid:
            return Outcome(
                agent=agent, status=part.status, tau_ms=tau, censored=True, reason=part.reason
            )
        offer = part.offer
        dt, lc = min(offer.dt_ms, tau), min(offer.lc_ms, tau)
        return Outcome(
            agent=agent,
            status=part.status,
            in_time=part.in_time,
            used=part.weight > 0,
            valid=True,
            weight=part.weight,
            tau_ms=tau,
            dt_ms=dt,
            lc_ms=lc,
            ut_ms=max(0, tau - dt - lc),
            num_samples=offer.num_samples,
            arrivals=offer.arrivals,
            seconds_per_iteration=offer.seconds_per_iteration,
            loss=offer.loss,
            norm=part.norm,
        )

    def _end(self, agent: str, status: OutcomeStatus, reason: str, now: float) -> bool:
        part = self.parts.get(agent)
        if part is None or part.stage is Stage.ENDED:
            return False
        part.stage, part.status, part.reason = Stage.ENDED, status, reason
        part.completed_at = part.completed_at or now
        return True
