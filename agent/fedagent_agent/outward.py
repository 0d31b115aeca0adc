"""What the runtime asks of the world outside the device's disk: network, trainer, people."""

from dataclasses import dataclass

from fedagent_protocol.messages import AgentToEdge

from .core.effects import Event, Relink
from .trainer.frames import Cancel, Evaluate, Open, Train


@dataclass(frozen=True, slots=True)
class Publish:
    """Publish a message on a link; the only way for anything to leave the device."""

    link: str
    topic: str
    message: AgentToEdge
    qos: int = 1
    """0 where the sender itself repeats what gets lost, and a broker's acknowledgement would
    cost as much again as the message."""


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


Outward = Publish | Subscribe | Unsubscribe | Relink | Open | Train | Evaluate | Cancel | Event
