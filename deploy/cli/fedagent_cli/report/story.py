"""What a report tells: plain rows, as read from a coordinator's data directory."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

from .judged import JudgedRow

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
        accuracy: Of the global model on the held-out set, where it was evaluated.
        device_score: Of the model that the round began with, on the devices' new samples.
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


@dataclass(frozen=True, slots=True)
class AgentRow:
    """One agent over the whole run; `kind` says what it holds, where that is known."""

    agent: str
    name: str
    ordered: int
    in_time: int
    used: int
    paid_micro: int
    outcomes: dict[str, int]
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Story:
    """A whole run.

    Attributes:
        rounds_wanted: How many there are to be; 0 for no end.
        edges: Names by edge id.
        conclusion: Why it stopped before its last round, in one line; empty if it did not.
        facts: More lines for the first table of the page.
        target: Accuracy that the recipe wants to see named; 0 for none.
        judged: What clients think of the models, or who volunteered.
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
    judged: tuple[JudgedRow, ...] = ()
    indices: Columns = field(default_factory=dict)
    beliefs: Columns = field(default_factory=dict)
    inside: dict[str, Columns] = field(default_factory=dict)

    @property
    def accuracy(self) -> float | None:
        """Accuracy of the last model that was evaluated."""
        measured = [row.accuracy for row in self.rounds if row.accuracy is not None]
        return measured[-1] if measured else None

    @property
    def best_accuracy(self) -> float | None:
        """Best accuracy of the run."""
        return max((r.accuracy for r in self.rounds if r.accuracy is not None), default=None)

    @property
    def device_score(self) -> float | None:
        """Newest score by the devices."""
        scored = [row.device_score for row in self.rounds if row.device_score is not None]
        return scored[-1] if scored else None

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
        means = [row.mean for row in self.judged if row.mean is not None]
        return means[-1] if means else None

    def reached(self) -> list[tuple[float, RoundRow | None]]:
        """Return accuracies worth naming, and the first round that had each."""
        found: list[tuple[float, RoundRow | None]] = []
        for target in self._targets():
            reach = (r for r in self.rounds if r.accuracy is not None and r.accuracy >= target)
            found.append((target, next(reach, None)))
        return found

    def _targets(self) -> Sequence[float]:
        """Return the papers' targets, or shares of the best where that is below them."""
        best = self.best_accuracy
        if best is None:
            return ()
        own = (self.target,) if self.target else ()
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
            "best_accuracy": self.best_accuracy,
            "device_score": self.device_score,
        }
