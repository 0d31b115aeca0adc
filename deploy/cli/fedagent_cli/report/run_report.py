"""A whole run for the report: its summary, and the rows of its rounds, agents and evaluations."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

from fedagent_cli.figures import metric_line
from fedagent_cli.runs import open_run, recipe_of
from fedagent_coordinator.database.evaluations import ModelEvaluation
from fedagent_coordinator.database.rows import DeviceRow, EdgeRow, OutcomeRow, RoundRow
from fedagent_coordinator.reader import Reader
from fedagent_coordinator.summary import RunSummary, summarize
from fedagent_task.measures import Measure

from .indices import Columns, read_beliefs, read_indices

TARGETS = (0.75, 0.78, 0.82, 0.85)
"""Those of the GDA paper."""
SHARES = (0.8, 0.9, 0.95)
NOT_ENDED = "not ended"
"""The fact `state` of a run that may go on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportRound(RoundRow):
    """One settled round.

    Attributes:
        edges: How it ended at each edge, by id.
        latency_s: Download, computation and upload of the slowest device, and the rest of the
            round at its edge; empty where no update came.
        ended_s: From the run's first round to the end of this one; 0 if unknown.
    """

    edges: Mapping[str, EdgeRow] = field(default_factory=dict)
    latency_s: tuple[float, ...] = ()
    ended_s: float = 0.0

    def of(self, measure: Measure) -> float | None:
        """Return one figure; None if it was not measured."""
        return self.metrics.get(measure.key)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportAgent(DeviceRow):
    """One agent over the whole run.

    Attributes:
        kind: What it holds, where that is known.
        outcomes: How often each status came.
        reasons: The same, with the reason behind a space.
    """

    kind: str = ""
    outcomes: Mapping[str, int] = field(default_factory=dict)
    reasons: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport(RunSummary):
    """A whole run.

    Attributes:
        edges: Names by id, of edges that had a part in a round.
        facts: More lines for the first table of the page.
        evaluations: What clients think of the models, or who volunteered.
        indices, beliefs: By which the policy chose, where the database has them.
        inside: What the devices knew and never sent, by what it is; only where their owner
            is the one who reads.
    """

    rounds: tuple[ReportRound, ...]
    agents: tuple[ReportAgent, ...]
    ledger_balanced: bool
    facts: Mapping[str, str] = field(default_factory=dict)
    evaluations: tuple[ModelEvaluation, ...] = ()
    indices: Columns = field(default_factory=dict)
    beliefs: Columns = field(default_factory=dict)
    inside: Mapping[str, Columns] = field(default_factory=dict)

    @property
    def metric_line(self) -> tuple[str, str]:
        """A label, and one line on how good the model is."""
        return metric_line(self.measures, self.metrics)

    @property
    def complete(self) -> bool:
        """Whether all rounds of the recipe were done."""
        return 0 < (self.rounds_wanted or 0) <= len(self.rounds)

    @property
    def state(self) -> str:
        """How far the run is, in a word or two before "after N rounds"."""
        if self.complete or self.conclusion:
            return "complete"
        if self.facts.get("state") == NOT_ENDED:
            return "not over"
        return "ended" if self.rounds_wanted == 0 else "ended early"

    @property
    def progress(self) -> str:
        """How many rounds are done, and of how many if there is an end."""
        of = f" of {self.rounds_wanted}" if self.rounds_wanted else ""
        return f"{len(self.rounds)}{of}"

    @property
    def controlled(self) -> bool:
        """Whether iterations were controlled or edges rented."""
        return any(row.iterations or row.rented for row in self.rounds)

    @property
    def opinion(self) -> float | None:
        """Newest mean opinion."""
        means = [row.mean for row in self.evaluations if row.mean is not None]
        return means[-1] if means else None

    def reached(self) -> list[tuple[float, ReportRound | None]]:
        """Return accuracies or errors worth naming, and the first round that had each."""
        found: list[tuple[float, ReportRound | None]] = []
        for target in self._targets():
            by = self.measures[0]
            known = ((row, row.of(by)) for row in self.rounds)
            reach = (r for r, v in known if v is not None and by.rank(v) >= by.rank(target))
            found.append((target, next(reach, None)))
        return found

    def _targets(self) -> Sequence[float]:
        """Return the recipe's target; where clients evaluate, with it the papers' targets.

        Where those are out of reach, shares of the best take their place.
        """
        best, own = self.best, (self.target,) if self.target else ()
        if best is None or not self.evaluations:
            return () if best is None else own
        if not self.measures[0].rising:
            return sorted({*(float(f"{best / share:.3g}") for share in SHARES), *own}, reverse=True)
        if best >= TARGETS[0]:
            return sorted({*TARGETS, *own})
        return sorted({*(round(share * best, 3) for share in SHARES), *own})

    def edge_name(self, edge: str) -> str:
        """Return an edge's name, or its id shortened."""
        return self.edges.get(edge) or edge[:8]

    def record(self) -> dict[str, object]:
        """Return everything as plain JSON values."""
        rows = {one.name: getattr(self, one.name) for one in fields(RunReport)}
        return {
            **rows,
            **RunSummary.record(self),
            "rounds": [{**asdict(row), "seconds": row.seconds} for row in self.rounds],
            "agents": [{**asdict(agent), "name": agent.name} for agent in self.agents],
            "evaluations": [row.record() for row in self.evaluations],
            "measures": [one.key for one in self.measures],
            "device_score": self.metrics.get("device_score"),
        }


def read_run_report(data_dir: Path, run_id: str | None = None) -> RunReport:
    """Read a run from a coordinator's data directory, while it runs or later.

    Raises:
        NoRunError: There is no such run.
    """
    with open_run(data_dir, run_id) as (reader, run):
        summary, recipe, key = summarize(reader, run), recipe_of(run), run.run_id
        every = reader.rounds(key)
        verified = reader.ledger.verify()
        results, outcomes = reader.edge_results(key), reader.outcomes(key)
        evaluations = tuple(reader.evaluations.answered(key))
        rows = [row for row in every if row.state == "done"]
        done = [row.round for row in rows]
        values = {one.name: getattr(summary, one.name) for one in fields(RunSummary)}
        return RunReport(
            **{
                **values,
                "policy": summary.policy or "?",
                "rounds_wanted": (
                    len(rows) if summary.rounds_wanted is None else summary.rounds_wanted
                ),
                "edges": {row.edge_id: row.label for row in results},
            },
            rounds=tuple(_rounds(rows, results, outcomes)),
            agents=tuple(_agents(reader, key, outcomes)),
            ledger_balanced=verified.balanced,
            evaluations=evaluations,
            indices=read_indices(reader, key, done) if evaluations else {},
            beliefs=read_beliefs(reader, key, recipe, done) if evaluations and recipe else {},
            facts={
                "state": run.end_reason or ("ended" if run.ended_ms else NOT_ENDED),
                **({"began from the model": run.origin} if run.origin else {}),
                "rounds that were voided": str(sum(row.state == "void" for row in every)),
                "ledger entries": str(verified.entries),
                **({"ledger problems": "; ".join(verified.problems)} if verified.problems else {}),
            },
        )


def _rounds(
    rows: Sequence[RoundRow], results: Sequence[EdgeRow], outcomes: Sequence[OutcomeRow]
) -> list[ReportRound]:
    slowest: dict[int, OutcomeRow] = {}
    for outcome in outcomes:
        former = slowest.get(outcome.round)
        if not outcome.censored and (former is None or outcome.tau_s > former.tau_s):
            slowest[outcome.round] = outcome
    edges: dict[int, dict[str, EdgeRow]] = {}
    for result in results:
        edges.setdefault(result.round, {})[result.edge_id] = result
    found = []
    for row in rows:
        latency: tuple[float, ...] = ()
        if (one := slowest.get(row.round)) is not None:
            rest = row.timing_ms.get("train", 0.0) / 1000 - one.tau_s
            latency = (one.dt_s or 0.0, one.lc_s or 0.0, one.ut_s or 0.0, max(rest, 0.0))
        found.append(
            ReportRound(
                **{one.name: getattr(row, one.name) for one in fields(RoundRow)},
                edges=edges.get(row.round, {}),
                latency_s=latency,
                ended_s=((row.closed_ms or row.opened_ms) - rows[0].opened_ms) / 1000,
            )
        )
    return found


def _agents(reader: Reader, run_id: str, outcomes: Sequence[OutcomeRow]) -> list[ReportAgent]:
    statuses: dict[str, Counter[str]] = {}
    reasons: dict[str, Counter[str]] = {}
    for outcome in outcomes:
        statuses.setdefault(outcome.agent, Counter())[outcome.status] += 1
        ending = f"{outcome.status} {outcome.reason}".strip()
        reasons.setdefault(outcome.agent, Counter())[ending] += 1
    return [
        ReportAgent(
            **asdict(device),
            outcomes=dict(statuses.get(device.agent, {})),
            reasons=dict(reasons.get(device.agent, {})),
        )
        for device in reader.devices(run_id)
    ]
