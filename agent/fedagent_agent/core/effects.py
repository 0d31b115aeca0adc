"""What the agent's core asks its surroundings to do, in order.

Disk effects are performed before the effects that follow them: an update is durable
before it is offered. Jobs of the trainer are its own frames (`trainer.frames`), with the
names of files instead of their paths; their replies come back by `AgentCore.replied`.
"""

import hashlib
from dataclasses import dataclass

from fedagent_agent.peers.core.records import ArmStats, SlotRecord
from fedagent_agent.trainer.frames import Cancel, Evaluate, Open, Train
from fedagent_protocol.messages import AgentToEdge, Opinion, OpinionMode, UpdateOffer

Rank = tuple[str, int]
"""(run, round) of an order."""


@dataclass(frozen=True, slots=True, order=True)
class Key:
    """Names one order, and the update that answers it."""

    edge: str
    run: str
    round: int

    @property
    def rank(self) -> Rank:
        """Run and round."""
        return self.run, self.round

    @property
    def file_name(self) -> str:
        """Name of the update's file."""
        name = hashlib.sha256(f"{self.edge}/{self.run}/{self.round}".encode()).hexdigest()
        return f"{name[:32]}.update"


class Jobs:
    """Numbers the jobs of the trainer; no two have the same."""

    def __init__(self) -> None:
        self._last = 0

    def next(self) -> int:
        """Return a new number."""
        self._last += 1
        return self._last


@dataclass(frozen=True, slots=True)
class PendingUpdate:
    """An update in the outbox."""

    key: Key
    offer: UpdateOffer
    """Without chunk 0 and without context."""
    credit: int
    """Chunks that the order allowed to be sent unasked."""


@dataclass(frozen=True, slots=True)
class OpinionAnswer:
    """The device's opinion of a model, once and for all that ask."""

    opinion: Opinion
    """As an edge may get it in mode ``report``."""
    mode: OpinionMode
    """What it was made for; it is never used for anything else."""
    edge: str = ""
    """The only one that may get it; empty for all that ask."""


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

    update: PendingUpdate
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
class MakeIdleUpdate:
    """Make an update without training; answer with `AgentCore.replied`."""

    job: int
    model: str
    round: int
    iterations: int


@dataclass(frozen=True, slots=True)
class StoreUpdate:
    """Store the update of `job` durably; answer with `AgentCore.stored`."""

    job: int
    update: PendingUpdate
    offset: int
    """Position of the stream after the training."""


@dataclass(frozen=True, slots=True)
class DropUpdate:
    """Remove an update that is receipted or over; may ride in the next commit."""

    key: Key


@dataclass(frozen=True, slots=True)
class StoreSlot:
    """Store durably what this device knows of a slot; it is for its owner alone."""

    incarnation: int
    """The newest one; a later one must be larger, also after a restart."""
    arm: ArmStats
    """Of the record's run."""
    record: SlotRecord


@dataclass(frozen=True, slots=True)
class StoreOpinion:
    """Store an opinion that costs privacy durably; answer with `AgentCore.opinion_stored`."""

    answer: OpinionAnswer
    spent: float
    """Epsilon that its run has cost so far, with this one."""


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
    | Open
    | Train
    | Evaluate
    | MakeIdleUpdate
    | Cancel
    | StoreUpdate
    | DropUpdate
    | StoreSlot
    | StoreOpinion
    | Event
)
