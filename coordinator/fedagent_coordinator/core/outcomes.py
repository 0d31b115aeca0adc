"""From the reports of the edges to what is learnt, paid and remembered."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from operator import attrgetter
from statistics import median_low
from typing import TypeVar

import numpy as np
import numpy.typing as npt
from msgspec import structs

from fedagent_coordinator.placement.base import Placement
from fedagent_coordinator.policies.base import (
    BoolArray,
    Ending,
    Feedback,
    IntArray,
    RoundView,
)
from fedagent_node.effects import Emit
from fedagent_protocol.errors import safe_text
from fedagent_protocol.messages import (
    LEFT,
    UNANSWERED,
    Outcome,
    OutcomeStatus,
    RoundReport,
    TrainStats,
)
from fedagent_protocol.signed import WorkClaim, is_proved
from fedagent_task.aggregation.sums import most_steps

from .effects import Controls, Details, EdgeResult, Proof, Reserve, Settle
from .settings import Settings
from .trust import evidence

S = TypeVar("S", bound=np.generic)
SILENT = "silent"
"""Why a round failed at an edge that did not report in time."""
UNTOLD = "the edge said nothing of it"
NOBODY = "no client was selected"
MAX_REASONS = 3
"""Different reasons for one kind of end that a round names."""
MAX_AGGREGATE_S = 2.6e6
"""An edge's own word on its aggregation is not believed beyond a month."""
BAD_CLAIM = "bad_claim"
"""Why an update is not paid that no signature of its agent shows, and its edge's model not used."""
Work = tuple[str, int]
"""An agent, and the round in which it began the work."""


@dataclass(slots=True)
class PaidWork:
    """Which work of the last `rounds` was paid, so that none is paid again as late (ADR 33).

    `updates` counts what was paid of an agent in the run, where updates cost privacy.
    """

    rounds: int
    known: set[Work] = field(default_factory=set)
    updates: Counter[str] = field(default_factory=Counter)

    def refuses(self, outcome: Outcome, number: int) -> bool:
        """Whether an outcome of a round is of work that is too old, or was paid already."""
        made_in = outcome.made_in
        if not made_in:
            return False
        return not 0 < number - made_in <= self.rounds or (outcome.agent, made_in) in self.known

    def settled(self, number: int, reports: Iterable[RoundReport]) -> None:
        """Remember what a round has paid."""
        self.known.update(
            (outcome.agent, outcome.made_in or number)
            for report in reports
            for outcome in report.outcomes
            if outcome.valid
        )
        self.known = {work for work in self.known if number - work[1] < self.rounds}


@dataclass(slots=True)
class EdgePart:
    """One edge's part in a round; `rows` of the selection are its agents, in the same order."""

    edge: str
    index: int
    resend_at: float
    rows: list[int] = field(default_factory=list)
    agents: list[str] = field(default_factory=list)
    patience_s: float = 0.0
    report: RoundReport | None = None
    unpaid: tuple[str, ...] = ()  # whose work it calls valid, and is not proved

    def of(self, wanted: BoolArray) -> list[str]:
        """Return its agents in these rows of the selection, bool[S]."""
        return [agent for row, agent in zip(self.rows, self.agents, strict=True) if wanted[row]]


def proved(report: RoundReport, *, run: str, edge: str, task: str, paid: PaidWork) -> RoundReport:
    """Return a report without what its agents did not sign, or were `paid` for already.

    An edge that used it has failed.
    """

    def checked(outcome: Outcome) -> Outcome:
        if not (outcome.valid or outcome.used or outcome.in_time):
            return outcome
        signed = is_proved(outcome, run=run, round_=report.round, edge=edge, task=task)
        if signed and not paid.refuses(outcome, report.round):
            return outcome
        return Outcome(
            agent=outcome.agent,
            status=OutcomeStatus.REJECTED,
            tau_ms=outcome.tau_ms,
            reason=BAD_CLAIM,
        )

    outcomes = tuple(map(checked, report.outcomes))
    if outcomes == report.outcomes:
        return report
    return structs.replace(report, outcomes=outcomes, failed=BAD_CLAIM)


def settle_round(
    plan: Reserve,
    parts: Sequence[EdgePart],
    settings: Settings,
    counters: Counter[str],
    *,
    waited_s: float,
) -> Settle:
    """Return how a round ended that was ordered `waited_s` ago; count what was odd about it.

    The weight of an edge is at most `Settings.weight_cap` times the median weight of the round's
    updates for each of its own that is in its sum.

    A silent edge failed: its agents missed the round and nothing is paid, even if some of them
    had trained, because nobody can say so (ALGORITHMS section 1). An outcome of an agent that
    was not ordered at that edge, or a second one of the same agent, is odd and changes nothing.
    """
    view, pairs = plan.view, plan.selection.pairs
    rows = _outcomes(parts, len(pairs), counters)
    failed = np.zeros(len(rows), dtype=np.bool_)
    for part in parts:
        failed[part.rows] = part.report is None or bool(part.report.failed)
    feedback = _feedback(view, pairs, rows, failed=failed, waited_s=waited_s)
    details = _details(rows, feedback)
    ending = endings_of(details.status, details.reason, feedback.X, feedback.unpaid)
    believed = evidence(
        view.pair_edge[pairs].astype(np.int64),
        norm=details.norm,
        samples=feedback.num_samples,
        reason=details.reason,
        valid=~feedback.unpaid,
    )
    feedback = replace(feedback, ending=ending, evidence=believed)
    # The lower one of two: where half of the edges lie, they make it nothing, and not anything.
    weight, usual = (
        median_low(known.tolist()) if len(known := told[told > 0]) else 0.0
        for told in (details.weight, details.norm)
    )
    heaviest = settings.weight_cap * weight
    each = plan.controls.of_each(len(pairs))
    learner, proofs = settings.recipe.learner, dict[int, Proof]()
    for part in parts:
        proofs |= _proofs(plan, part, settings)
    return Settle(
        round=plan.round,
        feedback=_with_rent(feedback, plan.controls.placement, parts),
        details=details,
        edges=tuple(
            _edge_result(
                part,
                feedback,
                # No word of an edge counts for more than its devices can have done.
                most=max(most_steps(learner, one) for one in each[part.rows].tolist()),
                heaviest=heaviest,
                usual=usual,
            )
            for part in parts
        ),
        timing_ms=plan.timing_ms,
        reason=_shortfall(feedback, details),
        proofs=proofs,
    )


def _outcomes(parts: Sequence[EdgePart], size: int, counters: Counter[str]) -> list[Outcome]:
    """Return each ordered pair's outcome; one that no edge told of has no `tau_ms`."""
    rows = [_missed(SILENT)] * size
    for part in parts:
        if part.report is None:
            continue
        waiting: dict[str, int] = dict(zip(part.agents, part.rows, strict=True))
        for outcome in part.report.outcomes:
            row = waiting.pop(outcome.agent, None)
            if row is not None:
                rows[row] = outcome
            else:
                counters["outcome_odd"] += 1
        for row in waiting.values():
            counters["outcome_missing"] += 1
            rows[row] = _missed(UNTOLD)
    return rows


def _proofs(plan: Reserve, part: EdgePart, settings: Settings) -> dict[int, Proof]:
    """Return what agents of an edge signed of the work that is paid, by client."""
    clients, found = dict(zip(part.agents, plan.clients[part.rows].tolist(), strict=True)), {}
    for outcome in part.report.outcomes if part.report is not None else ():
        proof, client = outcome.proof, clients.pop(outcome.agent, None)
        if proof is not None and client is not None and outcome.valid:
            claim = WorkClaim.reported(
                outcome,
                proof,
                run=settings.run,
                round_=plan.round,
                edge=part.edge,
                task=settings.task,
            )
            found[client] = Proof(claim.statement, proof.public, proof.signature)
    return found


_UNTIMED = -1


def _missed(reason: str) -> Outcome:
    return Outcome(
        agent="", status=OutcomeStatus.MISSED, censored=True, tau_ms=_UNTIMED, reason=reason
    )


def _column(rows: Sequence[Outcome], name: str, scalar: type[S]) -> npt.NDArray[S]:
    ours = name not in TrainStats.__struct_fields__
    return np.array([*map(attrgetter(name if ours else f"stats.{name}"), rows)], dtype=scalar)


def _feedback(
    view: RoundView, pairs: IntArray, rows: Sequence[Outcome], *, failed: BoolArray, waited_s: float
) -> Feedback:
    """Return what policies learn from; only a valid update is X, used or paid."""
    flags, counts = partial(_column, rows, scalar=np.bool_), partial(_column, rows, scalar=np.int64)
    valid, steps, tau_ms = flags("valid"), counts("steps"), counts("tau_ms")
    loss_rms = np.array([row.stats.course.loss_rms for row in rows], dtype=np.float64)
    loss = _column(rows, "loss", np.float64)
    each_s = _column(rows, "seconds_per_iteration", np.float64)
    # Of work that was begun in an earlier round, this one has not seen the parts.
    seen = valid & (counts("made_in") == 0)
    dt_s, lc_s, ut_s = (
        np.where(seen, counts(name) / 1000.0, np.nan) for name in ("dt_ms", "lc_ms", "ut_ms")
    )
    return Feedback(
        view=view,
        pairs=pairs,
        X=valid & flags("in_time"),
        used=valid & flags("used") & ~failed,
        unpaid=~valid,
        censored=flags("censored"),
        tau_s=np.where(tau_ms == _UNTIMED, waited_s, tau_ms / 1000.0),
        dt_s=dt_s,
        lc_s=lc_s,
        ut_s=ut_s,
        train_s=np.where(valid & (steps > 0), counts("train_ms") / 1000.0, np.nan),
        seconds_per_iteration=np.where(valid, each_s, np.nan),
        arrivals=counts("arrivals"),
        num_samples=counts("num_samples"),
        steps=steps,
        iterations=counts("iterations"),
        # 0: they are not reported.
        loss=np.where(valid & (loss != 0), loss, math.nan),
        loss_rms=np.where(valid & (loss_rms > 0), loss_rms, math.nan),
    )


def endings_of(
    status: Sequence[str], reason: Sequence[str], in_time: BoolArray, unpaid: BoolArray
) -> npt.NDArray[np.int8]:
    """Return int8[S], how orders ended, from what the books keep of them."""
    words = [_ending(*said) for said in zip(status, reason, strict=True)]
    valid = np.where(in_time, Ending.IN_TIME, Ending.LATE)
    return np.where(unpaid, np.array(words, dtype=np.int8), valid).astype(np.int8)


@lru_cache(maxsize=256)
def _ending(status: str, reason: str) -> Ending:
    """Return how an order without a valid update ended."""
    match OutcomeStatus(status):
        case OutcomeStatus.DECLINED:
            return Ending.DECLINED
        case OutcomeStatus.REJECTED:
            return Ending.REJECTED
        case OutcomeStatus.GONE:
            return Ending.GONE if reason == LEFT else Ending.EDGE
        case _ if reason in (SILENT, UNTOLD):
            return Ending.EDGE
        case _:
            return Ending.GONE if reason == UNANSWERED else Ending.MISSED


def _details(rows: Sequence[Outcome], feedback: Feedback) -> Details:
    numbers, valid = partial(_column, rows, scalar=np.float64), ~feedback.unpaid
    score_n, loss = np.where(valid, numbers("score_n"), 0.0), feedback.loss
    assert loss is not None
    samples, total, mean_loss = feedback.num_samples, float(score_n.sum()), math.nan
    if (known := np.isfinite(loss) & (samples > 0)).any():
        with np.errstate(over="ignore"):
            mean_loss = float(np.average(loss[known], weights=samples[known]))
    score = float(np.where(valid, numbers("score"), 0.0) @ score_n)
    return Details(
        status=tuple(row.status.value for row in rows),
        # In a device's words, which the books keep and `devices` prints.
        reason=tuple(safe_text(row.reason, limit=500) for row in rows),
        weight=np.where(feedback.used, numbers("weight"), 0.0),
        norm=np.where(valid, numbers("norm"), math.nan),
        score=score / total if total else 0.0,
        score_n=int(total),
        train_loss=mean_loss,
    )


def _shortfall(feedback: Feedback, details: Details) -> str:
    """Return how the orders ended whose update was not used, the most frequent first.

    Each end has the reason that all its devices have, or how many have each of the most frequent.
    """
    if not len(feedback.pairs):
        return NOBODY
    groups: dict[str, Counter[str]] = {}
    for row in np.flatnonzero(~feedback.used).tolist():
        reason = safe_text(details.reason[row], limit=120)
        groups.setdefault(details.status[row], Counter())[reason] += 1
    ends = []
    for status, reasons in sorted(groups.items(), key=lambda item: -item[1].total()):
        named = reasons.most_common(MAX_REASONS)
        each = [f"{count} {reason or 'without a reason'}" for reason, count in named]
        if more := reasons.total() - sum(count for _, count in named):
            each.append(f"{more} more")
        why = named[0][0] if len(reasons) == 1 else ", ".join(each)
        ends.append(f"{reasons.total()} {status}" + (f" ({why})" if why else ""))
    return ", ".join(ends)


def _with_rent(feedback: Feedback, placement: Placement, parts: Sequence[EdgePart]) -> Feedback:
    """Return the feedback with the rent that is due and the cost psi that was measured.

    The rent is due where an agent's signed work came, also late or to an edge that failed: its use
    of the round was paid for. Without any the edge's word alone would be paid. It is not due
    either where the edge told of work that no agent signed.
    psi is the sum over the ordered agents of download and upload seconds (one that showed none
    counts as the mean of the others) and the seconds of the aggregation; None where the edge
    showed no aggregate (docs/adr/0006-placed-rounds.md).
    """
    part = next((part for part in parts if part.index == placement.edge), None)
    if part is None or part.report is None or part.report.failed == BAD_CLAIM:
        return feedback
    if feedback.unpaid[part.rows].all():
        return feedback
    moved = feedback.dt_s[part.rows] + feedback.ut_s[part.rows]
    shown = moved[np.isfinite(moved)]
    psi = None
    if not part.report.failed and len(shown):
        aggregate_s = float(part.report.timing_ms.get("aggregate", 0.0)) / 1000.0
        psi = float(shown.mean()) * len(part.rows) + min(max(aggregate_s, 0.0), MAX_AGGREGATE_S)
    return replace(feedback, psi=psi, rent_micro=placement.rent_micro)


def _edge_result(
    part: EdgePart, feedback: Feedback, *, most: float, heaviest: float, usual: float
) -> EdgeResult:
    here = np.asarray(part.rows, dtype=np.int64)
    paid = feedback.pairs[here[~feedback.unpaid[here]]]
    report = part.report or RoundReport(epoch="", outcomes=(), failed=SILENT)
    weight, steps = (
        said if math.isfinite(said) and not report.failed else 0.0
        for said in (report.weight, report.local_steps)
    )
    used = int(feedback.used[here].sum())
    if heaviest:
        weight = min(weight, heaviest * used)
    return EdgeResult(
        edge=part.edge,
        index=part.index,
        ordered=len(here),
        in_time=int(feedback.X[here].sum()),
        used=used,
        spent_micro=int(feedback.view.pair_price[paid].sum()),
        failed=report.failed,
        model=report.model,
        weight=max(weight, 0.0),
        local_steps=min(max(steps, 0.0), most),
        norm=usual,
    )


def round_event(settled: Settle, controls: Controls, total_micro: int, seconds: float) -> Emit:
    """Return the event of a round, whose steps took so long in all."""
    edges, placed, details = settled.edges, controls.placement.edge, settled.details
    loss = details.train_loss
    return Emit(
        "round",
        {
            "round": settled.round,
            "ordered": sum(edge.ordered for edge in edges),
            "in_time": sum(edge.in_time for edge in edges),
            "used": sum(edge.used for edge in edges),
            "reason": settled.reason,
            "device_score": details.score if details.score_n else None,
            "train_loss": loss if math.isfinite(loss) else None,
            "spent_micro": settled.spent_micro,
            "total_spent_micro": total_micro,
            "iterations": controls.iterations,
            "rented": next((edge.edge for edge in edges if edge.index == placed), ""),
            "rent_micro": settled.feedback.rent_micro,
            "timing_ms": settled.timing_ms,
            "seconds": seconds,
        },
    )
