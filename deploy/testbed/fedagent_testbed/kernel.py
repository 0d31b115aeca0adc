"""Virtual time: a scheduler, and brokers that delay, lose, repeat and reorder.

Deterministic by seed, the order of simultaneous events included.
"""

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

WAN = "wan"

Receive = Callable[[str, str, bytes], None]
"""Takes link, topic and payload."""


def lan(edge: str) -> str:
    """Return the name of an edge's own broker."""
    return f"lan-{edge}"


def edge_of(broker: str) -> str:
    """Return the edge whose own broker this is."""
    return broker.removeprefix("lan-")


class Kernel:
    """A simulated clock with a queue of things to do; `now` is in seconds."""

    def __init__(self, start: float = 1000.0) -> None:
        self.now = start
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0

    def at(self, when: float, action: Callable[[], None]) -> None:
        """Do something at a time; what is past happens next, in order of asking."""
        self._count += 1
        heapq.heappush(self._queue, (max(when, self.now), self._count, action))

    def after(self, delay: float, action: Callable[[], None]) -> None:
        """Do something `delay` seconds from now."""
        self.at(self.now + delay, action)

    def run(self, *, until: float, stop: Callable[[], bool] = lambda: False) -> None:
        """Advance to `until`, or until `stop` holds after an action."""
        while self._queue and self._queue[0][0] <= until:
            self.now, _, action = heapq.heappop(self._queue)
            action()
            if stop():
                return
        self.now = max(self.now, until)


@dataclass(frozen=True, slots=True)
class Faults:
    """What a link does to each message: probabilities, and delays in seconds."""

    loss: float = 0.0
    duplicate: float = 0.0
    delay_s: float = 0.002
    jitter_s: float = 0.001


@dataclass(slots=True)
class Network:
    """All brokers: clean sessions, and what is sent to who is not there is lost.

    With `jitter_s` above the spacing of messages they overtake each other.

    Attributes:
        deliver: How each member takes what arrives, alive or not.
        defer: How each member does something a moment later.
    """

    kernel: Kernel
    rng: np.random.Generator
    faults: Faults = Faults()
    deliver: dict[str, Receive] = field(default_factory=dict)
    defer: dict[str, Callable[[Callable[[], None]], None]] = field(default_factory=dict)
    down: set[str] = field(default_factory=set)  # brokers that carry nothing
    _members: dict[str, dict[str, None]] = field(default_factory=dict)
    _topics: dict[tuple[str, str], dict[str, None]] = field(default_factory=dict)

    def join(self, broker: str, member: str) -> None:
        """Connect a member."""
        self._members.setdefault(broker, {})[member] = None

    def leave(self, broker: str, member: str) -> None:
        """Disconnect a member; its subscriptions go with the session."""
        self._members.get(broker, {}).pop(member, None)
        for (where, _), members in self._topics.items():
            if where == broker:
                members.pop(member, None)

    def subscribe(self, broker: str, member: str, topic: str) -> None:
        """Let a member hear a model's topic."""
        self._topics.setdefault((broker, topic), {})[member] = None

    def unsubscribe(self, broker: str, member: str, topic: str) -> None:
        """Let a member hear it no more."""
        self._topics.get((broker, topic), {}).pop(member, None)

    def send(self, broker: str, member: str, topic: str, payload: bytes) -> None:
        """Send to one member, or lose it."""
        copies = 1 + (self.rng.random() < self.faults.duplicate)
        for _ in range(copies):
            if broker in self.down or self.rng.random() < self.faults.loss:
                continue
            delay = self.faults.delay_s + self.faults.jitter_s * self.rng.random()
            self.kernel.after(delay, lambda: self._arrive(broker, member, topic, payload))

    def cast(self, broker: str, topic: str, payload: bytes) -> None:
        """Send to everybody on a broker."""
        for member in list(self._members.get(broker, {})):
            self.send(broker, member, topic, payload)

    def publish(self, broker: str, topic: str, payload: bytes) -> None:
        """Send to those who subscribed."""
        for member in list(self._topics.get((broker, topic), {})):
            self.send(broker, member, topic, payload)

    def soon(self, member: str, action: Callable[[], None]) -> None:
        """Let a member do something one network delay later."""
        self.kernel.after(self.faults.delay_s, lambda: self.defer[member](action))

    def _arrive(self, broker: str, member: str, topic: str, payload: bytes) -> None:
        if member not in self._members.get(broker, {}) or broker in self.down:
            return
        self.deliver[member](broker, topic, payload)
