"""What the parts of an edge share."""

from collections import Counter
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, field

from fedagent_edge.config import EdgeConfig
from fedagent_protocol.messages import EdgeHello
from fedagent_protocol.transfer import Layout
from fedagent_task.secure_aggregation.roster import Trusted, anybody

from .effects import Memory, SaveState
from .sessions import AgentSessions


@dataclass(slots=True)
class EdgeState:
    """The edge itself: `me` as coordinators see it, `memory` as it is saved when it matters.

    With `once_held` the disk has what the task's devices get once.
    """

    config: EdgeConfig
    me: EdgeHello
    memory: Memory
    counters: Counter[str] = field(default_factory=Counter)
    once_held: bool = False
    trouble: str = ""
    """Why the edge takes no part, in the disk's words; empty if it does."""
    crl: int = 0
    """Number of the list of the revoked that is gone by."""
    crl_pem: bytes = b""
    site_members: Callable[[], Trusted] = lambda: anybody
    """Opens the check of who may be in a masked round, with the certificates of now."""
    offered_bytes: int = 0  # size of the model that was offered last
    sessions: AgentSessions = field(init=False)

    def __post_init__(self) -> None:
        self.sessions = AgentSessions(self.me.epoch)

    @property
    def layout(self) -> Layout:
        """How the edge's model is cut."""
        return Layout(self.memory.model_bytes, self.config.chunk_bytes)

    @property
    def patience_s(self) -> float:
        """How long a model waits for agents that have not answered."""
        return self.config.need_wait_ms / 1000

    def save(self) -> SaveState:
        """Store what is in the memory now."""
        return SaveState(copy(self.memory))
