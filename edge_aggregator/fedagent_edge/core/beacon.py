"""The edge's heartbeat to the agents: that it is here, and what they may prepare for."""

from dataclasses import dataclass

from fedagent_node.effects import EVERYBODY, Send
from fedagent_protocol.messages import EdgeBeacon

from .state import EdgeState

SETTLING_S = 10.0
SETTLING_BEACON_S = 0.5
"""Agents that start together with the edge hear of it sooner."""
BEACON_S = 2.0
"""Agents drop an edge after three silent periods."""


@dataclass(slots=True)
class Beacon:
    """When it is due, and what it says; `ended` is the run that is over."""

    state: EdgeState
    ended: str = ""
    due: float = 0.0
    _settled_at: float = 0.0

    def lan_up(self, now: float) -> Send:
        """Say at once that the edge is here, and often for a while."""
        self._settled_at = now + SETTLING_S
        return self.send(now)

    def send(self, now: float) -> Send:
        """Return what every agent is told."""
        self.due = now + (SETTLING_BEACON_S if now < self._settled_at else BEACON_S)
        return Send(EVERYBODY, self._beacon(self.state.me.epoch))

    def ask_hello(self, agent: str) -> Send:
        """Have an agent greet that speaks without: as after a restart, which it takes it for."""
        return Send(agent, self._beacon(epoch=""))

    def _beacon(self, epoch: str) -> EdgeBeacon:
        state = self.state
        return EdgeBeacon(
            run=state.memory.run,
            edge=state.me.edge,
            period_ms=round(BEACON_S * 1000),
            epoch=epoch,
            task=self.task,
            crl=state.crl if state.crl_pem else 0,
        )

    @property
    def task(self) -> str:
        """The task that agents may prepare; empty when its run is over."""
        memory = self.state.memory
        return "" if self.ended == memory.run else memory.task
