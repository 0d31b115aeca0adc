"""What the round engine asks for: frozen records, performed in order.

Disk effects (`Reserve`, `Settle`, `BookOpinions`, `BookVolunteers`, `Standardize`, `StorePart`,
`FinishPart`, `CommitModel`, `Forget`, `End`) are done by the runtime before anything that
follows them; the others leave it.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from fedagent_coordinator.policies.base import Feedback, RoundView, Selection
from fedagent_protocol.messages import CoordinatorToEdge
from fedagent_task.moments import Moments

from .controls import PLAIN, Controls

Value = str | int | float | bool | None | list[str] | dict[str, float] | dict[str, dict[str, int]]
"""What an event may hold."""


@dataclass(frozen=True, slots=True)
class Send:
    """Say one message to one edge."""

    edge: str
    message: CoordinatorToEdge


@dataclass(frozen=True, slots=True)
class SendGlobal:
    """Offer the global model to an edge, with its first chunk."""

    edge: str
    digest: str
    round: int


@dataclass(frozen=True, slots=True)
class SendChunks:
    """Send these chunks of the global model to an edge."""

    edge: str
    digest: str
    indices: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CrashPoint:
    """A named crash point between two sends."""

    name: str


@dataclass(frozen=True, slots=True)
class Event:
    """Something worth a line on stdout."""

    name: str
    fields: Mapping[str, Value]


@dataclass(frozen=True, slots=True, eq=False)
class Reserve:
    """Commit the round's plan and its reservations; nothing is ordered before.

    Attributes:
        context_seq: int64[S], the context report that each chosen client was evaluated by.
        controls: Iterations, and the edge that is rented.
    """

    round: int
    view: RoundView
    selection: Selection
    context_seq: npt.NDArray[np.int64]
    controls: Controls = PLAIN


@dataclass(frozen=True, slots=True)
class EdgeResult:
    """How the round ended at one edge.

    Attributes:
        edge: Id of the edge.
        index: Its run-wide index.
        failed: Why it kept its model; empty when it has a new one.
        model: Its model after the round, if it has one.
        spent_micro: What is paid for updates that came to it.
    """

    edge: str
    index: int
    ordered: int
    in_time: int
    used: int
    spent_micro: int
    failed: str
    model: str
    weight: float


@dataclass(frozen=True, slots=True, eq=False)
class Details:
    """What the algorithms do not ask for and a person does; rows follow the feedback.

    Attributes:
        status: Words of `OutcomeStatus`.
        weight, norm, loss: float64[S]; NaN if unknown.
        reason: Why, in the edge's words.
        score: What all devices together say of the model that the round began with, on
            `score_n` samples of theirs; 0 without any.
        train_loss: Mean loss of their training, each by its samples; NaN if nobody told.
    """

    status: tuple[str, ...]
    weight: npt.NDArray[np.float64]
    norm: npt.NDArray[np.float64]
    loss: npt.NDArray[np.float64]
    reason: tuple[str, ...]
    score: float = 0.0
    score_n: int = 0
    train_loss: float = math.nan


@dataclass(frozen=True, slots=True, eq=False)
class Settle:
    """Commit how the round ended: outcomes, payments, feedback. Once per round.

    Attributes:
        reason: What became of orders whose update was not used; empty if all were.
    """

    round: int
    feedback: Feedback
    details: Details
    edges: tuple[EdgeResult, ...]
    timing_ms: Mapping[str, float] = field(default_factory=dict)
    reason: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Learn:
    """Let what decides learn from a settled round."""

    round: int
    feedback: Feedback
    controls: Controls = PLAIN


@dataclass(frozen=True, slots=True, eq=False)
class BookOpinions:
    """Commit what clients think of a model, once per round; rows in order of clients.

    Attributes:
        round: Of the model; 0 for the one that the run begins with.
        slot: Models evaluated so far in this run, with this one.
        digest: The model; empty if nobody can know any more which it was.
        metric: What the scores are; empty without rows.
        asked: Agents that were called; one that answered at two edges is one.
        client, edge: int64[P], run-wide indices; a client has one row at most.
        score: float64[P], in [0, 1].
        samples: int64[P], > 0.
        epsilon: float64[P], 0 where no noise was added.
        reasons: Agents without a row, by reason.
        seconds: From the call to its end.
    """

    round: int
    slot: int
    digest: str
    metric: str
    asked: int
    client: npt.NDArray[np.int64]
    edge: npt.NDArray[np.int64]
    score: npt.NDArray[np.float64]
    samples: npt.NDArray[np.int64]
    epsilon: npt.NDArray[np.float64]
    reasons: Mapping[str, int]
    seconds: float

    @property
    def mean(self) -> float | None:
        """The reward: every client's opinion counts the same; None without any."""
        return float(self.score.mean()) if len(self.score) else None


@dataclass(frozen=True, slots=True, eq=False)
class BookVolunteers:
    """Commit who volunteers to train after a model, once per round; as `BookOpinions`.

    Attributes:
        client, edge: int64[P], run-wide indices; a client has one row at most.
    """

    round: int
    slot: int
    digest: str
    asked: int
    client: npt.NDArray[np.int64]
    edge: npt.NDArray[np.int64]
    reasons: Mapping[str, int]
    seconds: float


@dataclass(frozen=True, slots=True)
class Standardize:
    """Commit what features are scaled by; answered by `RoundEngine.standardized`.

    Attributes:
        moments: Of the samples of `agents` agents.
        now: When it was known.
    """

    moments: Moments
    agents: int
    now: float


@dataclass(frozen=True, slots=True)
class StorePart:
    """Keep one chunk of an edge model that is being pulled."""

    digest: str
    size: int
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class FinishPart:
    """Check a pulled model against its digest; answered by `RoundEngine.part_checked`."""

    digest: str


@dataclass(frozen=True, slots=True)
class Merge:
    """Average these models; answered by `RoundEngine.merged`.

    Attributes:
        models: Digest and weight of each distinct edge model.
    """

    round: int
    models: tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True)
class CommitModel:
    """Make this model the run's global model."""

    round: int
    digest: str


@dataclass(frozen=True, slots=True)
class Forget:
    """Commit that what these edges learnt up to a round counts in no merge any more."""

    round: int
    edges: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Evaluate:
    """Evaluate the global model on the held-out set."""

    round: int
    digest: str


@dataclass(frozen=True, slots=True)
class End:
    """Commit the end of the run."""

    reason: str


Effect = (
    Send
    | SendGlobal
    | SendChunks
    | CrashPoint
    | Event
    | Reserve
    | Settle
    | Learn
    | BookOpinions
    | BookVolunteers
    | Standardize
    | StorePart
    | FinishPart
    | Merge
    | CommitModel
    | Forget
    | Evaluate
    | End
)

Booked = Reserve | Settle | Learn | BookOpinions | BookVolunteers | CommitModel | Forget
"""Steps of a round that are written, or learnt, with crash points around them."""
