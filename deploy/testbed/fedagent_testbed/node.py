"""A node of the virtual testbed: a role with a directory, that can die and start again."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from fedagent_node.driver import Core, Driver, Job, Links, Store
from fedagent_node.effects import Connect, Emit, Input, Send
from fedagent_protocol.codec import Direction

from .kernel import Kernel, Network

RESTART_S = 0.4
MIN_WAIT_S = 1e-4
"""A timer that is due at once rings a moment later, so that virtual time always moves."""

Checkpoint = Callable[[str], None]


class NodeKilledError(BaseException):
    """The node died here: raised by a crash point, and no error that anything may catch."""


class AtOnce:
    """Jobs of the virtual world take no time."""

    def submit(self, job: Job) -> Input | None:
        """Do a job here and now."""
        return job.work()


def virtual_driver(
    core: Core,
    store: Store,
    kernel: Kernel,
    links: Links,
    *,
    me: str,
    emit: Callable[[Emit], None] = lambda _: None,
) -> Driver:
    """Return a driver on the virtual clock; what is unforeseen is raised."""
    return Driver(
        core,
        store,
        links=links,
        jobs=AtOnce(),
        clock=lambda: kernel.now,
        emit=emit,
        warn=lambda _: None,
        me=me,
    )


@dataclass(kw_only=True)
class Node(ABC):
    """One process of the virtual world: a role with a directory.

    Attributes:
        incoming: What comes in, by the broker that it is connected to.
        kill_at: Crash points to die at, each once: name to the number of its visit.
    """

    network: Network
    id: str
    directory: Path
    kill_at: dict[str, int] = field(default_factory=dict)
    stay_down_s: float = RESTART_S  # how long it is gone after a kill
    restarts: int = 0
    alive: bool = False
    incoming: dict[str, Direction] = field(init=False)
    driver: Driver | None = None
    _armed: int = 0

    def __post_init__(self) -> None:
        """Connect it to the world."""
        self.kernel = self.network.kernel
        self.incoming = self._links()
        self.directory.mkdir(parents=True, exist_ok=True)
        self.network.deliver[self.id] = lambda *arrival: self.run(lambda: self._arrive(*arrival))
        self.network.defer[self.id] = self.run

    @abstractmethod
    def _links(self) -> dict[str, Direction]:
        """Return what comes in, by broker."""

    @abstractmethod
    def _open(self) -> tuple[Driver, list[Input]]:
        """Open the role on its directory; return it with what it takes in first."""

    @abstractmethod
    def send(self, send: Send) -> bool:
        """Put a message on the network."""

    def change(self, effect: Connect) -> None:
        """Change links; only agents do."""
        raise NotImplementedError(effect)

    def boot(self) -> None:
        """Start on the directory."""
        self.alive = True
        self.run(self._start)

    def _start(self) -> None:
        self.driver, first = self._open()
        for broker in self.incoming:
            self.network.join(broker, self.id)
        self.driver.receive(*first)

    def kill(self) -> None:
        """Die now, and come back later."""
        if not self.alive:
            return
        self.drop()
        self.restarts += 1
        self.kernel.after(self.stay_down_s, self.boot)

    def drop(self) -> None:
        """Forget what is in memory, and lose the connections; the disk stays as it is."""
        self.alive = False
        for broker in self.incoming:
            self.network.leave(broker, self.id)
        if self.driver is not None:
            self._close(self.driver.store)
        self.driver = None

    def _close(self, store: Store) -> None:
        """Close the disk as a kill would leave it."""
        store.close()

    def run(self, action: Callable[[], None]) -> None:
        """Do something that the node may die of; nothing while it is dead."""
        if not self.alive:
            return
        try:
            action()
        except NodeKilledError:
            self.kill()
            return
        self._set_timer()

    def receive(self, *events: Input) -> None:
        """Give the core what is no message, unless the process is gone by then."""
        if self.driver is not None:
            self.driver.receive(*events)

    def _arrive(self, broker: str, topic: str, payload: bytes) -> None:
        if self.driver is not None:
            direction, now = self.incoming[broker], self.kernel.now
            self.driver.arrived(broker, direction, topic, payload, at=now)
            self.driver.flush()

    def checkpoint(self, name: str) -> None:
        """Die here, if this is the visit to die at."""
        left = self.kill_at.pop(name, 0)
        if left > 1:
            self.kill_at[name] = left - 1
        elif left:
            raise NodeKilledError(name)

    def _next_due(self) -> float | None:
        return self.driver.next_due() if self.driver is not None else None

    def _tick(self) -> None:
        if self.driver is not None:
            self.driver.tick()

    def _set_timer(self) -> None:
        due = self._next_due()
        self._armed += 1
        armed = self._armed
        if due is None:
            return

        def ring() -> None:
            if self._armed == armed:
                self.run(self._tick)

        self.kernel.at(max(due, self.kernel.now + MIN_WAIT_S), ring)
