"""What the engine asks of its disk, and what comes back; see `fedagent_node.effects`."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from fedagent_coordinator.placement.base import Placement, PlacementView
from fedagent_coordinator.policies.base import Feedback, RoundView, Selection
from fedagent_node.effects import Input, RunJob, Write
from fedagent_protocol.messages import EdgeStatus, OpinionMode, OutcomeStatus
from fedagent_task.aggregation import MergeFacts
from fedagent_task.moments import Moments

UNPLACED = Placement()
"""The coordinator averages, for no rent."""


@dataclass(frozen=True, slots=True, eq=False)
class Controls:
    """What is decided of a round besides who trains."""

    iterations: int = 0  # local iterations ordered, their mean; 0 leaves them to the learner
    horizon: float = 1.0  # how many rounds the run may have, as far as the budget goes
    notes: Mapping[str, float] = field(default_factory=dict)  # what iteration control went by
    view: PlacementView | None = None  # what the placement saw; None in a run that is not placed
    placement: Placement = UNPLACED
    each: npt.NDArray[np.int64] | None = None  # int64[S], of each order; None: all the same

    def of_each(self, orders: int) -> npt.NDArray[np.int64]:
        """Return the iterations of each of so many orders, int64[S]."""
        if self.each is not None:
            return self.each
        return np.full(orders, self.iterations, dtype=np.int64)

    @property
    def plain(self) -> bool:
        """Whether there is nothing to keep."""
        return not self.iterations and not self.notes and self.view is None


PLAIN = Controls()
"""A round that is not placed, with the learner's own iterations."""


class Reserve(Write, frozen=True, eq=False):
    """Commit the round's plan and its reservations; nothing is ordered before."""

    round: int
    view: RoundView
    selection: Selection
    context_seq: npt.NDArray[np.int64]  # int64[S], the report that each client was chosen by
    controls: Controls = PLAIN
    timing_ms: dict[str, float] = msgspec.field(default_factory=dict)

    @property
    def clients(self) -> npt.NDArray[np.int32]:
        """int32[S], the chosen clients."""
        return self.view.pair_client[self.selection.pairs]


@dataclass(frozen=True, slots=True)
class EdgeResult:
    """How the round ended at one edge; it kept its model if it `failed`, and why."""

    edge: str
    index: int
    ordered: int
    in_time: int
    used: int
    spent_micro: int
    failed: str
    model: str
    weight: float
    local_steps: float = 0.0
    norm: float = 0.0  # the median of the round's updates, also of other edges; 0 for not known


@dataclass(frozen=True, slots=True, eq=False)
class Details:
    """What policies do not ask for and people do; rows follow the feedback, NaN is unknown."""

    status: tuple[str, ...]
    weight: npt.NDArray[np.float64]
    norm: npt.NDArray[np.float64]
    reason: tuple[str, ...]
    score: float = 0.0  # mean score that devices gave the model which the round began with
    score_n: int = 0  # by so many samples
    train_loss: float = math.nan  # mean loss of their training, by samples


class Proof(msgspec.Struct, frozen=True):
    """What an agent signed of its work, with its key (`fedagent_protocol.signed`)."""

    claim: bytes
    public: bytes
    signature: bytes


class Settle(Write, frozen=True, eq=False):
    """Commit how the round ended, once; `reason` is of orders whose update was not used.

    `proofs` are of what is paid, by client.
    """

    round: int
    feedback: Feedback
    details: Details
    edges: tuple[EdgeResult, ...]
    timing_ms: dict[str, float] = msgspec.field(default_factory=dict)
    reason: str = ""
    proofs: Mapping[int, Proof] = msgspec.field(default_factory=dict)

    @property
    def spent_micro(self) -> int:
        """What the round cost: prices of updates, and the rent."""
        return sum(edge.spent_micro for edge in self.edges) + self.feedback.rent_micro

    @property
    def declined(self) -> int:
        """How many clients declined to train."""
        return self.details.status.count(OutcomeStatus.DECLINED.value)


class Learn(Write, frozen=True, eq=False):
    """Let the policies learn from a settled round."""

    round: int
    feedback: Feedback
    controls: Controls = PLAIN


class BookEvaluation(Write, frozen=True, eq=False, kw_only=True):
    """Commit what clients said of a model, once per round; rows in order of clients.

    They gave opinions, or by `mode` volunteered to train it, and have no scores then.
    """

    mode: OpinionMode = OpinionMode.REPORT
    round: int  # of the model; 0 for the one that the run begins with
    slot: int  # models evaluated so far in this run, with this one
    digest: str  # the model; empty if it is not known any more
    asked: int  # agents that were asked; one that answered at two edges is one
    client: npt.NDArray[np.int64]  # int64[P], run-wide; a client has one row at most
    edge: npt.NDArray[np.int64]
    reasons: Mapping[str, int]  # agents without a row, by reason
    seconds: float  # from the first question to the end
    metric: str = ""
    score: npt.NDArray[np.float64] = np.zeros(0)  # float64[P] in [0, 1]
    samples: npt.NDArray[np.int64] = np.zeros(0, dtype=np.int64)
    epsilon: npt.NDArray[np.float64] = np.zeros(0)  # 0: no noise

    @property
    def peers(self) -> bool:
        """Whether clients volunteered."""
        return self.mode is OpinionMode.PEERS

    @property
    def mean(self) -> float | None:
        """The reward: every client's opinion counts the same; None without any."""
        return None if self.peers or not len(self.score) else float(self.score.mean())


class Standardize(Write, frozen=True):
    """Commit what features are scaled by, from the moments of `agents` agents' samples."""

    moments: Moments
    agents: int


class Standardized(Input, frozen=True):
    """The task as it is from now on, with what features are scaled by."""

    task: str
    body: bytes
    fields: Mapping[str, object]


class MergePart(NamedTuple):
    """An edge's model, what it counts, and what its buffers do."""

    digest: str
    weight: float
    buffer_weight: float
    edge: str


class Merge(RunJob, frozen=True):
    """Average edge models to a durable global one."""

    round: int
    models: tuple[MergePart, ...]
    size: int
    usual: float = 0.0  # how far devices moved since the last merge, by the median; 0: not known
    base: str = ""  # the last global model, for who acts on the mean, or bounds moves
    state: str = ""  # what the server optimiser knew after it
    facts: MergeFacts = MergeFacts()


class Merged(Input, frozen=True):
    """The merged model; `digest` is empty when none was usable, `refused` says why by edge.

    `farthest` is the edge that moved most, where a rule looks at that.
    """

    round: int
    digest: str
    refused: Mapping[str, str]
    state: str = ""
    farthest: str = ""


class CommitModel(Write, frozen=True):
    """Make this model the run's global model, with what the server optimiser knows after it."""

    round: int
    digest: str
    state: str = ""


class Forget(Write, frozen=True):
    """Commit that what these edges learnt up to a round counts in no merge any more."""

    round: int
    edges: tuple[str, ...]


class EvaluateHeldOut(RunJob, frozen=True):
    """Evaluate the global model on the held-out set."""

    round: int
    digest: str
    size: int


class HeldOutEvaluated(Input, frozen=True):
    """How good a global model is, by metric; what was not measured is not there."""

    round: int
    digest: str
    metrics: Mapping[str, float] = msgspec.field(default_factory=dict)


class SaveMetrics(Write, frozen=True):
    """Commit how good a global model is."""

    found: HeldOutEvaluated


class NoteDevices(Write, frozen=True):
    """Keep for people what an edge reports of its devices; None if it is lost."""

    edge: str
    status: EdgeStatus | None


class NoteWork(Write, frozen=True):
    """Keep for people that signed work of these agents came from an edge."""

    edge: str
    agents: tuple[str, ...]


class KeepMembers(Write, frozen=True):
    """Keep for people no device but these: all that the site ever let in, `members` still."""

    ids: frozenset[str]
    members: frozenset[str]


class LearnRevocations(Write, frozen=True):
    """Take over who is on a list of the revoked that an edge has shown, if the authority made it.

    `Revoked` follows with a newer list.
    """

    edge: str
    crl: bytes


class ShowStatus(Write, frozen=True):
    """Keep for people what the run waits for; see `status_files.RunStatus`."""

    waiting: str = ""
    detail: str = ""
    found: int = 0
    wanted: int = 0
    edges_live: int = 0
    next_at: float = 0.0
    silent: tuple[str, ...] = ()
    trouble: Mapping[str, str] = {}


class End(Write, frozen=True):
    """Commit the end of the run: the result, then the books."""

    reason: str


class RunClosed(Input, frozen=True):
    """The run has ended in the books; the fields are those of its event."""

    fields: Mapping[str, object]


class Start(Input, frozen=True):
    """Edges can be heard, and hear us."""


class Enrolled(Input, frozen=True):
    """Which agents belong to the site from now on, and what it calls all that it ever let in."""

    agents: frozenset[str]
    names: Mapping[str, str] = msgspec.field(default_factory=dict)


class WordRenewed(Input, frozen=True):
    """What the coordinator signs of its task is to be signed anew: edges hand out the last word."""
