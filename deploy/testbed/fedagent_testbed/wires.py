"""Brokers of the virtual world: who is connected where, and who hears which topic."""

from collections.abc import Callable
from dataclasses import dataclass, field

from .kernel import Network

WAN = "wan"

Receive = Callable[[str, str, bytes], None]


def lan(edge: str) -> str:
    """Return the name of an edge's own broker."""
    return f"lan-{edge}"


@dataclass
class Wires:
    """All brokers: clean sessions, and nothing is kept for who is not there.

    Attributes:
        deliver: How each member takes (link, topic, payload), alive or not.
        defer: How each member does something a moment later.
    """

    network: Network
    deliver: dict[str, Receive] = field(default_factory=dict)
    defer: dict[str, Callable[[Callable[[], None]], None]] = field(default_factory=dict)
    _members: dict[str, dict[str, None]] = field(default_factory=dict)
    _topics: dict[tuple[str, str], dict[str, None]] = field(default_factory=dict)

    def join(self, broker: str, member: str) -> None:
        """Connect."""
        self._members.setdefault(broker, {})[member] = None
        receive = self.deliver[member]
        self.network.open(
            f"{member}@{broker}", lambda topic, payload: receive(broker, topic, payload)
        )

    def leave(self, broker: str, member: str) -> None:
        """Disconnect; subscriptions go with the session."""
        self._members.get(broker, {}).pop(member, None)
        self.network.close(f"{member}@{broker}")
        for (where, _), members in self._topics.items():
            if where == broker:
                members.pop(member, None)

    def subscribe(self, broker: str, member: str, topic: str) -> None:
        """Hear a model's topic."""
        self._topics.setdefault((broker, topic), {})[member] = None

    def unsubscribe(self, broker: str, member: str, topic: str) -> None:
        """Hear it no more."""
        self._topics.get((broker, topic), {}).pop(member, None)

    def send(
        self, broker: str, member: str, topic: str, payload: bytes, *, seconds: float = 0.0
    ) -> None:
        """Send to one member; it takes `seconds` longer than a message."""
        self.network.send(broker, f"{member}@{broker}", topic, payload, seconds=seconds)

    def cast(self, broker: str, topic: str, payload: bytes) -> None:
        """Send to everybody on a broker."""
        for member in list(self._members.get(broker, {})):
            self.send(broker, member, topic, payload)

    def publish(
        self,
        broker: str,
        topic: str,
        payload: bytes,
        *,
        seconds: Callable[[str], float] = lambda _member: 0.0,
    ) -> None:
        """Send to those who subscribed; `seconds` says how much longer it takes to each."""
        for member in list(self._topics.get((broker, topic), {})):
            self.send(broker, member, topic, payload, seconds=seconds(member))

    def soon(self, member: str, action: Callable[[], None]) -> None:
        """Let a member do something one network delay later."""
        delay = self.network.faults.delay_s
        self.network.kernel.after(delay, lambda: self.defer[member](action))
