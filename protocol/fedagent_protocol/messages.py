"""Every message on the wire, as frozen structs in one tagged union per direction.

Rules of evolution: new fields come last and have a default; a field is never
retyped and its name never reused; unknown fields are skipped; unknown words in
an enumeration decode to ``OTHER``. `docs/protocol.md` tells the flows.

Durations are milliseconds and always *remaining* or *elapsed*, never instants.
Money is int64 micro-credits.
"""

import math
from typing import Annotated

from msgspec import Meta, Struct, field

from .basics import (
    CHUNK_BYTES,
    MAX_CHUNK_BYTES,
    MAX_CHUNKS,
    MAX_MICRO,
    PROTOCOL_VERSION,
    UNANSWERED,
    ChunkIndex,
    ChunkSize,
    Column,
    Count,
    Data,
    DeclineReason,
    Digest,
    FeatureName,
    Id,
    Message,
    Micro,
    Millis,
    Name,
    OpenEnum,
    OptionalDigest,
    OutcomeStatus,
    Range,
    Ranges,
    Reason,
    ReceiptStatus,
    Round,
    RunId,
    Score,
    Seq,
    Short,
    Text,
    Version,
    Weighting,
)
from .opinions import (
    EdgeMoments,
    Neighbours,
    Opinion,
    OpinionCall,
    OpinionClose,
    OpinionMode,
    OpinionOpen,
    Opinions,
    OpinionsReceipt,
    PeerDeliver,
    PeerSend,
    Volunteer,
    Volunteers,
)

__all__ = [
    "CHUNK_BYTES",
    "MAX_CHUNKS",
    "MAX_CHUNK_BYTES",
    "MAX_MICRO",
    "PROTOCOL_VERSION",
    "UNANSWERED",
    "ChunkIndex",
    "ChunkSize",
    "Column",
    "Count",
    "Data",
    "DeclineReason",
    "Digest",
    "EdgeMoments",
    "FeatureName",
    "Id",
    "Message",
    "Micro",
    "Millis",
    "Name",
    "Neighbours",
    "OpenEnum",
    "Opinion",
    "OpinionCall",
    "OpinionClose",
    "OpinionMode",
    "OpinionOpen",
    "Opinions",
    "OpinionsReceipt",
    "OptionalDigest",
    "OutcomeStatus",
    "PeerDeliver",
    "PeerSend",
    "Range",
    "Ranges",
    "Reason",
    "ReceiptStatus",
    "Round",
    "RunId",
    "Score",
    "Seq",
    "Short",
    "Text",
    "Version",
    "Volunteer",
    "Volunteers",
    "Weighting",
]
"""What is passed on; everything below is public too."""


# --- both ways -------------------------------------------------------------


class Need(Message, frozen=True, kw_only=True, tag="need"):
    """Authorise exactly these chunks: the receiver's credit, and its re-request.

    Idempotent. A sender sends no chunk that was not asked for.
    """

    digest: Digest
    ranges: Ranges


class Chunk(Message, frozen=True, kw_only=True, tag="chunk"):
    """One piece of a content-addressed object."""

    digest: Digest
    index: ChunkIndex
    data: Data


class Probe(Message, frozen=True, kw_only=True, tag="probe"):
    """Measure the link: the peer answers with `reply_bytes` of padding."""

    nonce: Count
    reply_bytes: Annotated[int, Meta(ge=0, le=65_536)] = 0
    data: Annotated[bytes, Meta(max_length=65_536)] = b""


class ProbeReply(Message, frozen=True, kw_only=True, tag="probe-reply"):
    """Answer a `Probe`."""

    nonce: Count
    data: Annotated[bytes, Meta(max_length=65_536)] = b""


# --- agent -> edge ---------------------------------------------------------


class Hello(Message, frozen=True, kw_only=True, tag="hello"):
    """Open a session; sent again after every reconnect.

    For people: `name`, and the device's own `address` on the way to this broker.
    """

    agent: Id
    protocol: Version = field(default_factory=lambda: PROTOCOL_VERSION)  # never left out
    software: Text = ""
    name: Name = ""
    address: Short = ""


class ContextReport(Message, frozen=True, kw_only=True, tag="context"):
    """What the agent measured of itself and of its link to this edge.

    `seq` grows over restarts, so that the newest report wins at the coordinator.
    """

    available: bool
    price: Micro
    features: Annotated[dict[FeatureName, float], Meta(max_length=32)] = field(default_factory=dict)
    reason: Text = ""

    def __post_init__(self) -> None:
        """Refuse NaN and infinities, which MessagePack lets through."""
        for name, value in self.features.items():
            if not math.isfinite(value):
                raise ValueError(f"feature {name} is not finite")


class Decline(Message, frozen=True, kw_only=True, tag="decline"):
    """Refuse the order of this round; the edge stops waiting at once."""

    reason: DeclineReason
    detail: Text = ""


class TaskNeed(Message, frozen=True, kw_only=True, tag="task-need"):
    """Ask for the task that an order named."""

    digest: Digest


class UpdateOffer(Message, frozen=True, kw_only=True, tag="update"):
    """Offer a finished update: what it is, how it came to be, and its first chunk.

    Attributes:
        digest: SHA-256 of the safetensors bytes.
        base: Digest of the model the float32 delta starts from.
        first: Chunk 0, when the order gave credit for it.
        dt_ms: Download time, from the order to having the model.
        lc_ms: Local computation time.
        context: The report after the round, saving a message.
        train_ms: Computation alone; `lc_ms` has the waits for arrivals in it.
        steps: Arrival steps that were done, of `iterations` each.
        limited: The load limit ended the iterations early.
        loss: Mean over the training; 0 where it is not told.
        score: Of the base model on `score_n` samples that are new to it; see docs/agent.md.
        note: What whoever runs the federation should know of the device's samples.
    """

    digest: Digest
    size: Count
    chunk_bytes: ChunkSize
    base: Digest
    task: Digest
    num_samples: Count
    iterations: Count = 0
    dt_ms: Millis = 0
    lc_ms: Millis = 0
    arrivals: Count = 0
    seconds_per_iteration: float = 0.0
    loss: float = 0.0
    first: Data = b""
    context: ContextReport | None = None
    train_ms: Millis = 0
    steps: Count = 0
    limited: bool = False
    score: Score = 0.0
    score_n: Count = 0
    note: Text = ""

    def __post_init__(self) -> None:
        """Refuse NaN and infinities, which MessagePack lets through."""
        if not all(map(math.isfinite, (self.loss, self.seconds_per_iteration, self.score))):
            raise ValueError("loss, seconds_per_iteration and score must be finite")


class Bye(Message, frozen=True, kw_only=True, tag="bye"):
    """Close the session in good order."""

    reason: Text = ""


# --- edge -> agent ---------------------------------------------------------


class EdgeBeacon(Message, frozen=True, kw_only=True, tag="edge-beacon"):
    """The edge's heartbeat to everybody on its broker.

    `epoch` is new at every start of the edge: an agent says hello again when it changes,
    also behind a shared broker that outlives the edge.
    """

    edge: Id
    protocol: Version = field(default_factory=lambda: PROTOCOL_VERSION)  # never left out
    period_ms: Millis = 5000
    epoch: RunId = ""


class Welcome(Message, frozen=True, kw_only=True, tag="welcome"):
    """Answer `Hello`: the session is open. `name` is the edge's, for people."""

    edge: Id
    context_ms: Millis = 15_000
    name: Name = ""


class TrainOrder(Message, frozen=True, kw_only=True, tag="order"):
    """Order one agent to train; orders rank by (run of the edge, round).

    Attributes:
        model: Digest of the base model, of `size` bytes in `chunk_bytes` chunks.
        iterations: Local iterations rho; 0 leaves it to the learner.
        deadline_ms: Remaining time until the edge's deadline.
        give_up_ms: Remaining time until the latest possible close (max_wait).
        credit: Chunks of the update that may be sent without a `Need`.
        price: The price the agent was chosen by.
        context_seq: The report it was chosen by.
        load_limit_ms: Most computation of the round; 0 for no limit but the device's own.
    """

    task: Digest
    model: Digest
    size: Count
    chunk_bytes: ChunkSize
    deadline_ms: Millis
    give_up_ms: Millis
    iterations: Count = 0
    credit: Annotated[int, Meta(ge=0, le=64)] = 1
    price: Micro = 0
    context_seq: Seq = 0
    load_limit_ms: Millis = 0


class TaskBody(Message, frozen=True, kw_only=True, tag="task"):
    """The task of a run: canonical bytes of `fedagent_task.recipe.TaskSpec`.

    `recipe` is the name of the run's recipe, for people.
    """

    digest: Digest
    body: Annotated[bytes, Meta(max_length=65_536)]
    recipe: Name = ""


class Receipt(Message, frozen=True, kw_only=True, tag="receipt"):
    """The edge holds the update durably, or will never want it."""

    digest: Digest
    status: ReceiptStatus
    reason: Text = ""


class RoundClosed(Message, frozen=True, kw_only=True, tag="closed"):
    """The round is over; whoever still works on it may stop."""


# --- edge -> coordinator ---------------------------------------------------


class EdgeHello(Message, frozen=True, kw_only=True, tag="edge-hello"):
    """Open the edge's session. `epoch` is new at every start of the process.

    `rent` is what it asks for aggregating one round.
    """

    edge: Id
    epoch: RunId
    protocol: Version = field(default_factory=lambda: PROTOCOL_VERSION)  # never left out
    software: Text = ""
    broker: Text = ""
    name: Text = ""
    rent: Micro = 0


class DeviceNote(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What people are told of one agent at an edge.

    Attributes:
        here: It has a live session.
        age_ms: Since it was heard, when it left.
        address: Its own, as it says.
        reason: Why it does not take part, in words; empty if it does.
    """

    agent: Id
    here: bool = True
    age_ms: Millis = 0
    software: Short = ""
    address: Short = ""
    reason: Reason = ""


class EdgeStatus(Message, frozen=True, kw_only=True, tag="edge-status"):
    """The edge's heartbeat. `model` is what it holds for the run, if anything.

    `names` is what people call agents: those that were not said since the welcome; `rent`
    is what the edge asks for aggregating one round; `devices` are the agents of which
    something has changed since the welcome or since they were said.
    """

    epoch: RunId
    agents: Count = 0
    model: OptionalDigest = ""
    counters: Annotated[dict[str, int], Meta(max_length=256)] = field(default_factory=dict)
    names: Annotated[dict[Id, Name], Meta(max_length=500)] = field(default_factory=dict)
    rent: Micro = 0
    devices: Annotated[tuple[DeviceNote, ...], Meta(max_length=500)] = ()


class RoundColumns(Message, frozen=True, kw_only=True, tag="columns"):
    """All fresh contexts at one edge, as little-endian columns (`columns.py`).

    `new_ids` are the session ids from `known` on; a session index is the
    position of its agent in the edge's list for this epoch.
    """

    epoch: RunId
    known: Count
    new_ids: Annotated[tuple[Id, ...], Meta(max_length=20_000)]
    features: Annotated[tuple[FeatureName, ...], Meta(max_length=32)]
    session: Column
    price: Column
    context_seq: Column
    age_ms: Column
    available: Column
    values: Column
    model: OptionalDigest = ""


class Outcome(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How one ordered agent ended the round.

    Attributes:
        in_time: X of the algorithms: a valid update before the deadline.
        used: It is part of the aggregate, with `weight`.
        valid: A valid update came before the close; this is what is paid.
        tau_ms: Order to whole valid update; when `censored`, the time waited.
        train_ms, iterations, steps, limited: As the agent offered it.
        score: What the agent says of the model that the round began with, on `score_n`
            samples of its own.
        reason: Why there is no valid update; of one, its `note`.
    """

    agent: Id
    status: OutcomeStatus
    in_time: bool = False
    used: bool = False
    valid: bool = False
    weight: float = 0.0
    tau_ms: Millis = 0
    censored: bool = False
    dt_ms: Millis = 0
    lc_ms: Millis = 0
    ut_ms: Millis = 0
    num_samples: Count = 0
    arrivals: Count = 0
    seconds_per_iteration: float = 0.0
    loss: float = 0.0
    norm: float = 0.0
    reason: Text = ""
    train_ms: Millis = 0
    iterations: Count = 0
    steps: Count = 0
    limited: bool = False
    score: Score = 0.0
    score_n: Count = 0

    def __post_init__(self) -> None:
        """Refuse NaN and infinities, which MessagePack lets through."""
        numbers = (self.weight, self.seconds_per_iteration, self.loss, self.norm, self.score)
        if not all(map(math.isfinite, numbers)):
            raise ValueError("an outcome has a non-finite number")


class RoundReport(Message, frozen=True, kw_only=True, tag="report"):
    """The round at this edge, closed. Re-sent until `ReportReceipt`.

    Attributes:
        failed: Why the edge kept its model; empty when it has a new one.
        model: The edge model after the round, of `size` bytes.
        weight: Sum of the weights in the aggregate.
        first: Chunk 0 of the model, when the order asked for the model.
        timing_ms: Duration of each step at the edge.
    """

    epoch: RunId
    outcomes: Annotated[tuple[Outcome, ...], Meta(max_length=20_000)]
    failed: Text = ""
    model: OptionalDigest = ""
    size: Count = 0
    chunk_bytes: ChunkSize = CHUNK_BYTES
    used: Count = 0
    weight: float = 0.0
    first: Data = b""
    timing_ms: Annotated[dict[str, float], Meta(max_length=32)] = field(default_factory=dict)


# --- coordinator -> edge ---------------------------------------------------


class CoordinatorBeacon(Message, frozen=True, kw_only=True, tag="coordinator-beacon"):
    """The coordinator's heartbeat to all edges."""

    coordinator: Id
    protocol: Version = field(default_factory=lambda: PROTOCOL_VERSION)  # never left out
    period_ms: Millis = 5000


class EdgeWelcome(Message, frozen=True, kw_only=True, tag="edge-welcome"):
    """Answer `EdgeHello`: the run and its task; `recipe` is its name, for people."""

    coordinator: Id
    task: Digest
    body: Annotated[bytes, Meta(max_length=65_536)]
    recipe: Name = ""


class GlobalModel(Message, frozen=True, kw_only=True, tag="global"):
    """Adopt this model as the edge model of the run; missing chunks are pulled."""

    digest: Digest
    size: Count
    chunk_bytes: ChunkSize = CHUNK_BYTES
    first: Data = b""


class RoundOpen(Message, frozen=True, kw_only=True, tag="open"):
    """Ask for the columns of this round.

    `known` is how many session ids of `epoch` the coordinator has already.
    """

    epoch: RunId = ""
    known: Count = 0


class Assignment(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One agent's part in the round at this edge."""

    agent: Id
    iterations: Count = 0
    price: Micro = 0
    context_seq: Seq = 0


class RoundOrder(Message, frozen=True, kw_only=True, tag="round-order"):
    """Run the round at this edge (ALGORITHMS section 1).

    Attributes:
        base: Model to start from; empty for the edge's own.
        min_updates: Z; the edge waits for min(Z, ordered) updates.
        max_wait_ms: When the edge gives up, from the order.
        norm_limit: Largest L2 norm of an update; 0 for none.
        want_model: The report shall offer the edge model for merging.
        load_limit_ms: Most computation of the round on a device; 0 for none.
    """

    task: Digest
    assignments: Annotated[tuple[Assignment, ...], Meta(max_length=20_000)]
    deadline_ms: Millis
    max_wait_ms: Millis
    min_updates: Count = 1
    weighting: Weighting = Weighting.SAMPLES
    base: OptionalDigest = ""
    norm_limit: float = 0.0
    max_samples: Count = 1_000_000
    want_model: bool = False
    load_limit_ms: Millis = 0


class ReportReceipt(Message, frozen=True, kw_only=True, tag="report-receipt"):
    """The report of this round is settled, or the round had ended before."""

    too_late: bool = False


class RunEnded(Message, frozen=True, kw_only=True, tag="run-ended"):
    """The run is over; edges and agents wait for the next one."""

    reason: Text = ""


AgentToEdge = (
    Hello
    | ContextReport
    | Decline
    | TaskNeed
    | Need
    | UpdateOffer
    | Chunk
    | Probe
    | ProbeReply
    | Bye
    | Opinion
    | Volunteer
    | PeerSend
)
EdgeToAgent = (
    EdgeBeacon
    | Welcome
    | TrainOrder
    | TaskBody
    | Need
    | Chunk
    | Receipt
    | RoundClosed
    | Probe
    | ProbeReply
    | OpinionCall
    | Neighbours
    | PeerDeliver
)
EdgeToCoordinator = (
    EdgeHello
    | EdgeStatus
    | RoundColumns
    | RoundReport
    | Need
    | Chunk
    | Opinions
    | Volunteers
    | EdgeMoments
)
CoordinatorToEdge = (
    CoordinatorBeacon
    | EdgeWelcome
    | GlobalModel
    | RoundOpen
    | RoundOrder
    | ReportReceipt
    | RunEnded
    | Need
    | Chunk
    | OpinionOpen
    | OpinionClose
    | OpinionsReceipt
)
AnyMessage = AgentToEdge | EdgeToAgent | EdgeToCoordinator | CoordinatorToEdge


def kind(message: Message) -> str:
    """Return the message's tag, which is also the last level of its topic."""
    tag = message.__struct_config__.tag
    assert isinstance(tag, str)
    return tag
