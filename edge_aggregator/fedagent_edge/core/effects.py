"""What the edge's core asks its surroundings to do, in order.

Disk effects are performed before the effects that follow them: an order follows
the stored round, a receipt follows the durable spool.
"""

from dataclasses import dataclass

from fedagent_protocol.messages import (
    EdgeToAgent,
    EdgeToCoordinator,
    OutcomeStatus,
    RoundOrder,
    RoundReport,
    UpdateOffer,
)

Key = tuple[str, int, str]
"""(run, round, agent): what names one update at an edge."""


@dataclass(frozen=True, slots=True)
class ToAgent:
    """Send a message to one agent; to everybody, as a beacon, if `agent` is empty."""

    agent: str
    message: EdgeToAgent


@dataclass(frozen=True, slots=True)
class ToCoordinator:
    """Send a message to the coordinator."""

    message: EdgeToCoordinator


@dataclass(frozen=True, slots=True)
class Publish:
    """Publish one chunk of the model on its topic."""

    digest: str
    index: int


@dataclass(frozen=True, slots=True)
class SendChunk:
    """Send one chunk of a blob to an agent, or to the coordinator if `agent` is empty."""

    digest: str
    index: int
    agent: str = ""


@dataclass(frozen=True, slots=True)
class SaveRound:
    """Store the round durably before anybody is ordered."""

    order: RoundOrder
    base: str
    began_at: float


@dataclass(frozen=True, slots=True)
class ForgetRound:
    """The round is over without a report: drop it and its spool."""


@dataclass(frozen=True, slots=True)
class OpenSpool:
    """Begin the spool of an update."""

    key: Key
    offer: UpdateOffer


@dataclass(frozen=True, slots=True)
class WriteSpool:
    """Write a chunk of an update at its offset."""

    key: Key
    index: int
    data: bytes


@dataclass(frozen=True, slots=True)
class DropSpool:
    """Remove the spool of an update."""

    key: Key


@dataclass(frozen=True, slots=True)
class NoteEnd:
    """Remember over a restart that an agent ended without an update."""

    key: Key
    status: OutcomeStatus
    reason: str
    tau_ms: int


@dataclass(frozen=True, slots=True)
class Check:
    """Job: verify a complete update; answer with `checked` or `disk_failed`."""

    key: Key
    offer: UpdateOffer
    norm_limit: float


@dataclass(frozen=True, slots=True)
class Admit:
    """Job: store the verdict durably, and add the update to the sum if `weight` > 0.

    Answer with `admitted` or `disk_failed`.
    """

    key: Key
    offer: UpdateOffer
    status: OutcomeStatus
    tau_ms: int
    weight: float
    norm: float


@dataclass(frozen=True, slots=True)
class Commit:
    """Job: make the new edge model of the sum; answer with `committed`."""

    run: str
    round: int
    base: str


@dataclass(frozen=True, slots=True)
class SaveReport:
    """Store report and model durably; the round's spool may go then."""

    report: RoundReport


@dataclass(frozen=True, slots=True)
class AdoptRun:
    """A new run begins: drop what belongs to another one."""


@dataclass(frozen=True, slots=True)
class OpenModel:
    """Begin to receive a model of the coordinator."""

    digest: str


@dataclass(frozen=True, slots=True)
class WriteModel:
    """Write a chunk of a model that is being received."""

    digest: str
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class FinishModel:
    """Job: verify a received model and keep it; answer with `model_ready`."""

    digest: str
    size: int


@dataclass(frozen=True, slots=True)
class SaveModel:
    """The edge's model is another one: store that durably."""


@dataclass(frozen=True, slots=True)
class Event:
    """Something a person may want to know."""

    name: str
    data: dict[str, object]


@dataclass(frozen=True, slots=True)
class Note:
    """A line for the log: what was refused, from whom, and why."""

    agent: str
    text: str


Effect = (
    ToAgent
    | ToCoordinator
    | Publish
    | SendChunk
    | SaveRound
    | ForgetRound
    | OpenSpool
    | WriteSpool
    | DropSpool
    | NoteEnd
    | Check
    | Admit
    | Commit
    | SaveReport
    | AdoptRun
    | OpenModel
    | WriteModel
    | FinishModel
    | SaveModel
    | Event
    | Note
)
