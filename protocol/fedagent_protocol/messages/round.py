"""A round: columns, orders, updates, receipts and reports.

Durations are milliseconds and always *remaining* or *elapsed*, never instants. Money is
int64 micro-credits.
"""

from typing import Annotated

from msgspec import Meta, Struct, field

from .fields import *
from .session import ContextReport, LedgerHead, TaskClaim

# --------------------------------------------------------------- edge and agent


class TrainOrder(Message, frozen=True, kw_only=True, tag="order"):
    """Order one agent to train, chosen by `price` and `context_seq`.

    Orders rank by (run of the edge, round). `credit` chunks of the update may be sent unasked. The
    work that the agent began in the round `made_in`, from the model `made_from`, is an answer too;
    an agent that has no such work trains anew. A small model comes with the order, as `first`.
    """

    task: Digest
    model: Digest  # the base model, of `size` bytes
    size: Count
    chunk_bytes: ChunkSize
    deadline_ms: Millis
    give_up_ms: Millis  # remaining time until the latest possible close (max_wait)
    iterations: Count = 0  # local iterations rho; 0 leaves it to the learner
    credit: Annotated[int, Meta(ge=0, le=64)] = 1
    price: Micro = 0
    context_seq: Seq = 0
    load_limit_ms: Millis = 0  # most computation of the round; 0 for no limit but the device's own
    made_in: Round = 0
    made_from: OptionalDigest = ""
    releases: Count = 0
    """Updates that this run has had of the agent, where they cost privacy: one that was restored
    from a backup may have given more than it counts itself."""
    first: Data = b""
    assigned: MaybeSignature = b""  # of the coordinator of a site: `fedagent_protocol.signed`
    receipt: "Receipt | None" = None  # of the agent's last update at this edge


class Decline(Message, frozen=True, kw_only=True, tag="decline"):
    """Refuse the order of this round; the edge stops waiting at once."""

    reason: DeclineReason
    detail: Text = ""


class TaskNeed(Message, frozen=True, kw_only=True, tag="task-need"):
    """Ask for the task that an order named."""

    digest: Digest


class TaskBody(Message, frozen=True, kw_only=True, tag="task"):
    """The task of a run, as `fedagent_task.recipe.text.task_bytes` writes it; its recipe's name.

    `chunk_bytes` is how the edge cuts what the task's devices get once (`ModelSpec.once`).
    """

    digest: Digest
    body: Body
    recipe: Name = ""
    chunk_bytes: ChunkSize = CHUNK_BYTES
    claim: TaskClaim | None = None  # of the coordinator, as it came with `edge-welcome`


class TrainCourse(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What strategies and policies ask of a training beyond its mean loss; 0 where not known."""

    base_loss: float = 0.0  # mean loss of the base model on what was learnt from
    loss_rms: float = 0.0  # root mean square of the samples' losses
    local_steps: float = 0.0  # |a| of FedNova: steps of the optimiser, as its momentum counts them

    def __post_init__(self) -> None:
        numbers = (self.base_loss, self.loss_rms, self.local_steps)
        check_finite("base_loss, loss_rms and local_steps", *numbers)


NO_COURSE = TrainCourse()


class TrainStats(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Figures of one training, as the device measured them."""

    num_samples: Count = 0
    arrivals: Count = 0  # samples that came since the last training
    iterations: Count = 0  # rho as it was done: the mean of the arrival steps, rounded
    steps: Count = 0  # arrival steps that were done
    limited: bool = False  # the load limit ended the iterations early
    train_ms: Millis = 0  # computation alone; `lc_ms` has the waits for arrivals in it
    dt_ms: Millis = 0  # download time, from the order to having the model
    lc_ms: Millis = 0  # local computation time
    seconds_per_iteration: float = 0.0
    loss: float = 0.0  # mean over the training; 0 where it is not known or stays on the device
    score: Score = 0.0  # of the base model on samples that are new to it: docs/agent.md
    score_n: Count = 0
    prepare_ms: Millis = 0  # from having the model to the training: the start of a trainer
    course: TrainCourse = NO_COURSE

    def __post_init__(self) -> None:
        numbers = (self.loss, self.seconds_per_iteration, self.score)
        check_finite("loss, seconds_per_iteration and score", *numbers)


NO_STATS = TrainStats()
"""Of an agent without an update; the one object that is never sent."""


Hash = Annotated[bytes, Meta(min_length=32, max_length=32)]
Agreed = Annotated[bytes, Meta(max_length=64)]


class UpdateOffer(Message, frozen=True, kw_only=True, tag="update"):
    """Offer a finished update: what it is, how it came to be, and its first chunk."""

    digest: Digest  # of the safetensors bytes
    size: Count
    chunk_bytes: ChunkSize
    base: Digest  # the model that the float32 delta starts from
    task: Digest
    stats: TrainStats
    first: Data = b""  # chunk 0, when the order gave credit for it
    context: ContextReport | None = None  # where something moved: it saves a message
    note: Text = ""  # a warning about the device's samples
    claim: Claim = b""  # public key and signature: `fedagent_protocol.signed`
    made_in: Round = 0  # the earlier round in which it was begun; 0: this one
    agreed: Agreed = b""  # where it is masked: the device's signature of the cohort


class Receipt(Message, frozen=True, kw_only=True, tag="receipt"):
    """The edge holds the update durably, or will never want it."""

    digest: Digest
    status: ReceiptStatus
    reason: Text = ""


class RoundClosed(Message, frozen=True, kw_only=True, tag="closed"):
    """The round is over: an agent that still works on it may stop.

    With `kept` a later order of the edge may ask for the rest: the agent keeps what it has.
    """

    kept: bool = False


# --------------------------------------------------------- edge and coordinator


class RoundOpen(Message, frozen=True, kw_only=True, tag="open"):
    """Ask for the columns of this round; `known` session ids of `epoch` are known already."""

    epoch: RunId = ""
    known: Count = 0


class RoundColumns(Message, frozen=True, kw_only=True, tag="columns"):
    """All fresh contexts at one edge, as little-endian columns (`columns.py`).

    A session index is the position of its agent in the edge's list for this epoch, of which
    `new_ids` are those from `known` on.
    """

    epoch: RunId
    known: Count
    new_ids: Ids
    features: Annotated[tuple[FeatureName, ...], Meta(max_length=32)]
    session: Column
    price: Column
    context_seq: Column
    age_ms: Column
    available: Column
    values: Column
    model: OptionalDigest = ""
    claim: Column = b""  # 96 bytes a row, zeros of none; empty if no agent has signed its terms


class Assignment(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One agent's part in the round at this edge."""

    agent: Id
    iterations: Count = 0
    price: Micro = 0
    context_seq: Seq = 0
    releases: Count = 0  # updates of the agent that this run has had, where they cost privacy
    assigned: MaybeSignature = b""  # of the coordinator of a site, as in the order


class RoundOrder(Message, frozen=True, kw_only=True, tag="round-order"):
    """Run the round at this edge (ALGORITHMS section 1)."""

    task: Digest
    assignments: Annotated[tuple[Assignment, ...], Meta(max_length=MAX_AGENTS)]
    deadline_ms: Millis
    max_wait_ms: Millis
    min_updates: Count = 1  # Z; the edge waits for min(Z, ordered) updates
    weighting: Weighting = Weighting.SAMPLES
    base: OptionalDigest = ""  # model to start from; empty for the edge's own
    norm_limit: float = 0.0  # largest L2 norm of an update; 0 for none
    max_samples: Count = 1_000_000
    want_bytes: Count = 0  # of the edge model, for merging: what the link carries in a second
    load_limit_ms: Millis = 0  # most computation of the round on a device; 0 for none


class WorkProof(Struct, frozen=True, kw_only=True, array_like=True):
    """What shows that an agent did the work of a round: its claim, and what this names."""

    update: Hash  # SHA-256 of the update, of `size` bytes
    size: Count
    base: Hash  # of the model that it starts from
    public: Hash  # the agent's raw Ed25519 key
    signature: Signature


class Outcome(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How one ordered agent ended the round."""

    agent: Id
    status: OutcomeStatus
    in_time: bool = False  # X of the algorithms: a valid update before the deadline
    used: bool = False  # it is part of the aggregate
    valid: bool = False  # a valid update came before the close; this is what is paid
    weight: float = 0.0
    tau_ms: Millis = 0  # order to whole valid update; when `censored`, the time waited
    censored: bool = False
    ut_ms: Millis = 0
    norm: float = 0.0
    stats: TrainStats = NO_STATS  # as offered, no duration longer than the edge measured
    reason: Text = ""  # why there is no valid update; of one, its `note`
    proof: WorkProof | None = None  # of a valid update
    made_in: Round = 0  # the earlier round in which the update was begun; 0: this one

    def __post_init__(self) -> None:
        check_finite("weight and norm", self.weight, self.norm)


class RoundReport(Message, frozen=True, kw_only=True, tag="report"):
    """The round at this edge, closed. Repeated until `ReportReceipt`."""

    epoch: RunId
    outcomes: Annotated[tuple[Outcome, ...], Meta(max_length=MAX_AGENTS)]
    failed: Text = ""  # why the edge kept its model; empty when it has a new one
    model: OptionalDigest = ""  # the edge model after the round, of `size` bytes
    size: Count = 0
    chunk_bytes: ChunkSize = CHUNK_BYTES
    used: Count = 0
    weight: float = 0.0
    first: Data = b""  # its chunk 0, when the order asked for the model
    local_steps: float = 0.0  # FedNova's effective steps of this edge; 0 with other strategies
    timing_ms: Annotated[dict[str, float], Meta(max_length=32)] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_finite("weight and timing_ms", self.weight, *self.timing_ms.values())


class ReportReceipt(Message, frozen=True, kw_only=True, tag="report-receipt"):
    """The report of this round is settled, or came after the round was.

    `unpaid` are agents that it calls valid and the settled round does not pay. The edge keeps
    `head`: it is a witness of what the ledger said.
    """

    too_late: bool = False
    unpaid: Annotated[tuple[Id, ...], Meta(max_length=MAX_AGENTS)] = ()
    head: LedgerHead | None = None


class GlobalModel(Message, frozen=True, kw_only=True, tag="global"):
    """Adopt this model as the edge model of the run; missing chunks are pulled."""

    digest: Digest
    size: Count
    chunk_bytes: ChunkSize = CHUNK_BYTES
    first: Data = b""
