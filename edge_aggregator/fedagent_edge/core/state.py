"""What the parts of an edge's core share."""

from collections import Counter
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, field

from fedagent_edge.config import EdgeConfig
from fedagent_node.effects import Effect
from fedagent_node.timers import Timers
from fedagent_protocol.messages import EdgeHello
from fedagent_protocol.transfer import Layout
from fedagent_task.secure_aggregation.keys import Trusted, anybody

from .effects import Memory, Save
from .round import Client, Phase, Round
from .sessions import AgentSessions


def wake(_: float) -> list[Effect]:
    """Do nothing, as a timer: rounds and evaluations are looked at whenever time has passed."""
    return []


@dataclass(slots=True)
class EdgeState:
    """The edge itself: `me` as coordinators see it, `memory` as it is saved when it matters."""

    config: EdgeConfig
    me: EdgeHello
    memory: Memory
    counters: Counter[str] = field(default_factory=Counter)
    once_held: str = ""  # digest of what the task's devices get once, when it is on the disk
    trouble: str = ""  # why the edge takes no part, in the disk's words
    crl: int = 0  # number of the list of the revoked that is gone by
    crl_pem: bytes = b""
    site_members: Callable[[], Trusted] = lambda: anybody
    """Opens the check of who may be in a masked round, with the certificates of now."""
    offered_bytes: int = 0  # size of the model that was offered last
    round: Round | None = None  # the newest
    timers: Timers = field(default_factory=Timers)
    sessions: AgentSessions = field(init=False)

    def __post_init__(self) -> None:
        self.sessions = AgentSessions(self.me.epoch)

    def layout(self, size: int) -> Layout:
        """Return how the edge cuts what it sends."""
        return Layout(size, self.config.chunk_bytes)

    def save(self) -> Save:
        """Store what is in the memory now."""
        return Save(copy(self.memory))

    @property
    def live(self) -> Round | None:
        """The newest round, if it is not reported yet."""
        rnd = self.round
        return None if rnd is None or rnd.phase is Phase.OVER else rnd

    def named(self, run: str, number: int) -> Round | None:
        """Return the live round if this is its name."""
        rnd = self.live
        return rnd if rnd is not None and rnd.name == (run, number) else None

    def client(self, agent: str) -> Client | None:
        """Return an agent's part in the open round."""
        rnd = self.round
        return rnd.clients.get(agent) if rnd is not None and rnd.phase is Phase.OPEN else None
