"""A whole run for the report: its picture, and the rows of its rounds, agents and evaluations."""

from collections.abc import Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path

from msgspec import structs

from fedagent_cli.read.runs import epsilon_text, metric_line, open_run, recipe_of
from fedagent_coordinator.books.evaluations import ModelEvaluation
from fedagent_coordinator.books.read import Reader
from fedagent_coordinator.books.rows import RoundRow
from fedagent_coordinator.picture.records import Field
from fedagent_coordinator.picture.summary import RunSummary, summarize
from fedagent_coordinator.picture.watcher import Watcher

NOT_ENDED = "not ended"
"""The fact `state` of a run that may go on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    """A whole run.

    Attributes:
        picture: What the live page shows of it.
        rounds: Those that were settled.
        facts: More lines for the first table of the page.
    """

    picture: Field
    summary: RunSummary
    rounds: tuple[RoundRow, ...]
    ledger_balanced: bool
    evaluations: tuple[ModelEvaluation, ...] = ()
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
        MissingError: There is no such run.
    """
    with open_run(Reader, data_dir, run_id) as (reader, run):
        verified = reader.ledger.verify()
        with reader.whole(run.run_id) as whole:
            every = whole.rounds(run.run_id)
            evaluations = tuple(whole.evaluations.answered(run.run_id))
        summary = summarize(reader, run)
        with closing(Watcher(reader.folder, run=run.run_id, whole=True)) as watcher:
            seen = watcher.look()
    rows = [row for row in every if row.state == "done"]
    wanted = len(rows) if summary.rounds_wanted is None else summary.rounds_wanted
    spent = epsilon_text(recipe_of(run), max((one.released for one in seen.devices), default=0))
    balanced = "balanced" if verified.balanced else "NOT BALANCED"
    facts = {
        "state": run.end_reason or ("ended" if run.ended_ms else NOT_ENDED),
        "began from the model": run.origin,
        "rounds that were voided": str(sum(row.state == "void" for row in every)),
        "ledger": f"{verified.entries} entries, {balanced}, hash chain checked",
        "epsilon of a device, at most": spent,
        "ledger problems": "; ".join(verified.problems),
    }
    return RunReport(
        picture=structs.replace(
            seen,
            devices=tuple(structs.replace(one, address="") for one in seen.devices),
            running=None,
            pending=(),
        ),
        summary=structs.replace(summary, policy=summary.policy or "?", rounds_wanted=wanted),
        rounds=tuple(rows),
        ledger_balanced=verified.balanced,
        evaluations=evaluations,
        facts={name: text for name, text in facts.items() if text},
    )
