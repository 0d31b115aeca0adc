"""What the edge's core asks of its disk, and what comes back; see `fedagent_node.effects`."""

from dataclasses import dataclass

from fedagent_node.effects import Input, Run, Write
from fedagent_protocol.messages import OutcomeStatus, RoundOrder, UpdateOffer

from .admission import Verdict
from .settings import Memory

COORDINATOR = ""
"""Receiver of what goes up."""
LAN = "lan"
WAN = "wan"
"""Links to the agents' broker and to the coordinator's; with a shared broker, both are there."""

Key = tuple[str, int, str]
"""(run, round, agent): what names one update at an edge."""


@dataclass(frozen=True, slots=True)
class SaveRound(Write):
    """Store a round before anybody is ordered."""

    run: str
    order: RoundOrder
    base: str
    began_at: float


@dataclass(frozen=True, slots=True)
class ForgetRound(Write):
    """Drop the round and its spool."""


@dataclass(frozen=True, slots=True)
class SaveState(Write):
    """Store durably what a restart must know."""

    memory: Memory


@dataclass(frozen=True, slots=True)
class OpenSpool(Write):
    """Begin the spool of an update; `DiskFailed` on failure, as for all writes to a spool."""

    key: Key
    offer: UpdateOffer


@dataclass(frozen=True, slots=True)
class WriteSpool(Write):
    """Write a chunk of an update at its offset."""

    key: Key
    index: int
    data: bytes


@dataclass(frozen=True, slots=True)
class DropSpool(Write):
    """Remove the spool of an update."""

    key: Key


@dataclass(frozen=True, slots=True)
class NoteEnd(Write):
    """Remember over a restart that an agent ended without an update."""

    key: Key
    status: OutcomeStatus
    reason: str
    tau_ms: int


@dataclass(frozen=True, slots=True)
class OpenModel(Write):
    """Begin to receive a model of the coordinator."""

    digest: str


@dataclass(frozen=True, slots=True)
class WriteModel(Write):
    """Write a chunk of a model that is being received."""

    digest: str
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class DiskFailed(Input):
    """The disk did not take an update."""

    key: Key
    detail: str


@dataclass(frozen=True, slots=True)
class Check(Run):
    """Verify a complete update: `Checked`, or `DiskFailed`."""

    key: Key
    offer: UpdateOffer
    norm_limit: float


@dataclass(frozen=True, slots=True)
class Checked(Input):
    """The verdict of a `Check`."""

    key: Key
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Admit(Run):
    """Store a verdict durably, add the update to the sum if `weight` > 0.

    The result is `Admitted`, or `DiskFailed`.
    """

    key: Key
    offer: UpdateOffer
    status: OutcomeStatus
    tau_ms: int
    weight: float
    norm: float


@dataclass(frozen=True, slots=True)
class Admitted(Input):
    """An update is durable, so that its receipt may go out."""

    key: Key


@dataclass(frozen=True, slots=True)
class Commit(Run):
    """Make the new edge model of the sum: `Committed`."""

    run: str
    round: int
    base: str


@dataclass(frozen=True, slots=True)
class Committed(Input):
    """The new edge model; without a digest, the sum was not usable.

    Attributes:
        first: The model's first chunk.
    """

    run: str
    round: int
    digest: str = ""
    size: int = 0
    first: bytes = b""


@dataclass(frozen=True, slots=True)
class FinishModel(Run):
    """Verify a received model and keep it: `ModelReady`."""

    digest: str
    size: int


@dataclass(frozen=True, slots=True)
class ModelReady(Input):
    """A verified model of the coordinator; `refused` says why it is not usable."""

    digest: str
    size: int
    refused: str = ""
