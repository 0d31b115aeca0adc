"""The edge's session with the coordinator: which one is served, and when to write what to it."""

from collections import Counter
from dataclasses import dataclass, field

from fedagent_node.effects import Effect, Emit, OtherVersion, Send, Warn
from fedagent_protocol.messages import (
    PROTOCOL_VERSION,
    CoordinatorBeacon,
    EdgeHello,
    EdgeStatus,
)
from fedagent_protocol.topics import OtherVersions

from .effects import COORDINATOR
from .sessions import AgentSessions
from .settings import EdgeSettings, Memory

STATUS_S = 5.0
CHANGES_WAIT_S = 0.5
"""How long what is new of an agent waits for what is new of others."""
HELLO_AGAIN_S = 1.0
HELLO_SELDOM_S = 5.0
SILENT_S = 15.0
"""Three silent periods of the coordinator's beacon."""


@dataclass(slots=True)
class Upstream:
    """The session.

    Attributes:
        coordinator: The one served now, or last.
        welcomed: It has answered our hello since the connection came up.
        joined: A person was told that it is there.
    """

    settings: EdgeSettings
    memory: Memory
    sessions: AgentSessions
    counters: Counter[str]
    coordinator: str = ""
    welcomed: bool = False
    joined: bool = False
    _heard_at: float = -1e9
    _hello_at: float = 0.0
    _status_at: float = 0.0
    _seq: int = 0
    _others: OtherVersions = field(default_factory=lambda: OtherVersions("edge"))

    def connected(self, now: float) -> list[Effect]:
        """Begin anew: the broker is there."""
        self.welcomed = False
        return [self._hello(now)]

    def refuse(self, other: OtherVersion) -> list[Effect]:
        """Refuse a coordinator of another version; greet it, so that it says so too."""
        line = self._others.refuse(other.sender, other.version)
        if not line:
            return []
        self.counters["protocol_version"] += 1
        return [
            Warn("", f"coordinator {other.sender} {line}"),
            Send(COORDINATOR, self._greeting(), version=other.version),
        ]

    def beacon(self, coordinator: str, beacon: CoordinatorBeacon, now: float) -> list[Effect]:
        """Greet a coordinator that is not served yet, unless another one is."""
        if beacon.coordinator != coordinator or beacon.protocol != PROTOCOL_VERSION:
            self.counters["beacon_not_usable"] += 1
            return []
        if self._serves_another(coordinator, now):
            return []
        if coordinator == self.coordinator or not self.coordinator:
            self._heard_at = now
        return [] if self.welcomed and coordinator == self.coordinator else [self._hello(now)]

    def welcome(self, coordinator: str, now: float) -> list[Effect] | None:
        """Begin the session; None if another coordinator is served."""
        if self._serves_another(coordinator, now):
            return None
        new = not self.joined or coordinator != self.coordinator
        self.coordinator, self.welcomed, self.joined, self._heard_at = coordinator, True, True, now
        return [Emit("coordinator_joined", {"coordinator": coordinator})] if new else []

    def heard(self, now: float) -> None:
        """Note that the coordinator lives."""
        self._heard_at = now

    def changed(self, now: float) -> None:
        """Send a status soon: something of an agent is new."""
        self._status_at = min(self._status_at, now + CHANGES_WAIT_S)

    def run_ended(self, now: float) -> None:
        """Be ready to be welcomed again: the next run may come from the same coordinator."""
        self.welcomed = False
        self._hello_at = now + HELLO_SELDOM_S

    def status(self, now: float) -> Send:
        """Return the heartbeat; what is known of agents is said once."""
        self._seq += 1
        message = EdgeStatus(
            run=self.memory.run,
            seq=self._seq,
            epoch=self.settings.epoch,
            agents=self.sessions.present,
            model=self.memory.model,
            counters=dict(self.counters),
            names=self.sessions.new_names(),
            rent=self.settings.rent_micro,
            devices=self.sessions.changed_devices(now),
        )
        self._status_at = now + (CHANGES_WAIT_S if self.sessions.has_changes else STATUS_S)
        return Send(COORDINATOR, message)

    def tick(self, now: float) -> list[Effect]:
        """Do what is due."""
        effects: list[Effect] = []
        if self.joined and now - self._heard_at > SILENT_S:
            self.welcomed = self.joined = False
            effects.append(Emit("coordinator_lost", {"coordinator": self.coordinator}))
        if not self.welcomed and now >= self._hello_at:
            effects.append(self._hello(now))
        if self.welcomed and now >= self._status_at:
            effects.append(self.status(now))
        return effects

    def next_due(self) -> float:
        """Return when `tick` is wanted."""
        due = self._status_at if self.welcomed else self._hello_at
        return min(due, self._heard_at + SILENT_S + 0.001) if self.joined else due

    def _serves_another(self, coordinator: str, now: float) -> bool:
        """Whether another coordinator is served, which is alive.

        Two coordinators of one site must not tear an edge from each other.
        """
        alive = self.welcomed and now - self._heard_at <= SILENT_S
        if not alive or coordinator == self.coordinator:
            return False
        self.counters["other_coordinator"] += 1
        return True

    def _hello(self, now: float) -> Send:
        near = now - self._heard_at <= SILENT_S
        self._hello_at = now + (HELLO_AGAIN_S if near else HELLO_SELDOM_S)
        return Send(COORDINATOR, self._greeting())

    def _greeting(self) -> EdgeHello:
        return EdgeHello(
            edge=self.settings.edge,
            epoch=self.settings.epoch,
            software=self.settings.software,
            broker=self.settings.broker,
            name=self.settings.name,
            rent=self.settings.rent_micro,
        )
