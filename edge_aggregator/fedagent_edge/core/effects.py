"""What the edge's core asks its surroundings to do, in order.

Disk effects are performed before the effects that follow them: an order follows
the stored round, a receipt follows the durable spool.
"""

from dataclasses import dataclass

from fedagent_protocol.messages import (
    EdgeToAgent,
    EdgeToCoordinator,
    RoundOrder,
    RoundReport,
    UpdateOffer,
    Weighting,
)

Key = tuple[str, int, str]
"""(run, round, agent): what names one update at an edge."""


@dataclass(frozen=True, slots=True)
class ToAgent:
    """Send a message to one agent."""

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

    run: str
    order: RoundOrder
    base: str
    began_at: float


@dataclass(frozen=True, slots=True)
class OpenSpool:
    """Begin the spool of an update (a part of one that is there already is kept)."""

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
class Check:
    """Job: verify a complete update; answer with `EdgeCore.checked`."""

    key: Key
    offer: UpdateOffer
    norm_limit: float


@dataclass(frozen=True, slots=True)
class Admit:
    """Store the verdict durably, and add the update to the sum if `weight` > 0."""

    key: Key
    offer: UpdateOffer
    tau_ms: int
    weight: float
    norm: float
    in_time: bool


@dataclass(frozen=True, slots=True)
class Commit:
    """Job: make the new edge model of the sum; answer with `EdgeCore.committed`."""

    run: str
    round: int
    base: str
    weighting: Weighting


@dataclass(frozen=True, slots=True)
class SaveReport:
    """Store report and model durably; the round's spool may go then."""

    report: RoundReport


@dataclass(frozen=True, slots=True)
class ForgetReport:
    """The report is receipted."""

    run: str
    round: int


@dataclass(frozen=True, slots=True)
class AdoptRun:
    """A new run begins: drop what belongs to another one, keep this task."""

    run: str
    task: str
    body: bytes


@dataclass(frozen=True, slots=True)
class OpenModel:
    """Begin to receive a model of the coordinator."""

    digest: str
    size: int
    chunk_bytes: int


@dataclass(frozen=True, slots=True)
class WriteModel:
    """Write a chunk of a model that is being received."""

    digest: str
    index: int
    data: bytes


@dataclass(frozen=True, slots=True)
class FinishModel:
    """Verify a received model and make it the edge's; answer with `model_ready`."""

    digest: str


@dataclass(frozen=True, slots=True)
class Event:
    """Something a person may want to know."""

    name: str
    data: dict[str, object]


Effect = (
    ToAgent
    | ToCoordinator
    | Publish
    | SendChunk
    | SaveRound
    | OpenSpool
    | WriteSpool
    | DropSpool
    | Check
    | Admit
    | Commit
    | SaveReport
    | ForgetReport
    | AdoptRun
    | OpenModel
    | WriteModel
    | FinishModel
    | Event
)
