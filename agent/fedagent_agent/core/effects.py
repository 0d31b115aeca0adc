"""What the agent's core asks its surroundings to do, in order.

Disk effects are performed before the effects that follow them: an update is
durable before it is offered.
"""

from dataclasses import dataclass

from fedagent_protocol.messages import AgentToEdge, Opinion, OpinionMode, UpdateOffer

from .peer_records import ArmStats, SlotRecord

Rank = tuple[str, int]
"""(run, round) of an order."""


@dataclass(frozen=True, slots=True, order=True)
class Key:
    """What names one order, and the update that answers it."""

    edge: str
    run: str
    round: int

    @property
    def rank(self) -> Rank:
        """Run and round."""
        return self.run, self.round


@dataclass(frozen=True, slots=True)
class PendingUpdate:
    """An update in the outbox: its offer without chunk 0 and without context.

    Attributes:
        credit: Chunks that the order allowed to be sent unasked.
    """

    key: Key
    offer: UpdateOffer
    credit: int


@dataclass(frozen=True, slots=True)
class Send:
    """Send a message to an edge."""

    edge: str
    message: AgentToEdge


@dataclass(frozen=True, slots=True)
class SendOffer:
    """Send an offer; with chunk 0 from the outbox if `first`."""

    edge: str
    offer: UpdateOffer
    first: bool


@dataclass(frozen=True, slots=True)
class SendChunk:
    """Send one chunk of an update in the outbox."""

    key: Key
    digest: str
    index: int


@dataclass(frozen=True, slots=True)
class SubscribeModel:
    """Subscribe to a model's topic; answer with `AgentCore.subscribed`."""

    edge: str
    digest: str


@dataclass(frozen=True, slots=True)
class UnsubscribeModel:
    """Leave a model's topic."""

    edge: str
    digest: str


@dataclass(frozen=True, slots=True)
class Route:
    """From now on this edge is reached by this link."""

    edge: str
    link: str


@dataclass(frozen=True, slots=True)
class Unroute:
    """The session with this edge has ended."""

    edge: str


@dataclass(frozen=True, slots=True)
class Relink:
    """Nothing is heard on this link although it claims to be up: make it anew."""

    link: str


@dataclass(frozen=True, slots=True)
class OpenModel:
    """Begin or resume to receive a model; answer with `AgentCore.model_opened`."""

    digest: str
    size: int
    chunk_bytes: int


@dataclass(frozen=True, slots=True)
class WriteModel:
    """Write a chunk of the model that is being received."""

    digest: str
    index: int
    data: bytes


@dataclass(frozen=True, slots=True)
class FinishModel:
    """Verify the received model; answer with `AgentCore.model_finished`."""

    digest: str


@dataclass(frozen=True, slots=True)
class OpenTask:
    """Check a task and open the stream for it; answer with `AgentCore.task_opened`."""

    digest: str
    body: bytes


@dataclass(frozen=True, slots=True)
class Train:
    """Train; answer with `AgentCore.trained`, and on success keep the update first.

    Attributes:
        load_limit_s: Seconds of computation that it may take; 0 for no limit.
        recipe: Name of the recipe that the task was fetched for, for people.
    """

    job: int
    key: Key
    task: str
    model: str
    iterations: int
    timeout_s: float
    load_limit_s: float = 0.0
    recipe: str = ""


@dataclass(frozen=True, slots=True)
class CancelTraining:
    """Nobody wants the update of this job any more."""

    job: int


@dataclass(frozen=True, slots=True)
class StoreUpdate:
    """Store the update of `job` durably; answer with `AgentCore.kept`."""

    job: int
    kept: PendingUpdate


@dataclass(frozen=True, slots=True)
class DropUpdate:
    """Remove an update that is receipted or over; may ride in the next commit."""

    key: Key


@dataclass(frozen=True, slots=True)
class StoreSlot:
    """Keep durably what this device knows of a slot; it is for its owner alone.

    Attributes:
        life: Number of the newest wiring; a later one must be larger, also after a restart.
        standing: Of the record's run.
    """

    incarnation: int
    standing: ArmStats
    record: SlotRecord


@dataclass(frozen=True, slots=True)
class OpinionAnswer:
    """What the device says of a model, once and for all that ask.

    Attributes:
        opinion: As an edge may be told it in mode ``report``.
        mode: What it was made for; it is never used for anything else.
        edge: The only one that may be told it; empty for all that ask.
    """

    opinion: Opinion
    mode: OpinionMode
    edge: str = ""


@dataclass(frozen=True, slots=True)
class EvaluateOnDevice:
    """Score a model on held-out samples; answer with `AgentCore.evaluated`.

    Attributes:
        moments: No score is wanted, but what the samples add up to.
    """

    job: int
    task: str
    model: str
    moments: bool = False


@dataclass(frozen=True, slots=True)
class StoreOpinion:
    """Store an answer that costs privacy durably; reply with `AgentCore.opinion_stored`.

    Attributes:
        spent: Epsilon that its run has cost so far, with this answer.
    """

    answer: OpinionAnswer
    spent: float


@dataclass(frozen=True, slots=True)
class Event:
    """Something a person may want to know."""

    name: str
    data: dict[str, object]


Effect = (
    Send
    | SendOffer
    | SendChunk
    | SubscribeModel
    | UnsubscribeModel
    | Route
    | Unroute
    | Relink
    | OpenModel
    | WriteModel
    | FinishModel
    | OpenTask
    | Train
    | CancelTraining
    | StoreUpdate
    | DropUpdate
    | StoreSlot
    | EvaluateOnDevice
    | StoreOpinion
    | Event
)
