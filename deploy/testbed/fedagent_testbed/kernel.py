"""Virtual time: a scheduler, and brokers that delay, lose, repeat and reorder.

Deterministic by seed, the order of simultaneous events included.
"""

import heapq
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

WAN = "wan"
PACKET_BYTES, HEADER_BYTES = 1448, 66
"""What TCP carries in an Ethernet frame, and what is around it."""

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


@dataclass(frozen=True, slots=True)
class Line:
    """A member's own connection: bytes per second and delay each way, and packets that get lost.

    As over TCP these come again, and hold up what follows.
    """

    rate: float
    delay_s: float = 0.0
    loss: float = 0.0


@dataclass(slots=True)
class Network:
    """All brokers: clean sessions, and what is sent to who is not there is lost.

    With `jitter_s` above the spacing of messages they overtake each other.

    Attributes:
        deliver: How each member takes what arrives, alive or not.
        defer: How each member does something a moment later.
        lines: How members are connected; who is not here is so without limits.
        carried: Bytes that went over a line, with their headers, by way (up, down) and member.
    """

    kernel: Kernel
    rng: np.random.Generator
    faults: Faults = Faults()
    deliver: dict[str, Receive] = field(default_factory=dict)
    defer: dict[str, Callable[[Callable[[], None]], None]] = field(default_factory=dict)
    down: set[str] = field(default_factory=set)  # brokers that carry nothing
    lines: dict[str, Line] = field(default_factory=dict)
    carried: Counter[tuple[str, str]] = field(default_factory=Counter)
    _free_at: dict[tuple[str, str], float] = field(default_factory=dict)
    _members: dict[str, dict[str, None]] = field(default_factory=dict)

    def join(self, broker: str, member: str) -> None:
        """Connect a member."""
        self._members.setdefault(broker, {})[member] = None

    def leave(self, broker: str, member: str) -> None:
        """Disconnect a member; what waits for it goes with the session."""
        self._members.get(broker, {}).pop(member, None)

    def send(self, broker: str, member: str, topic: str, payload: bytes, *, by: str = "") -> None:
        """Send to one member, or lose it; `by` is who sends, where that has a line."""
        copies = 1 + (self.rng.random() < self.faults.duplicate)
        size = len(topic) + len(payload)
        for _ in range(copies):
            if broker in self.down or self.rng.random() < self.faults.loss:
                continue
            delay = self.faults.delay_s + self.faults.jitter_s * self.rng.random()
            sent_at = self._through("up", by, size)
            self.kernel.at(sent_at + delay, lambda: self._reach(broker, member, topic, payload))

    def cast(self, broker: str, topic: str, payload: bytes) -> None:
        """Send to everybody on a broker."""
        for member in list(self._members.get(broker, {})):
            self.send(broker, member, topic, payload)

    def pending(self, member: str) -> int:
        """Return the bytes that a member has sent and that its line has not carried yet."""
        line, free_at = self.lines.get(member), self._free_at.get(("up", member), 0.0)
        return round(max(0.0, free_at - self.kernel.now) * line.rate) if line is not None else 0

    def soon(self, member: str, action: Callable[[], None]) -> None:
        """Let a member do something one network delay later."""
        self.kernel.after(self.faults.delay_s, lambda: self.defer[member](action))

    def _through(self, way: str, member: str, size: int) -> float:
        """Return when a message has gone over a member's line, after those before it."""
        line = self.lines.get(member)
        if line is None:
            return self.kernel.now
        packets = -(-size // PACKET_BYTES)
        lost = int(self.rng.binomial(packets, line.loss))
        size += packets * HEADER_BYTES + lost * (PACKET_BYTES + HEADER_BYTES)
        self.carried[way, member] += size
        free_at = max(self.kernel.now, self._free_at.get((way, member), 0.0))
        # A packet that is lost is noticed, and sent again, a round trip later.
        free_at += size / line.rate + lost * 2 * line.delay_s
        self._free_at[way, member] = free_at
        return free_at + line.delay_s

    def _reach(self, broker: str, member: str, topic: str, payload: bytes) -> None:
        """Take a message at the broker, and queue it on the member's line."""
        if member not in self.lines:
            self._arrive(broker, member, topic, payload)
        elif member in self._members.get(broker, {}) and broker not in self.down:
            at = self._through("down", member, len(topic) + len(payload))
            self.kernel.at(at, lambda: self._arrive(broker, member, topic, payload))

    def _arrive(self, broker: str, member: str, topic: str, payload: bytes) -> None:
        if member not in self._members.get(broker, {}) or broker in self.down:
            return
        self.deliver[member](broker, topic, payload)
