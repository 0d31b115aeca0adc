"""A whole run for the report: its picture, and the rows of its rounds, agents and evaluations."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from msgspec import structs

from fedagent_cli.read.runs import epsilon_text, metric_line, open_run, recipe_of
from fedagent_coordinator.books.evaluations import ModelEvaluation
from fedagent_coordinator.books.read import Reader
from fedagent_coordinator.books.rows import OutcomeRow, RoundRow
from fedagent_coordinator.picture.devices import DeviceCard
from fedagent_coordinator.picture.records import Field
from fedagent_coordinator.picture.summary import RunSummary, summarize
from fedagent_coordinator.picture.watcher import Watcher

SHARES = (0.8, 0.9, 0.95)
"""Of the best model: when each was reached is told where the recipe has no target."""
NOT_ENDED = "not ended"
"""The fact `state` of a run that may go on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    """A whole run.

    Attributes:
        picture: What the live page shows of it.
        rounds: Those that were settled.
        latency_s: By round, download, computation and upload of the slowest device, and the rest
            of the round at its edge.
        kinds: What agents hold, by their names, where that is known.
        facts: More lines for the first table of the page.
    """

    picture: Field
    summary: RunSummary
    rounds: tuple[RoundRow, ...]
    ledger_balanced: bool
    evaluations: tuple[ModelEvaluation, ...] = ()
    latency_s: Mapping[int, tuple[float, ...]] = field(default_factory=dict)
    kinds: Mapping[str, str] = field(default_factory=dict)
    facts: Mapping[str, str] = field(default_factory=dict)

    @property
    def metric_line(self) -> tuple[str, str]:
        """A label, and one line on how good the model is."""
        return metric_line(self.summary.measures, self.summary.metrics)

    @property
    def state(self) -> str:
        """How far the run is, in a word or two before "after N rounds"."""
        wanted = self.summary.rounds_wanted or 0
        if 0 < wanted <= len(self.rounds) or self.summary.conclusion:
            return "complete"
        if self.facts.get("state") == NOT_ENDED:
            return "not over"
        return "ended early" if wanted else "ended"

    @property
    def progress(self) -> str:
        """How many rounds are done, and of how many if there is an end."""
        of = f" of {self.summary.rounds_wanted}" if self.summary.rounds_wanted else ""
        return f"{len(self.rounds)}{of}"

    def by_kind(self) -> dict[str, list[DeviceCard]]:
        """Return the agents by what they hold."""
        found: dict[str, list[DeviceCard]] = {}
        for one in self.picture.devices:
            found.setdefault(self.kinds.get(one.name, ""), []).append(one)
        return found

    def mean_opinions(self) -> dict[str, float]:
        """Return each client's mean opinion over the run, by agent id."""
        scores: dict[str, list[float]] = {}
        for row in self.evaluations:
            for agent, score in row.scores.items():
                scores.setdefault(agent, []).append(score)
        return {agent: sum(own) / len(own) for agent, own in scores.items()}

    def reached(self) -> list[tuple[float, RoundRow | None]]:
        """Return accuracies or errors worth naming, and the first round that had each."""
        run = self.summary
        if run.best is None:
            return []
        by = run.measures[0]
        shares = (run.best * share if by.rising else run.best / share for share in SHARES)
        targets = [run.target] if run.target else [float(f"{value:.3g}") for value in shares]
        known = [(row, row.metrics[by.key]) for row in self.rounds if by.key in row.metrics]
        return [
            (target, next((row for row, v in known if by.rank(v) >= by.rank(target)), None))
            for target in targets
        ]

    def record(self) -> dict[str, object]:
        """Return everything as plain JSON values."""
        return {
            **self.summary.record(),
            "rounds": [{**asdict(row), "seconds": row.seconds} for row in self.rounds],
            "agents": [structs.asdict(one) for one in self.picture.devices],
            "evaluations": [row.record() for row in self.evaluations],
            "measures": [one.key for one in self.summary.measures],
            "ledger_balanced": self.ledger_balanced,
            "facts": dict(self.facts),
        }


def read_run_report(data_dir: Path | None, run_id: str | None = None) -> RunReport:
    """Read a run from a coordinator's data directory (None: this user's), now or later.

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
        folder = reader.folder
    rows = [row for row in every if row.state == "done"]
    wanted, picture = summary.rounds_wanted, _picture(folder, key)
    spent = epsilon_text(recipe, max((one.released for one in picture.devices), default=0))
    return RunReport(
        picture=picture,
        summary=structs.replace(
            summary,
            policy=summary.policy or "?",
            rounds_wanted=len(rows) if wanted is None else wanted,
        ),
        rounds=tuple(rows),
        ledger_balanced=verified.balanced,
        evaluations=evaluations,
        latency_s=_latency(rows, outcomes),
        facts={
            "state": run.end_reason or ("ended" if run.ended_ms else NOT_ENDED),
            **({"began from the model": run.origin} if run.origin else {}),
            "rounds that were voided": str(sum(row.state == "void" for row in every)),
            "ledger": f"{verified.entries} entries, "
            f"{'balanced' if verified.balanced else 'NOT BALANCED'}, hash chain checked",
            **({"epsilon of a device, at most": spent} if spent else {}),
            **({"ledger problems": "; ".join(verified.problems)} if verified.problems else {}),
        },
    )


def _picture(folder: Path, run_id: str) -> Field:
    watcher = Watcher(folder, run=run_id, whole=True)
    try:
        found = watcher.look()
    finally:
        watcher.close()
    devices = tuple(structs.replace(one, address="") for one in found.devices)
    return structs.replace(found, devices=devices, running=None, pending=())


def _latency(
    rows: Sequence[RoundRow], outcomes: Sequence[OutcomeRow]
) -> dict[int, tuple[float, ...]]:
    timed: dict[int, list[OutcomeRow]] = defaultdict(list)
    for outcome in outcomes:
        if not outcome.censored:
            timed[outcome.round].append(outcome)
    found: dict[int, tuple[float, ...]] = {}
    for row in rows:
        if (one := max(timed[row.round], key=lambda o: o.tau_s, default=None)) is not None:
            rest = row.timing_ms.get("train", 0.0) / 1000 - one.tau_s
            found[row.round] = (one.dt_s or 0.0, one.lc_s or 0.0, one.ut_s or 0.0, max(rest, 0.0))
    return found
