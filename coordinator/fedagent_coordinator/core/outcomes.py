"""From the reports of the edges to what is learnt, paid and remembered."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from fedagent_coordinator.policies.base import Feedback, RoundView
from fedagent_protocol.errors import safe_text
from fedagent_protocol.messages import Outcome, OutcomeStatus, RoundReport

from .controls import Controls
from .effects import Details, EdgeResult, Event, Settle

SILENT = "silent"
"""Why a round failed at an edge that did not report in time."""
NOBODY = "nobody was chosen"


@dataclass(slots=True)
class EdgePart:
    """One edge's part in a round that is under way.

    Attributes:
        rows: Positions in the selection of the agents ordered here.
        agents: Their ids, in the same order.
        resend_at: When the order is said again; None once the edge was heard with it.
        report: What the edge said at the end.
    """

    edge: str
    index: int
    rows: list[int]
    agents: list[str]
    resend_at: float | None
    patience_s: float = 1.0
    report: RoundReport | None = None
    reported_at: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class Settled:
    """A round's end, as the books and the policy need it."""

    feedback: Feedback
    details: Details
    edges: tuple[EdgeResult, ...]
    odd: Counter[str]
    reason: str

    @property
    def spent_micro(self) -> int:
        """What the round cost: prices of updates, and the rent."""
        return sum(edge.spent_micro for edge in self.edges) + self.feedback.rent_micro

    @property
    def declined(self) -> int:
        """How many clients would not train."""
        return self.details.status.count(OutcomeStatus.DECLINED.value)

    def booked(self, round_: int, timing_ms: Mapping[str, float]) -> Settle:
        """Return what the books keep of it."""
        return Settle(round_, self.feedback, self.details, self.edges, timing_ms, self.reason)


@dataclass(slots=True)
class _Rows:
    """The columns of a feedback while they are filled; NaN, zero or missed at first."""

    size: int
    waited_s: float
    flags: dict[str, npt.NDArray[np.bool_]] = field(default_factory=dict)
    numbers: dict[str, npt.NDArray[np.float64]] = field(default_factory=dict)
    counts: dict[str, npt.NDArray[np.int64]] = field(default_factory=dict)
    status: list[str] = field(default_factory=list)
    reason: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Start with nobody having answered."""
        n = self.size
        for name in ("X", "used"):
            self.flags[name] = np.zeros(n, dtype=np.bool_)
        for name in ("censored", "void"):
            self.flags[name] = np.ones(n, dtype=np.bool_)
        for name in ("dt_s", "lc_s", "ut_s", "train_s", "seconds_per_iteration", "norm", "loss"):
            self.numbers[name] = np.full(n, np.nan)
        self.numbers["weight"] = np.zeros(n)
        self.numbers["score"] = np.zeros(n)
        self.numbers["tau_s"] = np.full(n, self.waited_s)
        for name in ("arrivals", "num_samples", "score_n", "steps", "iterations"):
            self.counts[name] = np.zeros(n, dtype=np.int64)
        self.status = [OutcomeStatus.MISSED.value] * n
        self.reason = [SILENT] * n

    def put(self, row: int, outcome: Outcome, *, failed: bool) -> None:
        """Take in what an edge said of one agent; only a valid update is X, used or paid.

        What is in the sum of an edge that failed is part of no aggregate.
        """
        valid = outcome.valid
        used = valid and outcome.used and not failed
        self.flags["X"][row] = valid and outcome.in_time
        self.flags["used"][row] = used
        self.flags["void"][row] = not valid
        self.flags["censored"][row] = outcome.censored
        self.numbers["tau_s"][row] = outcome.tau_ms / 1000.0
        self.numbers["weight"][row] = outcome.weight if used else 0.0
        if valid:
            for name, ms in (("dt", outcome.dt_ms), ("lc", outcome.lc_ms), ("ut", outcome.ut_ms)):
                self.numbers[f"{name}_s"][row] = ms / 1000.0
            if outcome.steps:
                self.numbers["train_s"][row] = outcome.train_ms / 1000.0
            self.numbers["seconds_per_iteration"][row] = outcome.seconds_per_iteration
            self.numbers["norm"][row] = outcome.norm
            self.numbers["loss"][row] = outcome.loss or math.nan  # 0 is what is not told
            self.numbers["score"][row] = outcome.score
            self.counts["score_n"][row] = outcome.score_n
        self.counts["arrivals"][row] = outcome.arrivals
        self.counts["num_samples"][row] = outcome.num_samples
        self.counts["steps"][row] = outcome.steps
        self.counts["iterations"][row] = outcome.iterations
        self.status[row] = outcome.status.value
        # In a device's words, which the books keep and `devices` prints.
        self.reason[row] = safe_text(outcome.reason, limit=500)


def settle_outcomes(
    view: RoundView,
    pairs: npt.NDArray[np.int64],
    parts: Sequence[EdgePart],
    *,
    waited_s: float,
) -> Settled:
    """Return how each ordered pair ended.

    A silent edge failed: its agents missed the round and nothing is paid, even
    if some of them had trained, because nobody can say so (ALGORITHMS section 1).
    An outcome of an agent that was not ordered here, or a second one of the same
    agent, counts as odd and changes nothing.
    """
    rows = _Rows(len(pairs), waited_s)
    odd: Counter[str] = Counter()
    for part in parts:
        if part.report is not None:
            _put_report(rows, part, part.report, odd)
    feedback = Feedback(
        view=view,
        pairs=pairs,
        X=rows.flags["X"],
        used=rows.flags["used"],
        censored=rows.flags["censored"],
        void=rows.flags["void"],
        tau_s=rows.numbers["tau_s"],
        dt_s=rows.numbers["dt_s"],
        lc_s=rows.numbers["lc_s"],
        ut_s=rows.numbers["ut_s"],
        seconds_per_iteration=rows.numbers["seconds_per_iteration"],
        arrivals=rows.counts["arrivals"],
        num_samples=rows.counts["num_samples"],
        steps=rows.counts["steps"],
        iterations=rows.counts["iterations"],
        train_s=rows.numbers["train_s"],
    )
    details = Details(
        status=tuple(rows.status),
        reason=tuple(rows.reason),
        weight=rows.numbers["weight"],
        norm=rows.numbers["norm"],
        loss=rows.numbers["loss"],
        score=_mean_score(rows),
        score_n=int(rows.counts["score_n"].sum()),
        train_loss=_mean_loss(rows),
    )
    edges = tuple(_edge_result(view, feedback, part) for part in parts)
    return Settled(feedback, details, edges, odd, _shortfall(feedback, details))


def _mean_score(rows: _Rows) -> float:
    """Return what the devices say of their model, each by its samples; 0 without any."""
    counts = rows.counts["score_n"].astype(np.float64)
    total = float(counts.sum())
    return float(rows.numbers["score"] @ counts) / total if total else 0.0


def _mean_loss(rows: _Rows) -> float:
    """Return the loss of all training, each device's by its samples; NaN if nobody told."""
    counts = rows.counts["num_samples"].astype(np.float64)
    told = np.isfinite(rows.numbers["loss"]) & (counts > 0)
    if not told.any():
        return math.nan
    with np.errstate(over="ignore"):
        return float(np.average(rows.numbers["loss"][told], weights=counts[told]))


def _shortfall(feedback: Feedback, details: Details) -> str:
    """Return how the orders ended whose update was not used, the most frequent first."""
    if not len(feedback.pairs):
        return NOBODY
    missing = np.flatnonzero(~feedback.used).tolist()
    groups: dict[str, Counter[str]] = {}
    for row in missing:
        groups.setdefault(details.status[row], Counter())[details.reason[row]] += 1
    words = []
    for status, reasons in sorted(groups.items(), key=lambda item: -item[1].total()):
        reason = safe_text(reasons.most_common(1)[0][0], limit=120)
        words.append(f"{reasons.total()} {status}" + (f" ({reason})" if reason else ""))
    return ", ".join(words)


def _put_report(rows: _Rows, part: EdgePart, report: RoundReport, odd: Counter[str]) -> None:
    waiting: Mapping[str, int] = dict(zip(part.agents, part.rows, strict=True))
    seen: set[str] = set()
    for outcome in report.outcomes:
        row = waiting.get(outcome.agent)
        if row is None or outcome.agent in seen:
            odd["outcome_unknown" if row is None else "outcome_twice"] += 1
            continue
        seen.add(outcome.agent)
        rows.put(row, outcome, failed=bool(report.failed))
    for agent, row in waiting.items():
        if agent not in seen:
            odd["outcome_missing"] += 1
            rows.reason[row] = "the edge said nothing of it"


def _edge_result(view: RoundView, feedback: Feedback, part: EdgePart) -> EdgeResult:
    here = np.asarray(part.rows, dtype=np.int64)
    paid = here[~feedback.void[here]]
    price = view.client_price[view.pair_client[feedback.pairs[paid]]]
    report = part.report
    weight = report.weight if report is not None and math.isfinite(report.weight) else 0.0
    return EdgeResult(
        edge=part.edge,
        index=part.index,
        ordered=len(here),
        in_time=int(feedback.X[here].sum()),
        used=int(feedback.used[here].sum()),
        spent_micro=int(price.sum()),
        failed=SILENT if report is None else report.failed,
        model="" if report is None else report.model,
        weight=0.0 if report is None or report.failed else max(weight, 0.0),
    )


def round_event(
    round_: int,
    settled: Settled,
    controls: Controls,
    total_micro: int,
    timing_ms: dict[str, float],
) -> Event:
    """Return what is told of a round; it shares `timing_ms`, which is still filled in."""
    edges, placed = settled.edges, controls.placement.edge
    loss = settled.details.train_loss
    return Event(
        "round",
        {
            "round": round_,
            "ordered": sum(edge.ordered for edge in edges),
            "in_time": sum(edge.in_time for edge in edges),
            "used": sum(edge.used for edge in edges),
            "reason": settled.reason,
            "device_score": settled.details.score if settled.details.score_n else None,
            "train_loss": loss if math.isfinite(loss) else None,
            "failed_edges": [edge.edge for edge in edges if edge.failed],
            "spent_micro": settled.spent_micro,
            "total_spent_micro": total_micro,
            "iterations": controls.iterations,
            "rented": next((edge.edge for edge in edges if edge.index == placed), ""),
            "rent_micro": settled.feedback.rent_micro,
            "edges": {
                edge.edge: {
                    "ordered": edge.ordered,
                    "in_time": edge.in_time,
                    "used": edge.used,
                    "spent_micro": edge.spent_micro,
                }
                for edge in edges
            },
            "timing_ms": timing_ms,
        },
    )
