"""What a report tells: plain rows, as read from a coordinator's data directory."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

from fedagent_cli.figures import metric_line
from fedagent_task.measures import ACCURACY, LOSS, Measure

from .evaluations import EvaluationRow

Columns = dict[str, list[tuple[int, float]]]
"""By agent id: (round, value)."""


TARGETS = (0.75, 0.78, 0.82, 0.85)
"""Those of the GDA paper."""
SHARES = (0.8, 0.9, 0.95)
NOT_ENDED = "not ended"
"""The fact `state` of a run that may go on."""


@dataclass(frozen=True, slots=True)
class EdgeShare:
    """One edge's part of one round."""

    ordered: int
    in_time: int
    used: int
    spent_micro: int
    failed: str = ""


@dataclass(frozen=True, slots=True)
class RoundRow:
    """One settled round.

    Attributes:
        seconds: From opening the round to its settlement.
        timing_ms: Duration of each step.
        edges: Shares by edge id.
        accuracy, loss, rmse, mae: Of the global model on the held-out set, where it was evaluated.
        device_score: Of the model that the round began with, on the devices' new samples.
        train_loss, train_error: Of the round's training, as devices report it.
        spent_micro: What devices were paid.
        iterations: Local iterations ordered; 0 left them to the learner.
        rented: Id of the edge that was rented; empty for none.
        rent_micro: What it was paid.
        notes: What iteration control went by, named.
        latency_s: Download, computation and upload of the slowest device, and the rest of the
            round at its edge; empty where no update came.
        ended_s: From the run's first round to the end of this one; 0 if unknown.
    """

    round: int
    ordered: int
    in_time: int
    used: int
    spent_micro: int
    seconds: float
    accuracy: float | None = None
    loss: float | None = None
    timing_ms: dict[str, float] = field(default_factory=dict)
    edges: dict[str, EdgeShare] = field(default_factory=dict)
    device_score: float | None = None
    iterations: int = 0
    rented: str = ""
    rent_micro: int = 0
    notes: dict[str, float] = field(default_factory=dict)
    latency_s: tuple[float, ...] = ()
    ended_s: float = 0.0
    rmse: float | None = None
    mae: float | None = None
    train_loss: float | None = None
    train_error: float | None = None

    def of(self, measure: Measure) -> float | None:
        """Return one figure; None if it was not measured."""
        value = getattr(self, measure.key)
        return None if value is None else float(value)


@dataclass(frozen=True, slots=True)
class AgentRow:
    """One agent over the whole run.

    Attributes:
        kind: What it holds, where that is known.
        reasons: How often each status came, with its reason behind a space.
    """

    agent: str
    name: str
    ordered: int
    in_time: int
    used: int
    paid_micro: int
    outcomes: dict[str, int]
    kind: str = ""
    reasons: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RunReport:
    """A whole run.

    Attributes:
        rounds_wanted: How many there are to be; 0 for no end.
        edges: Names by edge id.
        conclusion: Why it stopped before its last round, in one line; empty if it did not.
        facts: More lines for the first table of the page.
        target: What the recipe wants its models to come to; 0 for none.
        measures: What they are evaluated by, the first before all.
        evaluated: What clients think of the models, or who volunteered.
        indices, beliefs: By which the policy chose, where the books have them.
        inside: What the devices knew and told nobody, by what it is; only where their owner
            is the one who reads.
    """

    run: str
    recipe: str
    policy: str
    seed: int
    rounds_wanted: int
    rounds: tuple[RoundRow, ...]
    agents: tuple[AgentRow, ...]
    edges: dict[str, str]
    ledger_balanced: bool
    spent_micro: int
    budget_per_edge_micro: int | None = None
    budget_total_micro: int | None = None
    conclusion: str = ""
    facts: dict[str, str] = field(default_factory=dict)
    target: float = 0.0
    evaluated: tuple[EvaluationRow, ...] = ()
    indices: Columns = field(default_factory=dict)
    beliefs: Columns = field(default_factory=dict)
    inside: dict[str, Columns] = field(default_factory=dict)
    measures: tuple[Measure, ...] = (ACCURACY, LOSS)

    @property
    def metrics(self) -> dict[str, float]:
        """Newest value of each measure that has one."""
        return {one.key: values[-1] for one in self.measures if (values := self._values(one))}

    @property
    def metric_line(self) -> tuple[str, str]:
        """A label, and one line on how good the model is."""
        return metric_line(self.measures, self.metrics)

    @property
    def accuracy(self) -> float | None:
        """Accuracy of the last model that was evaluated."""
        return self.metrics.get("accuracy")

    @property
    def best(self) -> float | None:
        """Best value of what the models are evaluated by."""
        by = self.measures[0] if self.measures else None
        return None if by is None else max(self._values(by), key=by.rank, default=None)

    def _values(self, measure: Measure) -> list[float]:
        return [value for row in self.rounds if (value := row.of(measure)) is not None]

    @property
    def complete(self) -> bool:
        """Whether all rounds of the recipe were done."""
        return 0 < self.rounds_wanted <= len(self.rounds)

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
        means = [row.mean for row in self.evaluated if row.mean is not None]
        return means[-1] if means else None

    def reached(self) -> list[tuple[float, RoundRow | None]]:
        """Return accuracies or errors worth naming, and the first round that had each."""
        found: list[tuple[float, RoundRow | None]] = []
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
        if best is None or not self.evaluated:
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
        return {
            **asdict(self),
            "accuracy": self.accuracy,
            "best_accuracy": self.best if ACCURACY in self.measures[:1] else None,
            "device_score": self.metrics.get("device_score"),
            "metrics": self.metrics,
            "primary_metric": self.measures[0].key if self.measures else None,
            "best": self.best,
        }
