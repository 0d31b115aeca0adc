"""From the reports of the edges to what is learnt and paid."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from operator import attrgetter
from statistics import median_low
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from fedagent_coordinator.placement.base import Placement
from fedagent_coordinator.policies.base import (
    BoolArray,
    Ending,
    Feedback,
    FloatArray,
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
from fedagent_protocol.signed import WorkClaim
from fedagent_task.aggregation.sums import most_steps

from .effects import Controls, Details, EdgeResult, Proof, Reserve, Settle
from .paid_work import BAD_CLAIM
from .settings import Settings
from .trust import evidence

S = TypeVar("S", bound=np.generic)
SILENT = "silent"
"""Why a round failed at an edge that did not report in time."""
UNTOLD = "the edge said nothing of it"
NOBODY = "no client was selected"
MAX_REASONS = 3
"""Different reasons for one kind of end that a round names."""
_UNTIMED = -1
_SILENT, _UNTOLD = (
    Outcome(agent="", status=OutcomeStatus.MISSED, censored=True, tau_ms=_UNTIMED, reason=reason)
    for reason in (SILENT, UNTOLD)
)
MAX_AGGREGATE_S = 2.6e6
"""An edge's own word on its aggregation is not believed beyond a month."""


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

    def pairs(self) -> Iterator[tuple[int, str]]:
        """Return its agents with their rows."""
        return zip(self.rows, self.agents, strict=True)


def settle_round(
    plan: Reserve,
    parts: Sequence[EdgePart],
    settings: Settings,
    counters: Counter[str],
    *,
    waited_s: float,
) -> Settle:
    """Return how a round ended that was ordered `waited_s` ago; count what was odd about it.

    The weight of an edge is at most `Robust.cap` times the median weight of the round's updates
    for each of its own that is in its sum.

    A silent edge failed: its agents missed the round and nothing is paid, even if some of them
    had trained, because nobody can say so (ALGORITHMS section 1). An outcome of an agent that
    was not ordered at that edge, or a second one of the same agent, is odd and changes nothing.
    """
    rows, proofs = _outcomes(plan, parts, settings, counters)
    valid = _column(rows, "valid", np.bool_)
    used = valid & _column(rows, "used", np.bool_)
    for part in parts:
        used[part.rows] &= part.report is not None and not part.report.failed
    details = _details(rows, valid=valid, used=used)
    feedback = _feedback(plan, parts, rows, details, valid=valid, used=used, waited_s=waited_s)
    # The lower one of two: where half of the edges lie, they make it nothing, and not anything.
    weight, usual = (
        median_low(known.tolist()) if len(known := told[told > 0]) else 0.0
        for told in (details.weight, details.norm)
    )
    # What q-FedAvg weighs by is no claim of samples, and differs by design.
    heaviest = 0.0 if "base_loss" in settings.strategy.needs else settings.robust.cap * weight
    each, learner = plan.controls.of_each(len(rows)), settings.recipe.learner
    # No word of an edge counts for more than its devices can have done.
    most = [max(most_steps(learner, one) for one in each[part.rows].tolist()) for part in parts]
    return Settle(
        round=plan.round,
        feedback=feedback,
        details=details,
        edges=tuple(
            _edge_result(part, feedback, most=steps, heaviest=heaviest, usual=usual)
            for part, steps in zip(parts, most, strict=True)
        ),
        timing_ms=plan.timing_ms,
        reason=_shortfall(feedback, details),
        proofs=proofs,
    )


def _outcomes(
    plan: Reserve, parts: Sequence[EdgePart], settings: Settings, counters: Counter[str]
) -> tuple[list[Outcome], dict[int, Proof]]:
    """Return each ordered pair's outcome, and what was signed of the work that is paid, by client.

    One that no edge told of has no `tau_ms`.
    """
    rows, proofs = [_SILENT] * len(plan.selection.pairs), dict[int, Proof]()
    run, task, round_ = settings.run, settings.task, plan.round
    for part in parts:
        if part.report is None:
            continue
        waiting: dict[str, int] = {agent: row for row, agent in part.pairs()}
        for outcome in part.report.outcomes:
            row = waiting.pop(outcome.agent, None)
            if row is None:
                counters["outcome_odd"] += 1
                continue
            rows[row], proof = outcome, outcome.proof
            if outcome.valid and proof is not None:
                its = (outcome, proof)
                claim = WorkClaim.reported(*its, run=run, round_=round_, edge=part.edge, task=task)
                signed = Proof(claim.statement, proof.public, proof.signature)
                proofs[int(plan.clients[row])] = signed
        for row in waiting.values():
            counters["outcome_missing"] += 1
            rows[row] = _UNTOLD
    return rows, proofs


def _column(rows: Sequence[Outcome], name: str, scalar: type[S]) -> npt.NDArray[S]:
    theirs = name.partition(".")[0] in TrainStats.__struct_fields__
    return np.array([*map(attrgetter(f"stats.{name}" if theirs else name), rows)], dtype=scalar)


def _details(rows: Sequence[Outcome], *, valid: BoolArray, used: BoolArray) -> Details:
    numbers = partial(_column, rows, scalar=np.float64)
    score_n, loss, mean_loss = np.where(valid, numbers("score_n"), 0.0), numbers("loss"), math.nan
    samples, total = numbers("num_samples"), float(score_n.sum())
    if (known := valid & (loss != 0) & (samples > 0)).any():
        with np.errstate(over="ignore"):
            mean_loss = float(np.average(loss[known], weights=samples[known]))
    score = float(np.where(valid, numbers("score"), 0.0) @ score_n)
    return Details(
        status=tuple(row.status.value for row in rows),
        # In a device's words, which the books keep and `devices` prints.
        reason=tuple(safe_text(row.reason, limit=500) for row in rows),
        weight=np.where(used, numbers("weight"), 0.0),
        norm=np.where(valid, numbers("norm"), math.nan),
        score=score / total if total else 0.0,
        score_n=int(total),
        train_loss=mean_loss,
    )


def _feedback(
    plan: Reserve,
    parts: Sequence[EdgePart],
    rows: Sequence[Outcome],
    details: Details,
    *,
    valid: BoolArray,
    used: BoolArray,
    waited_s: float,
) -> Feedback:
    """Return what policies learn from; only a valid update is X, used or paid."""
    counts = partial(_column, rows, scalar=np.int64)
    numbers = partial(_column, rows, scalar=np.float64)
    pairs, status, reason = plan.selection.pairs, details.status, details.reason
    steps, tau_ms, samples = counts("steps"), counts("tau_ms"), counts("num_samples")
    in_time = valid & _column(rows, "in_time", np.bool_)
    # Of work that was begun in an earlier round, this one has not seen the parts.
    seen = valid & (counts("made_in") == 0)
    dt_s, lc_s, ut_s = (
        np.where(seen, counts(name) / 1000.0, math.nan) for name in ("dt_ms", "lc_ms", "ut_ms")
    )
    loss, loss_rms = numbers("loss"), numbers("course.loss_rms")  # 0: not reported
    place = plan.view.pair_edge[pairs].astype(np.int64)
    psi, rent_micro = _rent(plan.controls.placement, parts, ~valid, dt_s + ut_s)
    return Feedback(
        view=plan.view,
        pairs=pairs,
        X=in_time,
        used=used,
        unpaid=~valid,
        censored=_column(rows, "censored", np.bool_),
        tau_s=np.where(tau_ms == _UNTIMED, waited_s, tau_ms / 1000.0),
        dt_s=dt_s,
        lc_s=lc_s,
        ut_s=ut_s,
        train_s=np.where(valid & (steps > 0), counts("train_ms") / 1000.0, math.nan),
        seconds_per_iteration=np.where(valid, numbers("seconds_per_iteration"), math.nan),
        arrivals=counts("arrivals"),
        num_samples=samples,
        steps=steps,
        iterations=counts("iterations"),
        loss=np.where(valid & (loss != 0), loss, math.nan),
        loss_rms=np.where(valid & (loss_rms > 0), loss_rms, math.nan),
        ending=endings_of(status, reason, in_time, ~valid),
        evidence=evidence(place, norm=details.norm, samples=samples, reason=reason, valid=valid),
        psi=psi,
        rent_micro=rent_micro,
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


def _rent(
    placement: Placement, parts: Sequence[EdgePart], unpaid: BoolArray, moved_s: FloatArray
) -> tuple[float | None, int]:
    """Return the cost psi that was measured at a rented edge, and the rent that is due.

    The rent is due where an agent's signed work came, also late or to an edge that failed: its use
    of the round was paid for. Without any the edge's word alone would be paid. It is not due
    either where the edge told of work that no agent signed.
    psi is the sum over the ordered agents of download and upload seconds, `moved_s` (one that
    showed none counts as the mean of the others) and the seconds of the aggregation; None where
    the edge showed no aggregate (docs/adr/0006-placed-rounds.md).
    """
    part = next((part for part in parts if part.index == placement.edge), None)
    report = part.report if part is not None else None
    if part is None or report is None or report.failed == BAD_CLAIM or unpaid[part.rows].all():
        return None, 0
    psi, shown = None, moved_s[part.rows][np.isfinite(moved_s[part.rows])]
    if not report.failed and len(shown):
        aggregate_s = float(report.timing_ms.get("aggregate", 0.0)) / 1000.0
        psi = float(shown.mean()) * len(part.rows) + min(max(aggregate_s, 0.0), MAX_AGGREGATE_S)
    return psi, placement.rent_micro


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
