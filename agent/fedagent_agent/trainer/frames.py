"""Requests to the trainer process and its replies, as frames on two pipes.

A frame is four bytes of length, big-endian, and that much MessagePack. Tensors travel in files.
The core emits these requests as effects and takes the replies as inputs. No I/O, and no numpy.
"""

from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta, Struct
from msgspec.msgpack import Decoder, Encoder

from fedagent_node.effects import Input, RunJob
from fedagent_protocol.messages import TrainStats

MAX_FRAME_BYTES = 512 * 1024
"""Longest frame; a task has at most a quarter of it, moments less than all."""
PREFIX_BYTES = 4

Text = Annotated[str, Meta(max_length=1000)]
PathText = Annotated[str, Meta(max_length=8192)]


class FrameError(Exception):
    """Raised when bytes on a pipe are no frame of the expected kind; `ended`: none will come."""

    def __init__(self, problem: str, *, ended: bool = False) -> None:
        super().__init__(problem)
        self.ended = ended


class _Frame(Struct, frozen=True, kw_only=True, tag_field="t", omit_defaults=True):
    job: int
    """A reply repeats the number of its request."""


class Open(_Frame, RunJob, frozen=True, kw_only=True, tag="open"):
    """Open the stream for a task, in the place of any other."""

    task: bytes  # canonical bytes of a `TaskSpec`
    stream: PathText
    seed: int  # of the stream's order and of the learner
    offset: int = 0  # position to go on at, as in `Trained.offset`
    mark: Text = ""
    slow_s: float = 0.0
    held_out: PathText = ""
    """Stream for evaluations only; empty: they rest on samples of `stream` not yet learnt from."""
    once: PathText = ""
    """File of the tensors that the task's devices get once; empty where it has none."""
    threads: int = 0  # most threads of a training; 0 for all cores but one


class Train(_Frame, RunJob, frozen=True, kw_only=True, tag="train"):
    """Train from a model, and write the update to `out`, whole or not at all."""

    model: PathText
    small: bytes = b""  # the model, where there is no file of it
    out: PathText
    iterations: int = 0  # rho of each arrival step; 0 leaves it to the learner
    load_limit_s: float = 0.0
    """pi, seconds of computation that this training may take; 0 for no limit."""
    round: int = 0  # what a schedule of the step size counts
    state: PathText = ""
    """What the device keeps of this task in this run, read before and written after."""


class Mask(_Frame, RunJob, frozen=True, kw_only=True, tag="mask"):
    """Put a masked update in the place of the one in this file, as integers of the task's ring."""

    out: PathText
    weight: int
    seeds: tuple[tuple[bytes, int], ...]
    """Keys of the masks, and 1 or -1: whether each is added or taken away."""


class Evaluate(_Frame, RunJob, frozen=True, kw_only=True, tag="evaluate"):
    """Score a model on samples that are not learnt from yet."""

    model: PathText = ""
    small: bytes = b""  # as `Train.small`
    moments: bool = False  # instead of a score, add the samples up; there is no model then
    state: PathText = ""  # as `Train.state`: tensors that stay on the device are scored with


class Cancel(_Frame, RunJob, frozen=True, kw_only=True, tag="cancel"):
    """Give up the training with this number; it answers `Failed(cancelled)`."""


class Opened(_Frame, Input, frozen=True, kw_only=True, tag="opened"):
    """The stream is open and fits the task."""


class Trained(_Frame, Input, frozen=True, kw_only=True, tag="trained"):
    """The update is on disk."""

    digest: str  # SHA-256 of the file, of `size` bytes
    size: int
    stats: TrainStats
    """Without its durations; loss and score are 0 in mode ``peers``, which keeps them."""
    train_s: float = 0.0  # seconds of computation in all steps, without waits
    offset: int = 0  # position of the stream, to resume at
    mark: Text = ""  # what identifies that in which `offset` counts; see `Stream.mark`
    counters: dict[str, int] = {}  # samples dropped or refused since `Open`, by reason
    note: Text = ""  # what the run's operator should know of the samples; see `OpenTask.note`


class Masked(_Frame, Input, frozen=True, kw_only=True, tag="masked"):
    """The masked update is on disk."""

    digest: str
    size: int


class Evaluated(_Frame, Input, frozen=True, kw_only=True, tag="evaluated"):
    """The score of a model, clipped, rounded and noised as the task asks."""

    score: float = 0.0
    samples: int = 0  # what the score rests on; 0: nothing has arrived, and there is no score
    metric: Text = ""
    epsilon: float = 0.0  # local differential privacy that the score costs; 0 for no noise
    counters: dict[str, int] = {}
    moments: bytes = b""  # sums over the samples, where these were asked for


class Failed(_Frame, Input, frozen=True, kw_only=True, tag="failed"):
    """There is no update, no score, or no stream for the task."""

    reason: Text
    """``schema`` (task and stream do not fit), ``cancelled``, ``timeout``, ``no_data``, ``model``
    (the base is not what the task says), ``diverged``, ``norm``, ``stream``, ``not_open``,
    ``disk``, ``memory``, ``privacy`` (noise is wanted and cannot be made), ``died`` or
    ``error``."""
    detail: Text = ""  # one line, without anything of a sample
    offset: int | None = None  # position of the stream, where it is open
    mark: Text = ""
    counters: dict[str, int] = {}


Job = Open | Train | Mask | Evaluate
Request = Job | Cancel
Reply = Opened | Trained | Masked | Evaluated | Failed

F = TypeVar("F")

_encoder = Encoder()
_requests: Decoder[Request] = Decoder(Request)
_replies: Decoder[Reply] = Decoder(Reply)


def encode_frame(message: Request | Reply) -> bytes:
    """Return the message as a frame; `FrameError`: it is too long."""
    body = _encoder.encode(message)
    return _length_of(len(body)).to_bytes(PREFIX_BYTES, "big") + body


def frame_length(prefix: bytes | bytearray) -> int:
    """Return the length that a frame's first four bytes announce; `FrameError`: too long."""
    return _length_of(int.from_bytes(prefix, "big"))


def _length_of(length: int) -> int:
    if length > MAX_FRAME_BYTES:
        raise FrameError(f"a frame of {length} bytes is over {MAX_FRAME_BYTES}")
    return length


def decode_request(body: bytes) -> Request:
    """Decode a frame's body in the trainer."""
    return _decode(_requests, body)


def decode_reply(body: bytes) -> Reply:
    """Decode a frame's body in the agent."""
    return _decode(_replies, body)


def _decode(decoder: Decoder[F], body: bytes) -> F:
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise FrameError("the bytes are no frame of the expected kind") from error


class FrameBuffer:
    """Cut a byte stream into frame bodies; never hold more than one frame's bytes too many."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Add bytes, and return the frames they complete; `FrameError`: one announces too many."""
        self._bytes += data
        frames: list[bytes] = []
        while len(self._bytes) >= PREFIX_BYTES:
            stop = PREFIX_BYTES + frame_length(self._bytes[:PREFIX_BYTES])
            if len(self._bytes) < stop:
                break
            frames.append(bytes(self._bytes[PREFIX_BYTES:stop]))
            del self._bytes[:stop]
        return frames
