"""What the runtime hands to its surroundings: messages to send, and work to do."""

from collections.abc import Callable
from dataclasses import dataclass

from fedagent_protocol.messages import Chunk, EdgeToAgent, EdgeToCoordinator

from .core.effects import Event, Note


@dataclass(frozen=True, slots=True)
class SendAgent:
    """Publish to an agent, or as beacon to everybody when `agent` is empty."""

    agent: str
    message: EdgeToAgent


@dataclass(frozen=True, slots=True)
class SendCoordinator:
    """Publish to the coordinator."""

    message: EdgeToCoordinator


@dataclass(frozen=True, slots=True)
class PublishModel:
    """Publish a chunk on the model's topic."""

    digest: str
    chunk: Chunk


@dataclass(frozen=True, slots=True)
class DiskError:
    """What a job returns when the disk refused."""

    detail: str


@dataclass(frozen=True, slots=True)
class Job:
    """Work on a model of `size` bytes.

    Run `work` anywhere, jobs one after the other in the order given, and hand its
    result to `done` where the runtime lives.
    """

    name: str
    size: int
    work: Callable[[], object]
    done: Callable[[object, float], "list[Outward]"]


Outward = SendAgent | SendCoordinator | PublishModel | Job | Event | Note
