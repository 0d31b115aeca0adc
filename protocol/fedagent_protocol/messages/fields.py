"""What messages are made of: checked types, words, and what every message carries."""

import math
from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct

PROTOCOL_VERSION = 3
"""Of topics and messages; a peer of another version is refused (docs/protocol.md)."""
CHUNK_BYTES = 32 * 1024
"""What is asked for and kept apart; a message carries several that follow each other."""
MAX_CHUNK_BYTES = 512 * 1024
MAX_CHUNKS = 65_536
MAX_AGENTS = 20_000
"""At one edge."""
MAX_MICRO = 10**15
MAX_NEIGHBOURS = 64
MAX_ROUNDS_AHEAD = 1 << 20
"""Farther ahead of what a peer said at the welcome, a round is damage: it would end all others."""
MAX_MOMENTS_BYTES = 200_000
"""Count, sums and squares of as many features as a task can name, and more."""
MAX_PEER_BYTES = 66_600
"""Largest relayed envelope: a sealed packet of `peers` and its header."""

Id = Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9-]{0,63}$")]
RunId = Annotated[str, Meta(pattern=r"^([0-9a-f]{32})?$")]
Digest = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$")]
OptionalDigest = Annotated[str, Meta(pattern=r"^([0-9a-f]{64})?$")]
Text = Annotated[str, Meta(max_length=500)]
Name = Annotated[str, Meta(max_length=100)]
Short = Annotated[str, Meta(max_length=64)]
Reason = Annotated[str, Meta(max_length=200)]
Round = Annotated[int, Meta(ge=0, lt=2**53)]
Seq = Annotated[int, Meta(ge=0, le=2**62)]
Count = Annotated[int, Meta(ge=0, lt=2**53)]
Crowd = Annotated[int, Meta(ge=0, le=MAX_AGENTS)]
Millis = Annotated[int, Meta(ge=0, le=30 * 86_400_000)]
Micro = Annotated[int, Meta(ge=0, le=MAX_MICRO)]
Score = Annotated[float, Meta(ge=0, le=1)]
Distance = Annotated[float, Meta(ge=0, le=1e9)]
FeatureName = Annotated[str, Meta(pattern=r"^[a-z][a-z0-9_]{0,31}$")]
ChunkSize = Annotated[int, Meta(ge=1024, le=MAX_CHUNK_BYTES)]
ChunkIndex = Annotated[int, Meta(ge=0, lt=MAX_CHUNKS)]
Data = Annotated[bytes, Meta(max_length=MAX_CHUNK_BYTES)]
Range = tuple[ChunkIndex, Annotated[int, Meta(ge=1, le=MAX_CHUNKS)]]
Ranges = Annotated[tuple[Range, ...], Meta(max_length=1024)]
Column = Annotated[bytes, Meta(max_length=900_000)]
Ids = Annotated[tuple[Id, ...], Meta(max_length=MAX_AGENTS)]
Body = Annotated[bytes, Meta(max_length=131_072)]
Claim = Annotated[bytes, Meta(max_length=96)]
"""A raw Ed25519 key and a signature."""
Signature = Annotated[bytes, Meta(min_length=64, max_length=64)]
MaybeSignature = Annotated[bytes, Meta(max_length=64)]
Moments = Annotated[bytes, Meta(max_length=MAX_MOMENTS_BYTES)]
PeerBody = Annotated[bytes, Meta(max_length=MAX_PEER_BYTES)]


class DeclineReason(StrEnum):
    """Why an agent does not train although it was ordered to."""

    BUSY = "busy"  # already training for a newer order
    UNAVAILABLE = "unavailable"  # battery, load, metered link, operator
    STALE = "stale"  # the price or the context it was chosen by has changed
    SCHEMA = "schema"  # its stream does not fit the task; the detail names the key
    LOAD = "load"  # not enough compute or memory now
    NO_DATA = "no_data"  # nothing has arrived on its stream yet
    PRIVACY = "privacy"  # its epsilon of this run is used up, or noise cannot be accounted for
    UNSIGNED = "unsigned"  # its site's coordinator has signed no such task, or assignment
    ERROR = "error"  # training failed; the detail names the error


class ReceiptStatus(StrEnum):
    """What became of an update; every status ends the transfer.

    An edge promises to report the first two as `Outcome.valid`, which is what is paid, unless the
    device's shares of a masked round prove false later. Where it is not paid all the same, `VOID`
    follows.
    """

    ACCEPTED = "accepted"  # valid, by the deadline: paid
    LATE = "late"  # valid, after the deadline and before the close: paid
    TOO_LATE = "too-late"  # after the close: not paid
    REJECTED = "rejected"  # invalid, not paid; `reason` says why
    EXPIRED = "expired"  # the edge knows no such order, or none any more: no word on payment
    VOID = "void"  # valid, but the coordinator settled the round without it: not paid


class OutcomeStatus(StrEnum):
    """How an ordered agent ended the round."""

    ARRIVED = "arrived"  # by the deadline
    LATE = "late"  # after the deadline and before the close
    DECLINED = "declined"
    REJECTED = "rejected"
    MISSED = "missed"  # nothing before the close, or after max_wait: too late
    GONE = "gone"


UNANSWERED = "unanswered"
"""Reason of an outcome that was missed by an agent that never showed that it has its order."""
LEFT = "left"
"""Reason of an agent that is gone; with any other, its edge did not order it at all."""
STARTS_BITS = 32
"""The number of an agent's report is starts * 2^32 + n: it grows over restarts."""


class Weighting(StrEnum):
    """How updates are weighted in the mean (ALGORITHMS section 1)."""

    UNIFORM = "uniform"
    SAMPLES = "samples"


class OpinionMode(StrEnum):
    """What becomes of an opinion."""

    REPORT = "report"  # it goes to the coordinator
    MOMENTS = "moments"  # no opinion: count, sums and squares of the samples
    PEERS = "peers"  # it stays on the device; neighbours find out who volunteers


class Message(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="t"):
    """What every message carries: run and round are empty and 0 outside of one.

    `seq` is the sender's sequence number.
    """

    run: RunId = ""
    round: Round = 0
    seq: Seq = 0


def check_finite(what: str, *numbers: float) -> None:
    """Refuse NaN and infinities, which MessagePack lets through."""
    if not all(map(math.isfinite, numbers)):
        raise ValueError(f"{what} must be finite")
