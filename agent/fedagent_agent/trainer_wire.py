"""What the agent and its trainer process say to each other over two pipes.

A frame is four bytes of length, big-endian, and that much MessagePack. Tensors go
by file. This module imports no numpy: the agent itself does not need it.
"""

from typing import Annotated

import msgspec
from msgspec import Meta, Struct
from msgspec.msgpack import Decoder, Encoder

MAX_FRAME_BYTES = 256 * 1024
"""Longest frame; a task has at most a quarter of it, moments less than all."""

_PREFIX = 4

Text = Annotated[str, Meta(max_length=1000)]
PathText = Annotated[str, Meta(max_length=8192)]


class TrainerWireError(Exception):
    """Raised when bytes on a pipe are no frame of the expected kind."""


class _Frame(Struct, frozen=True, kw_only=True, tag_field="t", omit_defaults=True):
    """What every frame carries: the number that its answer repeats."""

    job: int


class Open(_Frame, frozen=True, kw_only=True, tag="open"):
    """Take this task, and open the stream for it.

    Attributes:
        task: Canonical bytes of a `TaskSpec`.
        stream: Description of the stream, as a person writes it.
        offset: Where to go on in the stream, as `Trained.offset` said.
        slow_s: Extra seconds of every training; for demos and tests.
        held_out: Description of a stream that is only evaluated by; empty: opinions rest on
            what of `stream` is not learnt from yet.
    """

    task: bytes
    stream: PathText
    seed: int
    offset: int = 0
    slow_s: float = 0.0
    held_out: PathText = ""


class Train(_Frame, frozen=True, kw_only=True, tag="train"):
    """Train from the model file, and write the update to `out`.

    Attributes:
        iterations: rho of each arrival step; 0 leaves it to the learner.
        load_limit_s: pi, seconds of computation that this training may take; 0 for no limit.
    """

    model: PathText
    out: PathText
    iterations: int = 0
    load_limit_s: float = 0.0


class EvaluationRequest(_Frame, frozen=True, kw_only=True, tag="evaluate"):
    """Score the model file on what has arrived and is not learnt from yet.

    Attributes:
        moments: No score is wanted, but what the samples add up to; there is no file then.
    """

    model: PathText
    moments: bool = False


class Cancel(_Frame, frozen=True, kw_only=True, tag="cancel"):
    """Give up the training with this number; it answers `Failed(cancelled)`."""


class Stop(_Frame, frozen=True, kw_only=True, tag="stop"):
    """End the process."""


class Opened(_Frame, frozen=True, kw_only=True, tag="opened"):
    """The stream is open and fits the task.

    Attributes:
        labels: Labels that can come, as far as the stream knows them.
    """

    features: int
    dtype: str
    labels: tuple[int, ...] = ()


class Refused(_Frame, frozen=True, kw_only=True, tag="refused"):
    """The stream does not fit the task; `key` is the recipe's or the stream's."""

    key: Text
    detail: Text


class Trained(_Frame, frozen=True, kw_only=True, tag="trained"):
    """The update is on disk.

    Attributes:
        digest: SHA-256 of the file, of `size` bytes.
        num_samples: Samples that the update rests on.
        iterations: rho as it was done: the mean of the arrival steps, rounded.
        seconds: From the request to the file on disk.
        seconds_per_iteration: Of the learning alone.
        arrivals: Samples that came since the last training.
        loss: Mean loss over the training; 0 where it is not finite, and in mode ``peers``,
            in which nobody else is told of it.
        norm: L2 norm of the update over all tensors.
        offset: Position of the stream, to resume at.
        counters: Samples dropped or refused since `open`, by reason.
        steps: Arrival steps that were done.
        train_s: Seconds of computation in all of them; waits are left out.
        limited: The load limit ended the iterations early.
        score: Of the base model on `score_n` new samples, in [0, 1]; see `evaluation`.
        note: What whoever runs the federation should know of the samples; see `spread`.
    """

    digest: str
    size: int
    num_samples: int
    iterations: int
    seconds: float
    seconds_per_iteration: float
    arrivals: int
    loss: float
    norm: float
    offset: int = 0
    counters: dict[str, int] = {}
    steps: int = 1
    train_s: float = 0.0
    limited: bool = False
    score: float = 0.0
    score_n: int = 0
    note: Text = ""

    @property
    def arrivals_per_step(self) -> float:
        """Samples that an arrival step brought, on average."""
        return self.arrivals / max(1, self.steps)


class EvaluationResult(_Frame, frozen=True, kw_only=True, tag="evaluated"):
    """What the device thinks of a model, as the task wants it clipped, rounded and noised.

    Attributes:
        score: In [0, 1].
        samples: What it rests on; 0: nothing has arrived, and there is no score.
        metric: What the score is.
        epsilon: Local differential privacy that the answer costs; 0 for no noise.
        counters: As those of `Trained`.
        moments: Of the samples, where these were asked for.
    """

    score: float = 0.0
    samples: int = 0
    metric: Text = ""
    epsilon: float = 0.0
    counters: dict[str, int] = {}
    moments: bytes = b""


class Failed(_Frame, frozen=True, kw_only=True, tag="failed"):
    """There is no update, or no opinion.

    Attributes:
        reason: ``cancelled``, ``timeout``, ``no_data``, ``model`` (the base is not
            what the task says), ``diverged``, ``norm``, ``stream``, ``not_open``,
            ``disk``, ``memory``, ``privacy`` (noise is wanted and cannot be made), ``died``
            or ``error``.
        detail: One line, without anything of a sample.
        offset: Position of the stream, where it is open.
        counters: As those of `Trained`.
    """

    reason: Text
    detail: Text = ""
    offset: int | None = None
    counters: dict[str, int] = {}


Request = Open | Train | EvaluationRequest | Cancel | Stop
Reply = Opened | Refused | Trained | EvaluationResult | Failed

_encoder = Encoder()
_requests: Decoder[Request] = Decoder(Request)
_replies: Decoder[Reply] = Decoder(Reply)


def encode_frame(message: Request | Reply) -> bytes:
    """Return the message as a frame.

    Raises:
        TrainerWireError: It is longer than a frame may be.
    """
    body = _encoder.encode(message)
    if len(body) > MAX_FRAME_BYTES:
        raise TrainerWireError(f"a frame of {len(body)} bytes is over {MAX_FRAME_BYTES}")
    return len(body).to_bytes(_PREFIX, "big") + body


def frame_length(prefix: bytes | bytearray) -> int:
    """Return the length that a frame's first four bytes announce, within the limit."""
    length = int.from_bytes(prefix, "big")
    if length > MAX_FRAME_BYTES:
        raise TrainerWireError(f"a frame of {length} bytes is over {MAX_FRAME_BYTES}")
    return length


def decode_request(body: bytes) -> Request:
    """Decode what the agent asked."""
    try:
        return _requests.decode(body)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise TrainerWireError("the bytes are no request") from error


def decode_reply(body: bytes) -> Reply:
    """Decode what the trainer answered."""
    try:
        return _replies.decode(body)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise TrainerWireError("the bytes are no reply") from error


class FrameBuffer:
    """Cut a byte stream into frame bodies; never holds more than one frame's bytes too many."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Add bytes, and return the frames that they complete.

        Raises:
            TrainerWireError: A frame announces more than the limit.
        """
        self._bytes += data
        frames: list[bytes] = []
        while len(self._bytes) >= _PREFIX:
            stop = _PREFIX + frame_length(self._bytes[:_PREFIX])
            if len(self._bytes) < stop:
                break
            frames.append(bytes(self._bytes[_PREFIX:stop]))
            del self._bytes[:stop]
        return frames
