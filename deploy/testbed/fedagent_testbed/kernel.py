"""Virtual time: a scheduler, brokers that delay, lose, repeat and reorder, and links with a rate.

Deterministic by seed, the order of simultaneous events included.
"""

import heapq
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from fedagent_agent.core.device import Readings

WAN = "wan"

Receive = Callable[[str, str, bytes], None]
"""Takes link, topic and payload."""


def lan(edge: str) -> str:
    """Return the name of an edge's own broker."""
    return f"lan-{edge}"


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
        heard: Takes member@broker and topic of everything that arrives.
    """

    kernel: Kernel
    rng: np.random.Generator
    faults: Faults = Faults()
    deliver: dict[str, Receive] = field(default_factory=dict)
    defer: dict[str, Callable[[Callable[[], None]], None]] = field(default_factory=dict)
    down: set[str] = field(default_factory=set)  # brokers that carry nothing
    heard: Callable[[str, str], None] | None = None
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

    def send(
        self, broker: str, member: str, topic: str, payload: bytes, *, seconds: float = 0.0
    ) -> None:
        """Send to one member, or lose it; it takes `seconds` longer than the network's delays."""
        copies = 1 + (self.rng.random() < self.faults.duplicate)
        for _ in range(copies):
            if broker in self.down or self.rng.random() < self.faults.loss:
                continue
            delay = self.faults.delay_s + self.faults.jitter_s * self.rng.random()
            self.kernel.after(delay + seconds, lambda: self._arrive(broker, member, topic, payload))

    def cast(self, broker: str, topic: str, payload: bytes) -> None:
        """Send to everybody on a broker."""
        for member in list(self._members.get(broker, {})):
            self.send(broker, member, topic, payload)

    def publish(
        self, broker: str, topic: str, payload: bytes, *, seconds: Callable[[str], float]
    ) -> None:
        """Send to those who subscribed; it takes `seconds` longer to each."""
        for member in list(self._topics.get((broker, topic), {})):
            self.send(broker, member, topic, payload, seconds=seconds(member))

    def soon(self, member: str, action: Callable[[], None]) -> None:
        """Let a member do something one network delay later."""
        self.kernel.after(self.faults.delay_s, lambda: self.defer[member](action))

    def _arrive(self, broker: str, member: str, topic: str, payload: bytes) -> None:
        if member not in self._members.get(broker, {}) or broker in self.down:
            return
        if self.heard is not None:
            self.heard(f"{member}@{broker}", topic)
        self.deliver[member](broker, topic, payload)


class Air(Protocol):
    """The surroundings of all agents; they change when a round opens, and only then."""

    def begin(self, round_: int) -> bool:
        """Let a round open; False if nothing changes by that."""

    def device(self, agent: str) -> Readings:
        """Return the state of an agent's device."""

    def features(self, agent: str, edge: str) -> Mapping[str, float]:
        """Return what the agent's instruments show of itself and of the path to an edge."""

    def transfer_s(self, agent: str, edge: str, *, up: bool) -> float:
        """Return how long a whole model, or a whole update, is on its way."""


@dataclass(slots=True)
class Pipes:
    """Links that carry one transfer after the other, in each direction of each pair.

    Only models and updates take time by their size, a whole one `Air.transfer_s`. What an earlier
    round has left in a pipe is not waited for: nobody wants it any more.

    Attributes:
        names: What the surroundings call an agent, by its id.
    """

    air: Air | None  # none where links take no time
    names: Mapping[str, str] = field(default_factory=dict)
    _until: dict[tuple[str, str, bool], float] = field(default_factory=dict)
    _whole: dict[str, int] = field(default_factory=dict)

    def clear(self) -> None:
        """Let a round begin with empty links."""
        self._until.clear()
        self._whole.clear()

    def note(self, digest: str, size: int) -> None:
        """Remember the size of a whole model or update."""
        self._whole[digest] = size

    def carry(
        self, agent: str, edge: str, digest: str, nbytes: int, now: float, *, up: bool
    ) -> float:
        """Put bytes of a model or an update into a pipe; return seconds until the last is out."""
        if not nbytes or self.air is None:
            return 0.0
        share = nbytes / self._whole.get(digest, nbytes)
        key = (agent, edge, up)
        begins = max(now, self._until.get(key, now))
        self._until[key] = begins + share * self.air.transfer_s(
            self.names.get(agent, agent), edge, up=up
        )
        return self._until[key] - now

    def busy(self, agent: str, edge: str, now: float, *, up: bool) -> bool:
        """Return whether something is under way."""
        return self._until.get((agent, edge, up), now) > now
