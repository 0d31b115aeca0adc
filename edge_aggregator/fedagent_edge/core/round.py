"""One round at one edge: who is waited for, what counts, when it is over, what is reported.

ALGORITHMS section 1. An update's time is the stamp of its last chunk, not the moment its
verification ended.
"""

from collections import Counter
from dataclasses import dataclass, field
from enum import Enum

from msgspec import structs

from fedagent_protocol import messages as m
from fedagent_protocol.signed import proof_of
from fedagent_protocol.transfer import Layout, Receiver
from fedagent_task.aggregation import Contribution, RoundRule, Sums, Weighed
from fedagent_task.aggregation.sums import most_steps
from fedagent_task.recipe.spec import LONGEST_WORK

from .admission import Verdict
from .effects import Commit, Ended, File, Key
from .masking import Masking
from .weighing import PLAIN, UNWEIGHED, Usual, Weighing

RECEIPTS = {
    m.OutcomeStatus.ARRIVED: m.ReceiptStatus.ACCEPTED,
    m.OutcomeStatus.LATE: m.ReceiptStatus.LATE,
    m.OutcomeStatus.MISSED: m.ReceiptStatus.TOO_LATE,
    m.OutcomeStatus.REJECTED: m.ReceiptStatus.REJECTED,
    m.OutcomeStatus.DECLINED: m.ReceiptStatus.REJECTED,
}
"""What a client that has ended hears of an update; one that is gone may come back."""
NO_VERDICT = Verdict()
AFTER_MAX_WAIT = "complete after max_wait"
"""Reason of an update that came between `max_wait` and the close."""
HANDOVER_S = 0.005
"""How long what was stamped before an instant may take to come here from the network."""


class Stage(Enum):
    """Where a client stands."""

    WORKING = "working"
    SENDING = "sending"
    CHECKING = "checking"
    ENDED = "ended"


@dataclass(slots=True)
class Work:
    """What an agent has begun from the model `base`, in `round`, and may go on with (ADR 33)."""

    run: str
    round: int
    base: str
    layout: Layout  # how the base is cut
    offer: m.UpdateOffer | None = None  # the update of which there is a file
    have: set[int] = field(default_factory=set)
    """Its chunks that are here."""
    moved: int = 0  # the round in which something of it went over the link last
    asked: int = 0  # how much of its base the agent has asked for

    @property
    def size(self) -> int:
        """Bytes that it may have on the disk."""
        return self.offer.size if self.offer is not None else 0

    def lasts(self, number: int, late_rounds: int) -> bool:
        """Whether an agent may go on with it in a round: not without end, nor if nothing moves."""
        rests = number - max(self.round, self.moved)
        return 0 < number - self.round <= LONGEST_WORK and rests <= late_rounds

    def forget_file(self) -> None:
        """Begin with the update again."""
        self.offer, self.have = None, set()


@dataclass(slots=True, eq=False)
class Client:
    """How far an ordered agent is in a round, and how it ended."""

    round: "Round"
    assignment: m.Assignment
    stage: Stage = Stage.WORKING
    status: m.OutcomeStatus = m.OutcomeStatus.MISSED
    reason: str = ""
    after_s: float | None = None
    """From the order to its last chunk (not to the verdict), or to its end without an update."""
    orders: int = 0
    order_again_at: float = 0.0
    answered: bool = False  # it showed that it has this order, which is repeated otherwise
    too_slow: str = ""  # why its link cannot carry the model in time, as far as is known
    credit_bytes: int = 0  # what the order gave in advance
    booked_bytes: int = 0  # all that it has of the pool
    offer: m.UpdateOffer | None = None
    receiver: Receiver | None = None
    stalls: int = 0  # how often in a row its transfer was silent
    kept: Work | None = None  # what it may go on with instead of training anew
    work: Work | None = None  # what it was at last: that, or what it has begun in this round
    verdict: Verdict = NO_VERDICT
    told: Contribution | None = None
    weighed: Weighed = UNWEIGHED
    void: str = ""  # why it is not paid, whatever was said
    before: m.Receipt | None = None  # of its update in the round before, which its order brings
    agent: str = field(init=False)
    key: Key = field(init=False)
    """What names its update."""

    def __post_init__(self) -> None:
        self.agent = self.assignment.agent
        self.key = (*self.round.name, self.agent)

    @property
    def valid(self) -> bool:
        """Whether there is an update that is paid."""
        return self.status in (m.OutcomeStatus.ARRIVED, m.OutcomeStatus.LATE)

    @property
    def receipt(self) -> m.ReceiptStatus | None:
        """What it hears of an update that it offers again; None if it has not ended."""
        if self.void:
            return m.ReceiptStatus.VOID
        return RECEIPTS.get(self.status) if self.stage is Stage.ENDED else None

    @property
    def file(self) -> File:
        """What names the file of its update."""
        assert self.offer is not None
        return self.agent, self.offer.digest

    @property
    def is_settled(self) -> bool:
        """Whether it has ended, or cannot take its update back any more: it is whole.

        Such an update is as good as in the sum, where nothing can be subtracted.
        """
        return self.stage in (Stage.CHECKING, Stage.ENDED)

    @property
    def ended(self) -> Ended:
        """What the disk is to know of its end."""
        offer = None if self.verdict is NO_VERDICT else self.offer
        return Ended(self.key, self.after_s or 0.0, offer, self.status, self.reason)

    def word(self, offer: m.UpdateOffer | None = None) -> m.Receipt | None:
        """Return what it hears of its update, or of what it offers now; None: not decided."""
        status, offer = self.receipt, offer or self.offer
        if status is None or offer is None:
            return None
        declined = "declined: " if self.status is m.OutcomeStatus.DECLINED else ""
        return receipt_of(offer, status, self.void or declined + self.reason)

    def go(self, stage: Stage) -> None:
        """Go on to another stage; its round counts how many are in each."""
        self.round.standing[self.stage] -= 1
        self.round.standing[stage] += 1
        self.stage = stage

    def end(self, status: m.OutcomeStatus, reason: str, after_s: float) -> None:
        """End it."""
        self.go(Stage.ENDED)
        self.status, self.reason = status, reason
        self.after_s = after_s if self.after_s is None else self.after_s

    def reset(self) -> None:
        """Wait for this agent again, from the start of its transfer."""
        self.go(Stage.WORKING)
        self.status, self.reason = m.OutcomeStatus.MISSED, ""
        self.offer = self.receiver = self.after_s = None

    def come_back(self) -> None:
        """Wait for it again if it had left."""
        if self.status is m.OutcomeStatus.GONE:
            self.reset()


class Phase(Enum):
    """Where a round stands; it goes from one to a later one, and never back."""

    OPEN = "open"
    UNMASKING = "unmasking"  # closed; its sum is masked until enough have answered
    COMMITTING = "committing"  # the disk makes the model of it
    OVER = "over"  # reported, or given up


@dataclass(slots=True, eq=False)
class Round:
    """Collect updates until the deadline, or until there are enough, and make one model of them.

    `base` is what is trained from, cut as in `layout`; from `began_at` on tau counts.
    """

    run: str
    order: m.RoundOrder
    base: str
    layout: Layout
    began_at: float
    weighing: Weighing = PLAIN
    usual: Usual = field(default_factory=Usual)
    phase: Phase = Phase.OPEN
    clients: dict[str, Client] = field(default_factory=dict)
    placed: list[Client] = field(default_factory=list)
    """Those whose updates are in the sum, in the order in which they came."""
    masking: Masking | None = None
    given_up: str = ""  # why it is given up, once all that is complete is checked
    sums: Sums = field(default_factory=Sums)  # the scalars of the sum, once it is made
    closed_s: float = 0.0
    outcomes: tuple[m.Outcome, ...] = ()  # how each agent ended, once it is closed
    standing: Counter[Stage] = field(default_factory=Counter)
    """How many of its clients are in each stage."""
    rule: RoundRule = field(init=False)
    name: tuple[str, int] = field(init=False)
    """What messages and jobs name it by."""
    moments: tuple[float, float] = field(init=False)
    """When `is_over` may change by time alone."""

    def __post_init__(self) -> None:
        order, self.name = self.order, (self.run, self.order.round)
        self.rule = RoundRule(order.deadline_ms / 1000, order.max_wait_ms / 1000, order.min_updates)
        waits = self.began_at + 1.1 * HANDOVER_S
        self.moments = waits + self.rule.deadline_s, waits + self.rule.give_up_s
        for one in order.assignments:
            self.clients.setdefault(one.agent, Client(self, one))
        self.standing[Stage.WORKING] = len(self.clients)

    @property
    def is_open(self) -> bool:
        """Whether updates are still taken."""
        return self.phase is Phase.OPEN

    def ended(self) -> set[str]:
        """Return the agents that nobody waits for."""
        return {agent for agent, one in self.clients.items() if one.stage is Stage.ENDED}

    @property
    def failed(self) -> str:
        """Why there is no aggregate, or an empty string."""
        used, enough = len(self.placed), self.rule.enough(len(self.clients))
        return self.hopeless or ("" if used >= enough else f"{used} of {enough} updates")

    @property
    def hopeless(self) -> str:
        """Why it can come to nothing, whatever still arrives."""
        return self.given_up or (self.masking.given_up if self.masking is not None else "")

    def after(self, now: float) -> float:
        """Return the seconds since the order."""
        return now - self.began_at

    # ------------------------------------------------------------- what counts

    def own_work(self, client: Client) -> Work:
        """Return what an agent has begun in this round: from now on, if nothing before."""
        if client.work is None or client.work is client.kept:
            client.work = Work(self.run, self.order.round, self.base, self.layout)
        return client.work

    def admit(self, client: Client, verdict: Verdict) -> None:
        """Decide about a valid update whether it is in time, paid, and in the sum.

        It is used if it came in time, or while fewer than Z_eff are in the sum. Late is paid, too
        late is not. To be called in the order in which updates were complete: a restart decides the
        same again.
        """
        offer, after_s, rule = client.offer, client.after_s, self.rule
        assert offer is not None
        assert after_s is not None
        client.verdict = verdict
        if after_s <= rule.deadline_s:
            client.end(m.OutcomeStatus.ARRIVED, "", after_s)
        elif after_s <= rule.give_up_s:
            client.end(m.OutcomeStatus.LATE, "", after_s)
        else:
            client.end(m.OutcomeStatus.MISSED, AFTER_MAX_WAIT, after_s)
        if not rule.counts(after_s, used=len(self.placed), ordered=len(self.clients)):
            return
        stats, learner = offer.stats, self.weighing.learner
        age = max(0, self.order.round - offer.made_in) if offer.made_in else 0
        told = Contribution(
            num_samples=float(stats.num_samples),
            # What is masked is as long as its mask: that is nobody's norm.
            norm=verdict.norm if self.masking is None else 0.0,
            base_loss=stats.course.base_loss,
            local_steps=stats.course.local_steps,
            uniform=self.order.weighting is not m.Weighting.SAMPLES,
            rate=learner.rate,
            most_steps=most_steps(learner, client.assignment.iterations),
            discount=(1.0 + age) ** -0.5,
        )
        client.weighed = self.weighing.weigh(told)
        client.reason = client.reason or client.weighed.reason
        if client.weighed.weight > 0:
            client.told = told
            self.placed.append(client)

    def settle(self) -> None:
        """Weigh the updates of the sum anew, now that all are known. Once, at the close."""
        asked = {p.agent: (p.told, p.verdict) for p in self.placed if p.told is not None}
        places, self.usual = self.usual.settle(self.weighing, asked)
        for name, (weighed, reason) in places.items():
            client = self.clients[name]
            client.weighed, client.reason = weighed, client.reason or reason

    def commit(self) -> Commit:
        """Have the model made of the sum."""
        self.phase = Phase.COMMITTING
        terms = [(one.file, one.weighed) for one in self.placed if one.weighed.weight > 0]
        for _, weighed in terms:
            self.sums.add(weighed)
        seeds = self.masking.seeds if self.masking is not None else None
        scale = self.weighing.scale(self.sums)
        return Commit(*self.name, self.base, scale, seeds or (), tuple(terms))

    def order_for(self, client: Client, credit: int, now: float) -> m.TrainOrder:
        """Return an agent's order as it is now."""
        assignment, kept, after_s = client.assignment, client.kept, self.after(now)
        return m.TrainOrder(
            run=self.run,
            round=self.order.round,
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
            made_in=kept.round if kept is not None else 0,
            made_from=kept.base if kept is not None else "",
            releases=assignment.releases,
            assigned=assignment.assigned,
            receipt=client.before,
        )

    def restore(self, known: Ended, verdict: Verdict) -> None:
        """Take up an end that was before."""
        client = self.clients.get(known.key[2])
        if client is None:
            return
        client.answered, client.after_s, client.offer = True, known.after_s, known.offer
        if known.offer is None:
            client.end(known.status, known.reason, known.after_s)
        else:
            self.admit(client, verdict)

    # -------------------------------------------------------------- the close

    def is_over(self, now: float) -> bool:
        """Whether the round closes now.

        Who is complete is waited for, and paid also where the round comes to nothing: a check takes
        moments, and cannot be begun twice.
        """
        standing = self.standing
        if standing[Stage.CHECKING]:
            return False
        if self.hopeless or not (standing[Stage.WORKING] or standing[Stage.SENDING]):
            return True
        used, ordered = len(self.placed), len(self.clients)
        return self.rule.is_over(self.after(now), used=used, ordered=ordered, slack_s=HANDOVER_S)

    def close(self, now: float) -> None:
        """Note how each client ended."""
        self.closed_s = self.after(now)
        self.outcomes = tuple(self.outcome(client, now) for client in self.clients.values())

    def outcome(self, client: Client, now: float) -> m.Outcome:
        """Return how an agent ended."""
        # To the update, or waited so far.
        end, offer = self.after(now) if client.after_s is None else client.after_s, client.offer
        tau = max(0, round(end * 1000))
        if offer is None or not client.valid:
            reason = client.reason
            if client.status is m.OutcomeStatus.MISSED and not reason:
                reason = client.too_slow if client.answered else m.UNANSWERED
            return m.Outcome(
                agent=client.agent, status=client.status, tau_ms=tau, censored=True, reason=reason
            )
        # What an agent claims cannot be longer than what its edge measured, and its score
        # counts by its samples: no more than for an update.
        # Of work of an earlier round, this one has seen the end of the upload alone.
        dt = lc = prepare = 0
        if not offer.made_in:
            dt = min(offer.stats.dt_ms, tau)
            lc = min(offer.stats.lc_ms, tau - dt)
            prepare = min(offer.stats.prepare_ms, tau - dt - lc)
        stats = structs.replace(
            offer.stats,
            dt_ms=dt,
            lc_ms=lc,
            prepare_ms=prepare,
            train_ms=min(offer.stats.train_ms, tau),
            score_n=min(offer.stats.score_n, self.order.max_samples),
        )
        return m.Outcome(
            agent=client.agent,
            status=client.status,
            in_time=client.status is m.OutcomeStatus.ARRIVED,
            used=client.weighed.weight > 0,
            valid=True,
            weight=client.weighed.weight,
            tau_ms=tau,
            ut_ms=tau - dt - lc - prepare,
            # Where sums alone are told, no single update is, by its length neither.
            norm=0.0
            if self.weighing.deviation or self.masking is not None
            else client.verdict.norm,
            stats=stats,
            reason=client.reason or offer.note,
            proof=proof_of(offer),
            made_in=offer.made_in,
        )

    def report(
        self, failed: str, now: float, *, model: str, size: int, chunk_bytes: int
    ) -> m.RoundReport:
        """Return what is reported; with `failed` nothing is used."""
        outcomes = self.outcomes
        if failed:
            outcomes = tuple(structs.replace(one, used=False, weight=0.0) for one in outcomes)
        return m.RoundReport(
            run=self.run,
            round=self.order.round,
            epoch="",
            model=model,
            size=size,
            chunk_bytes=chunk_bytes,
            outcomes=outcomes,
            failed=failed,
            used=sum(one.used for one in outcomes),
            weight=sum(one.weight for one in outcomes),
            local_steps=0.0 if failed else self.sums.local_steps,
            timing_ms={"aggregate": round((self.after(now) - self.closed_s) * 1e3, 3)},
        )


def receipt_of(offer: m.UpdateOffer, status: m.ReceiptStatus, reason: str) -> m.Receipt:
    """Return the word on an update."""
    return m.Receipt(
        run=offer.run, round=offer.round, digest=offer.digest, status=status, reason=reason[:200]
    )
