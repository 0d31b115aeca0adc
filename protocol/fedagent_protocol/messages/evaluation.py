"""Evaluations of a model by clients, and what neighbours send each other through an edge.

`round` of all of these is that of the model: 0 for the model that the run begins with.
docs/opinions.md has the flow.
"""

from typing import Annotated

from msgspec import Meta, field

from .fields import *

Reasons = Annotated[dict[str, Count], Meta(max_length=32)]

# ---------------------------------------------------------------- agent -> edge


class Opinion(Message, frozen=True, kw_only=True, tag="opinion"):
    """How good a model is on samples that nobody has trained on yet."""

    model: Digest
    score: Score = 0.0  # in [0, 1], more is better; as clipped, rounded and noised on the device
    samples: Count = 0  # what it rests on; 0: there is none, and `reason` says why
    metric: Name = ""  # what the score is, such as ``accuracy``
    epsilon: Annotated[float, Meta(ge=0, le=1e6)] = 0.0  # local differential privacy; 0 for none
    reason: Text = ""
    moments: Moments = b""  # of all samples, by `fedagent_task.moments`; mode ``moments`` only
    claim: Claim = b""  # key and signature (`signed`); mode ``report`` only

    def __post_init__(self) -> None:
        check_finite("score and epsilon", self.score, self.epsilon)


class Volunteer(Message, frozen=True, kw_only=True, tag="volunteer"):
    """The sender trains next if it may: all that an edge learns in democratized analytics.

    Repeated until the edge's next order or call shows that it was heard. `claim` is its key and
    its signature of that, at this edge (`signed`).
    """

    claim: Claim = b""


class PeerSend(Message, frozen=True, kw_only=True, tag="peer-send"):
    """Carry sealed bytes to another agent of this edge; `run` stays empty."""

    to: Id
    body: PeerBody


# ---------------------------------------------------------------- edge -> agent


class OpinionCall(Message, frozen=True, kw_only=True, tag="opinion-call"):
    """Ask for an opinion of this model, which is fetched as for an order."""

    task: Digest
    model: Digest
    size: Count
    chunk_bytes: ChunkSize
    until_ms: Millis
    mode: OpinionMode = OpinionMode.REPORT
    slot: Count = 0  # t of the paper, from 1: models evaluated so far in this run, with this one
    trained: bool = False  # the receiver's update is in the model
    signed: MaybeSignature = b""  # the coordinator's signature of the call, as it came to the edge


class Neighbours(Message, frozen=True, kw_only=True, tag="neighbours"):
    """The agents of this edge that the receiver talks with, and how far they are."""

    peers: Annotated[dict[Id, Distance], Meta(max_length=MAX_NEIGHBOURS)] = field(
        default_factory=dict
    )


class PeerDeliver(Message, frozen=True, kw_only=True, tag="peer-deliver"):
    """Bytes that another agent of this edge has sent; the edge cannot read them."""

    sender: Id
    body: PeerBody


# ---------------------------------------------------------- edge -> coordinator


class Opinions(Message, frozen=True, kw_only=True, tag="opinions"):
    """All opinions that came to one edge in time, as little-endian columns.

    Sent when every agent has answered or the time is over, and again until
    `OpinionsReceipt`. A session index is the position of its agent in the edge's list for
    this epoch; `new_ids` are the ids from `known` on. `reasons` counts agents without a row
    by reason: ``late``, ``none``, ``missing``, ...
    """

    epoch: RunId
    model: Digest
    known: Count
    new_ids: Ids
    session: Column  # int32[P]
    score: Column  # float32[P], in [0, 1]
    samples: Column  # int64[P], > 0
    epsilon: Column = b""  # float32[P], 0 where no noise was added; empty if nowhere
    metric: Name = ""  # of all rows; answers with another one are counted in `reasons`
    asked: Crowd = 0  # agents that were called
    reasons: Reasons = field(default_factory=dict)
    claim: Column = b""  # 96 bytes a row, zeros of none; empty if no agent has signed


class EdgeMoments(Message, frozen=True, kw_only=True, tag="moments"):
    """What the samples of all agents at one edge add up to; sent as `Opinions` are.

    `moments` is as `fedagent_task.moments` encodes it, and rests on the samples of `agents`.
    """

    epoch: RunId
    model: Digest
    moments: Moments = b""
    agents: Crowd = 0
    asked: Crowd = 0
    reasons: Reasons = field(default_factory=dict)


class Volunteers(Message, frozen=True, kw_only=True, tag="volunteers"):
    """Who has volunteered at this edge so far (columns as in `Opinions`); the newest counts."""

    epoch: RunId
    known: Count
    new_ids: Ids
    session: Column
    asked: Crowd = 0
    claim: Column = b""


# ---------------------------------------------------------- coordinator -> edge


class OpinionOpen(Message, frozen=True, kw_only=True, tag="opinion-open"):
    """Call all agents for an opinion of this model, which the edge holds or is being sent.

    Idempotent; repeated until the edge has answered.
    """

    model: Digest
    until_ms: Millis
    mode: OpinionMode = OpinionMode.REPORT
    slot: Count = 0
    epoch: RunId = ""
    known: Count = 0  # how many session ids of `epoch` the coordinator has
    trained: Ids = ()  # agents whose updates are in the model; in mode ``peers`` alone
    signed: MaybeSignature = b""  # of the coordinator of a site: `fedagent_protocol.signed`


class OpinionClose(Message, frozen=True, kw_only=True, tag="opinion-close"):
    """The call of this round is over."""


class OpinionsReceipt(Message, frozen=True, kw_only=True, tag="opinions-receipt"):
    """The opinions of this round are booked, or came too late."""
