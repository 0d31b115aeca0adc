"""How clients evaluated a run's models: rows for the command, the report and its plots."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

from fedagent_coordinator.reader import Reader
from fedagent_coordinator.reader_opinions import ModelEvaluation, OpinionRow

PEERS = "peers"


@dataclass(frozen=True, slots=True)
class EvaluationRow:
    """One model, and what was said of it.

    Attributes:
        round: Of the model; 0 for the one that the run began with.
        slot: Models evaluated so far, with this one.
        mode: ``report`` or ``peers``.
        metric: What the scores are; empty without scores.
        asked: Agents that were called; one that has answered at two edges is one agent.
        answered: Opinions that came, or volunteers.
        reasons: Agents without an answer, by reason.
        seconds: From the call to its end.
        mean, least, most: Of the opinions; None without any, and in mode ``peers``.
        epsilon: Largest of the opinions; 0 where none has noise.
        scores, samples, epsilons: By agent id.
        volunteers: Agent ids, in mode ``peers``.
    """

    round: int
    slot: int
    mode: str
    metric: str
    asked: int
    answered: int
    reasons: dict[str, int]
    seconds: float
    mean: float | None = None
    least: float | None = None
    most: float | None = None
    epsilon: float = 0.0
    scores: dict[str, float] = field(default_factory=dict)
    samples: dict[str, int] = field(default_factory=dict)
    epsilons: dict[str, float] = field(default_factory=dict)
    volunteers: tuple[str, ...] = ()

    @property
    def missing(self) -> str:
        """Why agents have no row, in one line."""
        return ", ".join(f"{count} {reason}" for reason, count in sorted(self.reasons.items()))

    def record(self) -> dict[str, object]:
        """Return plain JSON values."""
        return asdict(self)


def read_evaluations(reader: Reader, run_id: str) -> tuple[EvaluationRow, ...]:
    """Return every evaluated model of a run, oldest first."""
    opinions: dict[int, list[OpinionRow]] = {}
    for opinion in reader.opinions(run_id):
        opinions.setdefault(opinion.round, []).append(opinion)
    volunteers: dict[int, list[str]] = {}
    for volunteer in reader.volunteers(run_id):
        volunteers.setdefault(volunteer.round, []).append(volunteer.agent_id)
    return tuple(
        _row(found, opinions.get(found.round, []), volunteers.get(found.round, []))
        for found in reader.evaluations(run_id)
    )


def _row(
    found: ModelEvaluation, opinions: Sequence[OpinionRow], volunteers: list[str]
) -> EvaluationRow:
    scores = {row.agent_id: row.score for row in opinions}
    return EvaluationRow(
        round=found.round,
        slot=found.slot,
        mode=found.mode,
        metric=found.metric,
        asked=found.asked,
        answered=found.answered,
        reasons=dict(found.reasons),
        seconds=found.seconds,
        mean=found.mean,
        least=min(scores.values(), default=None),
        most=max(scores.values(), default=None),
        epsilon=max((row.epsilon for row in opinions), default=0.0),
        scores=scores,
        samples={row.agent_id: row.samples for row in opinions},
        epsilons={row.agent_id: row.epsilon for row in opinions if row.epsilon},
        volunteers=tuple(volunteers),
    )
