"""What clients think of a model, and what neighbours tell each other through an edge.

`round` of all of these is that of the model: 0 for the model that the run begins with.
In federated analytics (mode ``report``) opinions go up; in democratized analytics (mode
``peers``) only the word that an agent volunteers does, and sealed envelopes pass sideways.
docs/opinions.md tells the flow. Part of `messages`.
"""

import math
from enum import StrEnum
from typing import Annotated

from msgspec import Meta, field

from .basics import (
    ChunkSize,
    Column,
    Count,
    Digest,
    Id,
    Message,
    Millis,
    Name,
    RunId,
    Score,
    Text,
)

MAX_NEIGHBOURS = 64
MAX_MOMENTS_BYTES = 200_000
"""Count, sums and squares of as many features as a task can name, and more."""
MAX_PEER_BYTES = 66_600
"""Largest relayed envelope: a sealed packet of `peers` and its envelope."""

Moments = Annotated[bytes, Meta(max_length=MAX_MOMENTS_BYTES)]
Distance = Annotated[float, Meta(ge=0, le=1e9)]


class OpinionMode(StrEnum):
    """What becomes of an opinion."""

    REPORT = "report"  # it goes to the coordinator
    MOMENTS = "moments"  # no opinion: count, sums and squares of the samples
    PEERS = "peers"  # it stays on the device; neighbours find out who volunteers


# --- agent -> edge ---------------------------------------------------------


class Opinion(Message, frozen=True, kw_only=True, tag="opinion"):
    """Say how good a model is on samples that nobody has learnt from yet.

    Attributes:
        score: In [0, 1], more is better; as clipped, rounded and noised on the device.
        samples: What it rests on; 0: there is none, and `reason` says why.
        metric: What the score is, such as ``accuracy``.
        epsilon: Local differential privacy of this answer; 0 for none.
        moments: Of all samples, as `fedagent_task.moments` encodes them; mode ``moments`` only.
    """

    model: Digest
    score: Score = 0.0
    samples: Count = 0
    metric: Name = ""
    epsilon: Annotated[float, Meta(ge=0, le=1e6)] = 0.0
    reason: Text = ""
    moments: Moments = b""

    def __post_init__(self) -> None:
        """Refuse NaN and infinities, which MessagePack lets through."""
        if not (math.isfinite(self.score) and math.isfinite(self.epsilon)):
            raise ValueError("score and epsilon must be finite")


class Volunteer(Message, frozen=True, kw_only=True, tag="volunteer"):
    """The sender trains next if it may: all that democratized analytics tells an edge.

    Said again until the edge's next order or call shows that it was heard.
    """


class PeerSend(Message, frozen=True, kw_only=True, tag="peer-send"):
    """Carry sealed bytes to another agent of this edge; `run` stays empty."""

    to: Id
    body: Annotated[bytes, Meta(max_length=MAX_PEER_BYTES)]


# --- edge -> agent ---------------------------------------------------------


class OpinionCall(Message, frozen=True, kw_only=True, tag="opinion-call"):
    """Ask for an opinion of this model, whoever has trained it.

    Attributes:
        model: Digest of the model, of `size` bytes in `chunk_bytes` chunks; fetched as
            for an order.
        until_ms: Remaining time in which an answer counts.
        mode: Whether to report, or to agree with neighbours.
        slot: t of the paper, from 1: models evaluated so far in this run, with this one.
        trained: The receiver's update is in the model.
    """

    task: Digest
    model: Digest
    size: Count
    chunk_bytes: ChunkSize
    until_ms: Millis
    mode: OpinionMode = OpinionMode.REPORT
    slot: Count = 0
    trained: bool = False


class Neighbours(Message, frozen=True, kw_only=True, tag="neighbours"):
    """Name the agents of this edge that the receiver is to talk with, and how far they are."""

    peers: Annotated[dict[Id, Distance], Meta(max_length=MAX_NEIGHBOURS)] = field(
        default_factory=dict
    )


class PeerDeliver(Message, frozen=True, kw_only=True, tag="peer-deliver"):
    """Bytes that another agent of this edge has sent; the edge cannot read them."""

    sender: Id
    body: Annotated[bytes, Meta(max_length=MAX_PEER_BYTES)]


# --- edge -> coordinator ---------------------------------------------------


class Opinions(Message, frozen=True, kw_only=True, tag="opinions"):
    """All opinions that came to one edge in time, as little-endian columns.

    Sent when every agent has answered or the time is over, and again until
    `OpinionsReceipt`. A session index is the position of its agent in the edge's list for
    this epoch; `new_ids` are the ids from `known` on.

    Attributes:
        session: int32[P].
        score: float32[P], in [0, 1].
        samples: int64[P], > 0.
        epsilon: float32[P], 0 where no noise was added; empty if nowhere.
        metric: Of all rows; answers with another one are counted in `reasons`.
        asked: Agents that were called.
        reasons: Agents without a row, by reason: ``late``, ``none``, ``missing``, ...
    """

    epoch: RunId
    model: Digest
    known: Count
    new_ids: Annotated[tuple[Id, ...], Meta(max_length=20_000)]
    session: Column
    score: Column
    samples: Column
    epsilon: Column = b""
    metric: Name = ""
    asked: Count = 0
    reasons: Annotated[dict[str, int], Meta(max_length=32)] = field(default_factory=dict)


class EdgeMoments(Message, frozen=True, kw_only=True, tag="moments"):
    """What the samples of all agents at one edge add up to; sent as `Opinions` are.

    Attributes:
        moments: As `fedagent_task.moments` encodes them; empty if nobody had samples.
        agents: Whose they are.
        asked, reasons: As in `Opinions`.
    """

    epoch: RunId
    model: Digest
    moments: Moments = b""
    agents: Count = 0
    asked: Count = 0
    reasons: Annotated[dict[str, int], Meta(max_length=32)] = field(default_factory=dict)


class Volunteers(Message, frozen=True, kw_only=True, tag="volunteers"):
    """Who has volunteered at this edge so far; the newest replaces those before it.

    Attributes:
        session: int32[P], as in `Opinions`.
        asked: Agents that were called.
    """

    epoch: RunId
    known: Count
    new_ids: Annotated[tuple[Id, ...], Meta(max_length=20_000)]
    session: Column
    asked: Count = 0


# --- coordinator -> edge ---------------------------------------------------


class OpinionOpen(Message, frozen=True, kw_only=True, tag="opinion-open"):
    """Call everybody for an opinion of this model, which the edge holds or is being sent.

    Idempotent: said again until the edge has answered.

    Attributes:
        known: How many session ids of `epoch` the coordinator has.
        trained: Agents whose updates are in the model; in mode ``peers``, where nobody
            else can know.
    """

    model: Digest
    until_ms: Millis
    mode: OpinionMode = OpinionMode.REPORT
    slot: Count = 0
    epoch: RunId = ""
    known: Count = 0
    trained: Annotated[tuple[Id, ...], Meta(max_length=20_000)] = ()


class OpinionClose(Message, frozen=True, kw_only=True, tag="opinion-close"):
    """Nothing is wanted of this round's call any more."""


class OpinionsReceipt(Message, frozen=True, kw_only=True, tag="opinions-receipt"):
    """The opinions of this round are booked, or came too late."""
