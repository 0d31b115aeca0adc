"""A whole run for the report: its summary, and the rows of its rounds, agents and evaluations."""

import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedagent_cli.read.agents import judged_devices
from fedagent_cli.read.runs import epsilon_text, metric_line, open_run, recipe_of
from fedagent_coordinator.books.evaluations import ModelEvaluation
from fedagent_coordinator.books.reader import Reader
from fedagent_coordinator.books.rows import DeviceRow, OutcomeRow, RoundRow
from fedagent_coordinator.picture.alarms import alarms
from fedagent_coordinator.picture.summary import RunSummary, summarize
from fedagent_task.scoring.measures import Measure

from .indices import Columns, read_beliefs, read_indices

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

TARGETS = (0.75, 0.78, 0.82, 0.85)
"""Those of the GDA paper."""
SHARES = (0.8, 0.9, 0.95)
NOT_ENDED = "not ended"
"""The fact `state` of a run that may go on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportRound(RoundRow):
    """One settled round.

    Attributes:
        latency_s: Download, computation and upload of the slowest device, and the rest of the
            round at its edge; empty where no update came.
    """

    latency_s: tuple[float, ...] = ()
    ended_s: float = 0.0  # from the run's first round to the end of this one; 0 if unknown

    def of(self, measure: Measure) -> float | None:
        """Return one figure; None if it was not measured."""
        return self.metrics.get(measure.key)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportAgent(DeviceRow):
    """One agent over the whole run."""

    kind: str = ""  # what it holds, where that is known
    outcomes: Mapping[str, int] = field(default_factory=dict)  # how often each status came


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport(RunSummary):
    """A whole run.

    Attributes:
        edges: Names by id, of edges that had a part in a round.
        facts: More lines for the first table of the page.
        indices, beliefs: By which the policy chose, where the database has them.
        inside: What the devices knew and never sent, by what it is; only where their owner
            is the one who reads.
    """

    rounds: tuple[ReportRound, ...]
    agents: tuple[ReportAgent, ...]
    ledger_balanced: bool
    undelivered: tuple[str, ...] = ()  # who never delivered in time, and what to do
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
    def opinion(self) -> float | None:
        """Newest mean opinion."""
        means = [row.mean for row in self.evaluations if row.mean is not None]
        return means[-1] if means else None

    def mean_opinions(self) -> dict[str, float]:
        """Return each client's mean opinion over the run, by agent id."""
        scores: dict[str, list[float]] = {}
        for row in self.evaluations:
            for agent, score in row.scores.items():
                scores.setdefault(agent, []).append(score)
        return {agent: sum(own) / len(own) for agent, own in scores.items()}

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

    def record(self) -> dict[str, object]:
        """Return everything as plain JSON values."""
        return {
            **_values(RunReport, self),
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
    with open_run(Reader, data_dir, run_id) as (reader, run):
        summary, recipe, key = summarize(reader, run), recipe_of(run), run.run_id
        verified = reader.ledger.verify()
        with reader.whole(key) as whole:
            every = whole.rounds(key)
            outcomes = whole.outcomes(key)
            evaluations = tuple(whole.evaluations.answered(key))
        devices = judged_devices(reader, key)
        spent = epsilon_text(recipe, max((one.released for one in devices), default=0))
        rows = [row for row in every if row.state == "done"]
        done = [row.round for row in rows]
        wanted = summary.rounds_wanted
        return RunReport(
            **{
                **_values(RunSummary, summary),
                "policy": summary.policy or "?",
                "rounds_wanted": len(rows) if wanted is None else wanted,
            },
            rounds=tuple(_rounds(rows, outcomes)),
            agents=tuple(_agents(devices, outcomes)),
            ledger_balanced=verified.balanced,
            undelivered=tuple(
                f"{one.text}. What to do: {one.hint}."
                for one in alarms(reader, None, time.time(), run_id=key)
                if one.kind == "never_delivering"
            ),
            evaluations=evaluations,
            indices=read_indices(reader, key, done) if evaluations else {},
            beliefs=read_beliefs(reader, key, recipe) if evaluations and recipe else {},
            facts={
                "state": run.end_reason or ("ended" if run.ended_ms else NOT_ENDED),
                **({"began from the model": run.origin} if run.origin else {}),
                "rounds that were voided": str(sum(row.state == "void" for row in every)),
                "ledger entries": str(verified.entries),
                **({"epsilon of a device, at most": spent} if spent else {}),
                **({"ledger problems": "; ".join(verified.problems)} if verified.problems else {}),
            },
        )


def _rounds(rows: Sequence[RoundRow], outcomes: Sequence[OutcomeRow]) -> Iterator[ReportRound]:
    timed: dict[int, list[OutcomeRow]] = defaultdict(list)
    for outcome in outcomes:
        if not outcome.censored:
            timed[outcome.round].append(outcome)
    for row in rows:
        latency: tuple[float, ...] = ()
        if (one := max(timed[row.round], key=lambda o: o.tau_s, default=None)) is not None:
            rest = row.timing_ms.get("train", 0.0) / 1000 - one.tau_s
            latency = (one.dt_s or 0.0, one.lc_s or 0.0, one.ut_s or 0.0, max(rest, 0.0))
        yield ReportRound(
            **_values(RoundRow, row),
            latency_s=latency,
            ended_s=((row.closed_ms or row.opened_ms) - rows[0].opened_ms) / 1000,
        )


def _agents(devices: Sequence[DeviceRow], outcomes: Sequence[OutcomeRow]) -> Iterator[ReportAgent]:
    statuses: dict[str, Counter[str]] = defaultdict(Counter)
    for outcome in outcomes:
        statuses[outcome.agent][outcome.status] += 1
    for device in devices:
        yield ReportAgent(**asdict(device), outcomes=dict(statuses[device.agent]))


def _values(kind: type["DataclassInstance"], row: object) -> dict[str, Any]:
    """Return the fields of `kind` that a row has, as they are."""
    return {one.name: getattr(row, one.name) for one in fields(kind)}
