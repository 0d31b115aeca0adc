"""An identity that two devices have: both are left out until a person acts."""

from collections import deque
from dataclasses import dataclass, field

from fedagent_node.effects import Effect, Warn

from .sessions import AgentSessions

FLAPS = 5
"""A link that breaks takes its own place once; two devices take each other's for ever."""
WITHIN_S = 120.0
CLONED = (
    "cloned: two devices have its key; revoke the key, or stop one of the devices and restart "
    "the edge"
)
MAX_NOTED = 1000


@dataclass(slots=True)
class Clones:
    """How often sessions of an identity took each other's place; `left_out` is for good."""

    sessions: AgentSessions
    left_out: set[str] = field(default_factory=set)
    _flaps: dict[str, deque[float]] = field(default_factory=dict)

    def taken_over(self, agent: str, now: float) -> list[Effect]:
        """Take in that an agent came while it was connected; an alarm once that is too often."""
        if agent in self.left_out:
            return []
        times = self._flaps.setdefault(agent, deque(maxlen=FLAPS))
        times.append(now)
        while len(self._flaps) > MAX_NOTED:
            del self._flaps[next(iter(self._flaps))]
        if len(times) < FLAPS or now - times[0] > WITHIN_S:
            return []
        del self._flaps[agent]
        self.left_out.add(agent)
        self.sessions.exclude(agent, CLONED)
        return [Warn(agent, CLONED, once=True)]
