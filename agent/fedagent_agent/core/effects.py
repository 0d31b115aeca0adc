"""What the agent's core asks of links and disk, and what comes back; see `fedagent_node.effects`.

Any write may result in `DiskFailed` instead. Jobs of the trainer are its own frames
(`trainer.frames`), which name files without their folder.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from fedagent_node.effects import Connect, Input, Write
from fedagent_protocol.messages import Hello, Opinion, OpinionMode, UpdateOffer

from .device import Readings

K = TypeVar("K")
V = TypeVar("V")


class Newest(dict[K, V]):
    """The values that were set last, under so many keys; older ones are forgotten."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def __setitem__(self, key: K, value: V) -> None:
        self.pop(key, None)
        super().__setitem__(key, value)
        while len(self) > self._most:
            del self[next(iter(self))]


def state_name(run: str, task: str) -> str:
    """Return the name of the file with what a device keeps of a task (its digest) in a run."""
    return f"{run}-{task[:16]}"


class Key(NamedTuple):
    """Names one order, and the update that answers it."""

    edge: str
    run: str
    round: int

    @property
    def file_name(self) -> str:
        """Name of the update's file."""
        name = hashlib.sha256(f"{self.edge}/{self.run}/{self.round}".encode()).hexdigest()
        return f"of.{name[:32]}.update"


@dataclass(frozen=True, slots=True)
class PendingUpdate:
    """An update that has no receipt yet."""

    key: Key
    offer: UpdateOffer  # without chunk 0 and without context
    credit: int  # chunks that the order allowed to be sent unasked


@dataclass(frozen=True, slots=True)
class OpinionAnswer:
    """The device's opinion of a model, once and for all that ask."""

    opinion: Opinion  # as an edge may get it in mode ``report``
    mode: OpinionMode  # never used for anything else
    edge: str = ""  # the only one that may get it; empty for all that ask


@dataclass(frozen=True, slots=True)
class OpinionRecord:
    """Opinions with noise that survived the last process, and what they cost."""

    answers: Iterable[OpinionAnswer]
    spent: Mapping[str, float]  # epsilon by run
    ever: float  # epsilon of all runs, also of those that are forgotten


@dataclass(frozen=True, slots=True)
class Survived:
    """What the agent's books know when it starts."""

    boots: int  # how often it was started on its data directory
    updates: Iterable[PendingUpdate]
    answered: Iterable[Key]  # orders that were answered with an update
    opinions: OpinionRecord
    releases: Mapping[str, int]  # updates that have cost privacy, by run


# ------------------------------------------------------------------- the links


class Relink(Connect, frozen=True):
    """Make a link anew on which nothing is heard although it claims to be up."""

    link: str


class Greet(Connect, frozen=True):
    """Say hello to all edges behind a link."""

    link: str
    hello: Hello


class EdgesFound(Input, frozen=True):
    """Adverts place these edges behind a link."""

    link: str
    edges: tuple[str, ...]


class DiskFailed(Input, frozen=True):
    """The disk refused a write; nothing of it is left."""

    effect: Write
    detail: str


# -------------------------------------------------------------- a model's chunks


class OpenModel(Write, frozen=True):
    """Begin or resume to receive a model; results in `ModelOpened`.

    What a task's devices get `once` is kept apart from the newest models.
    """

    digest: str
    size: int
    chunk_bytes: int
    once: bool = False


class ModelOpened(Input, frozen=True):
    """The chunks of a model that are on disk; None: the whole model is."""

    digest: str
    have: frozenset[int] | None


class FinishModel(Write, frozen=True):
    """Verify the received model; results in `ModelFinished`."""

    digest: str


# ------------------------------------------------------------ updates and opinions


class MakeIdleUpdate(Write, frozen=True):
    """Make an update without training; results in the reply of a trainer."""

    job: int
    model: str
    round: int
    iterations: int
    out: str  # name of the update's file


class StoreUpdate(Write, frozen=True):
    """Store the update of `job` durably; results in `UpdateStored`."""

    job: int
    update: PendingUpdate
    place: tuple[int, str] | None  # offset and mark of the stream after it; None without a stream
    releases: int = 0  # updates of this run with it, which cost privacy; 0 where none is counted


class CarryUpdate(Write, frozen=True):
    """Have an update answer a later order as well; results in `UpdateStored`."""

    old: Key
    update: PendingUpdate


class UpdateStored(Input, frozen=True):
    """An update is durable, and may be offered."""

    update: PendingUpdate
    expired: tuple[Key, ...] = ()  # older updates that had to go to make room


class DropUpdate(Write, frozen=True):
    """Remove an update that is receipted or over; it may fail without harm."""

    key: Key


class DropOutput(Write, frozen=True):
    """Remove what a training that is not wanted any more may have left."""

    job: int


class StoreOpinion(Write, frozen=True):
    """Store an opinion that costs privacy durably; results in `OpinionStored`."""

    answer: OpinionAnswer
    spent: float  # epsilon that its run has cost so far, with this one


class OpinionStored(Input, frozen=True):
    """An opinion with noise is durable."""

    answer: OpinionAnswer


# ------------------------------------------------------------------- the device


class Measured(Input, frozen=True):
    """What was measured of the device."""

    readings: Readings


class TrainerEnded(Input, frozen=True):
    """The trainer's process has ended, with what its learner remembered."""


class Stopping(Input, frozen=True):
    """The agent is about to end: say goodbye to the edges."""

    reason: str
