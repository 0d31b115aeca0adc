"""What the runtime asks of the world outside the device's disk: network, trainer, people."""

from dataclasses import dataclass
from pathlib import Path

from fedagent_protocol.messages import AgentToEdge

from .core.effects import CancelTraining, Event, Relink

__all__ = [
    "CancelTraining",
    "Event",
    "OpenStream",
    "Outward",
    "Publish",
    "Relink",
    "StartEvaluation",
    "StartTraining",
    "Subscribe",
    "Unsubscribe",
]


@dataclass(frozen=True, slots=True)
class Publish:
    """Publish a message on a link; the only way for anything to leave the device.

    Attributes:
        qos: 0 where the sender itself repeats what gets lost, and a broker's
            acknowledgement would cost as much again as the message.
    """

    link: str
    topic: str
    message: AgentToEdge
    qos: int = 1


@dataclass(frozen=True, slots=True)
class Subscribe:
    """Subscribe on a link; answer with `AgentRuntime.subscribed`."""

    link: str
    topic: str
    edge: str
    digest: str


@dataclass(frozen=True, slots=True)
class Unsubscribe:
    """Unsubscribe on a link."""

    link: str
    topic: str


@dataclass(frozen=True, slots=True)
class OpenStream:
    """Job for the trainer; answer with `AgentRuntime.stream_opened`."""

    digest: str
    task: bytes
    stream: str
    seed: int
    offset: int
    slow_s: float
    held_out: str = ""


@dataclass(frozen=True, slots=True)
class StartTraining:
    """Job for the trainer; answer with `AgentRuntime.trained`."""

    job: int
    model: Path
    out: Path
    iterations: int
    timeout_s: float
    load_limit_s: float = 0.0


@dataclass(frozen=True, slots=True)
class StartEvaluation:
    """Job for the trainer; answer with `AgentRuntime.evaluated`."""

    job: int
    model: Path
    moments: bool = False


Outward = (
    Publish
    | Subscribe
    | Unsubscribe
    | Relink
    | OpenStream
    | StartTraining
    | StartEvaluation
    | CancelTraining
    | Event
)
