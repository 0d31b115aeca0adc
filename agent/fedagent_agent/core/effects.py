"""What the agent's core asks of links and disk, and what comes back; see `fedagent_node.effects`.

Any write may result in `DiskFailed` instead.

Jobs of the trainer are its own frames (`trainer.frames`), which name files without their
folder; so are their results.
"""

import hashlib
from dataclasses import dataclass

from fedagent_agent.peers.core.records import ArmStats, SlotRecord
from fedagent_node.effects import Connect, Input, Write
from fedagent_protocol.messages import Opinion, OpinionMode, UpdateOffer

from .device import Readings

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


# ------------------------------------------------------------------- the links


@dataclass(frozen=True, slots=True)
class SubscribeModel(Connect):
    """Subscribe to a model's topic on the link to an edge; results in `Subscribed`."""

    edge: str
    digest: str


@dataclass(frozen=True, slots=True)
class UnsubscribeModel(Connect):
    """Leave a model's topic."""

    edge: str
    digest: str


@dataclass(frozen=True, slots=True)
class Relink(Connect):
    """Make a link anew on which nothing is heard although it claims to be up."""

    link: str


@dataclass(frozen=True, slots=True)
class Subscribed(Input):
    """The broker's answer to `SubscribeModel`."""

    edge: str
    digest: str
    ok: bool = True


@dataclass(frozen=True, slots=True)
class EdgesFound(Input):
    """Adverts place these edges behind a link."""

    link: str
    edges: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DiskFailed(Input):
    """The disk refused a write; nothing of it is left."""

    effect: Write
    detail: str


# -------------------------------------------------------------- a model's chunks


@dataclass(frozen=True, slots=True)
class OpenModel(Write):
    """Begin or resume to receive a model; results in `ModelOpened`."""

    digest: str
    size: int
    chunk_bytes: int


@dataclass(frozen=True, slots=True)
class ModelOpened(Input):
    """The chunks of a model that are on disk; None: the whole model is."""

    digest: str
    have: frozenset[int] | None


@dataclass(frozen=True, slots=True)
class WriteModel(Write):
    """Write a chunk of the model that is being received."""

    digest: str
    index: int
    data: bytes


@dataclass(frozen=True, slots=True)
class FinishModel(Write):
    """Verify the received model; results in `ModelFinished`."""

    digest: str


@dataclass(frozen=True, slots=True)
class ModelFinished(Input):
    """Whether a received model hashes to its name."""

    digest: str
    ok: bool


# ------------------------------------------------------------ updates and opinions


@dataclass(frozen=True, slots=True)
class MakeIdleUpdate(Write):
    """Make an update without training; results in the reply of a trainer."""

    job: int
    model: str
    round: int
    iterations: int


@dataclass(frozen=True, slots=True)
class StoreUpdate(Write):
    """Store the update of `job` durably; results in `UpdateStored`."""

    job: int
    update: PendingUpdate
    offset: int
    """Position of the stream after the training."""


@dataclass(frozen=True, slots=True)
class UpdateStored(Input):
    """An update is durable, and may be offered."""

    update: PendingUpdate
    expired: tuple[Key, ...] = ()
    """Older updates that had to go to make room."""


@dataclass(frozen=True, slots=True)
class DropUpdate(Write):
    """Remove an update that is receipted or over, with the next commit."""

    key: Key


@dataclass(frozen=True, slots=True)
class DropOutput(Write):
    """Remove what a training that is not wanted any more may have left."""

    job: int


@dataclass(frozen=True, slots=True)
class FlushOutbox(Write):
    """Commit removals that no other commit took along; it may fail without harm."""


@dataclass(frozen=True, slots=True)
class StoreOpinion(Write):
    """Store an opinion that costs privacy durably; results in `OpinionStored`."""

    answer: OpinionAnswer
    spent: float
    """Epsilon that its run has cost so far, with this one."""


@dataclass(frozen=True, slots=True)
class OpinionStored(Input):
    """An opinion with noise is durable."""

    answer: OpinionAnswer


@dataclass(frozen=True, slots=True)
class StoreSlot(Write):
    """Store durably what this device knows of a slot; it is for its owner alone."""

    incarnation: int
    """The newest one; a later one must be larger, also after a restart."""
    arm: ArmStats
    """Of the record's run."""
    record: SlotRecord


# ------------------------------------------------------------------- the device


@dataclass(frozen=True, slots=True)
class Measured(Input):
    """What was measured of the device."""

    readings: Readings
    report: bool = False
    """Report it to every edge, however little has changed."""


@dataclass(frozen=True, slots=True)
class TrainerEnded(Input):
    """The trainer's process has ended, with what its learner remembered."""


@dataclass(frozen=True, slots=True)
class Stopping(Input):
    """The agent is about to end: say goodbye to the edges."""

    reason: str
