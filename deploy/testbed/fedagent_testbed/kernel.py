"""Virtual time: a scheduler, and a network that delays, loses, repeats and reorders.

Deterministic by seed, the order of simultaneous events included.
"""

import heapq
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np


class Kernel:
    """A simulated clock with a queue of things to do.

    Attributes:
        now: Seconds since the start of the simulation.
    """

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
    """Carries payloads between named ports of nodes.

    A port that is not open loses what is sent to it, as a broker with clean
    sessions does. With `jitter_s` above the spacing of messages they overtake
    each other.

    Attributes:
        down: Brokers that carry nothing.
        heard: Told port and topic of everything that arrives.
    """

    kernel: Kernel
    rng: np.random.Generator
    faults: Faults = Faults()
    carried: Counter[str] = field(default_factory=Counter)
    down: set[str] = field(default_factory=set)
    heard: Callable[[str, str], None] | None = None
    _ports: dict[str, Callable[[str, bytes], None]] = field(default_factory=dict)

    def open(self, port: str, receive: Callable[[str, bytes], None]) -> None:
        """Let a node receive `(topic, payload)` at a port."""
        self._ports[port] = receive

    def close(self, port: str) -> None:
        """Stop delivering to a port; what is under way to it is lost."""
        self._ports.pop(port, None)

    def send(
        self, via: str, port: str, topic: str, payload: bytes, *, seconds: float = 0.0
    ) -> None:
        """Carry one payload through the broker `via` to a port, or lose it.

        It takes `seconds` more than the delays of the network.
        """
        copies = 1 + (self.rng.random() < self.faults.duplicate)
        for _ in range(copies):
            if via in self.down or self.rng.random() < self.faults.loss:
                self.carried["lost"] += 1
                continue
            delay = self.faults.delay_s + self.faults.jitter_s * self.rng.random()
            self.kernel.after(delay + seconds, lambda: self._deliver(via, port, topic, payload))

    def _deliver(self, via: str, port: str, topic: str, payload: bytes) -> None:
        receive = self._ports.get(port)
        if receive is None or via in self.down:
            self.carried["lost"] += 1
            return
        self.carried["delivered"] += 1
        self.carried["bytes"] += len(payload)
        if self.heard is not None:
            self.heard(port, topic)
        receive(topic, payload)
