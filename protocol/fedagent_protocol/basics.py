"""What all messages are made of: checked types, words, and what every message carries."""

from enum import StrEnum
from typing import Annotated, Self

from msgspec import Meta, Struct

CHUNK_BYTES = 256 * 1024
MAX_CHUNK_BYTES = 512 * 1024
MAX_CHUNKS = 65_536
MAX_MICRO = 10**15

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
Millis = Annotated[int, Meta(ge=0, le=30 * 86_400_000)]
Micro = Annotated[int, Meta(ge=0, le=MAX_MICRO)]
ChunkSize = Annotated[int, Meta(ge=1024, le=MAX_CHUNK_BYTES)]
ChunkIndex = Annotated[int, Meta(ge=0, lt=MAX_CHUNKS)]
Data = Annotated[bytes, Meta(max_length=MAX_CHUNK_BYTES)]
Range = tuple[ChunkIndex, Annotated[int, Meta(ge=1, le=MAX_CHUNKS)]]
Ranges = Annotated[tuple[Range, ...], Meta(max_length=1024)]
Column = Annotated[bytes, Meta(max_length=900_000)]
Score = Annotated[float, Meta(ge=0, le=1)]
FeatureName = Annotated[str, Meta(pattern=r"^[a-z][a-z0-9_]{0,31}$")]


PROTOCOL_VERSION = 2
"""Of topics and messages; a peer of another version is refused (docs/protocol.md)."""

Version = Annotated[int, Meta(ge=1, le=1000)]


class OpenEnum(StrEnum):
    """An enumeration that maps words of newer peers to ``other``."""

    @classmethod
    def _missing_(cls, value: object) -> Self:  # noqa: ARG003 - enum's own hook
        return cls("other")


class DeclineReason(OpenEnum):
    """Why an agent does not train although it was ordered to."""

    BUSY = "busy"  # already training for a newer order
    UNAVAILABLE = "unavailable"  # battery, load, metered link, operator
    STALE = "stale"  # the price or the context it was chosen by has changed
    SCHEMA = "schema"  # its stream does not fit the task; the detail names the key
    LOAD = "load"  # not enough compute or memory now
    NO_DATA = "no_data"  # nothing has arrived on its stream yet
    ERROR = "error"  # training failed; the detail names the error
    OTHER = "other"


class ReceiptStatus(OpenEnum):
    """What became of an update; every status ends the transfer.

    An edge promises to report the first two as `Outcome.valid`, which is what is paid.
    """

    ACCEPTED = "accepted"  # valid, by the deadline: paid
    LATE = "late"  # valid, after the deadline and before the close: paid
    TOO_LATE = "too-late"  # after the close: not paid
    REJECTED = "rejected"  # invalid, not paid; `reason` says why
    EXPIRED = "expired"  # of a round or run that this edge did not order it in
    OTHER = "other"


class OutcomeStatus(OpenEnum):
    """How an ordered agent ended the round."""

    ARRIVED = "arrived"  # by the deadline
    LATE = "late"  # after the deadline and before the close
    DECLINED = "declined"
    REJECTED = "rejected"
    MISSED = "missed"  # nothing before the close; what comes later is too late
    GONE = "gone"
    OTHER = "other"


UNANSWERED = "unanswered"
"""Reason of an outcome that was missed by an agent that never showed that it has its order."""


class Weighting(StrEnum):
    """How updates are weighted in the mean (ALGORITHMS section 1)."""

    UNIFORM = "uniform"
    SAMPLES = "samples"


class Message(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="t"):
    """What every message carries.

    Attributes:
        run: The run's uuid as 32 hex digits; empty outside a run.
        round: Round of the run, from 1; 0 outside a round.
        seq: Sender's sequence number.
    """

    run: RunId = ""
    round: Round = 0
    seq: Seq = 0
