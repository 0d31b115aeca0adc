"""A node of the virtual testbed: a role with a directory, that can die and start again."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from .kernel import Kernel

RESTART_S = 0.4
MIN_WAIT_S = 1e-4
"""A timer that is due at once rings a moment later, so that virtual time always moves."""


class KilledError(BaseException):
    """The node died here: raised by a crash point, and no error that anything may catch."""


class Role(Protocol):
    """What a node runs: one of the three runtimes with its surroundings."""

    def start(self, checkpoint: Callable[[str], None]) -> None:
        """Open the runtime on its directory."""

    def drop(self) -> None:
        """Forget what is in memory; the disk stays as it is."""

    def next_due(self) -> float | None:
        """Return when a tick is wanted."""

    def tick(self) -> None:
        """Let the runtime do what is due."""


@dataclass
class Node:
    """One process of the virtual world.

    Attributes:
        kill_at: Crash points to die at, each once: name to the number of its visit.
        stay_down_s: How long it is gone after a kill.
        restarts: How often it was started again.
        passed: Crash points that were passed, by name.
    """

    kernel: Kernel
    role: Role
    kill_at: dict[str, int] = field(default_factory=dict)
    stay_down_s: float = RESTART_S
    restarts: int = 0
    alive: bool = False
    passed: Counter[str] = field(default_factory=Counter)
    _armed: int = 0

    def boot(self) -> None:
        """Start on the directory."""
        self.alive = True
        self.run(lambda: self.role.start(self._checkpoint))

    def kill(self) -> None:
        """Die now, and come back later."""
        if not self.alive:
            return
        self.alive = False
        self.restarts += 1
        self.role.drop()
        self.kernel.after(self.stay_down_s, self.boot)

    def run(self, action: Callable[[], None]) -> None:
        """Do something that the node may die of; nothing while it is dead."""
        if not self.alive:
            return
        try:
            action()
        except KilledError:
            self.kill()
            return
        self._set_timer()

    def _checkpoint(self, name: str) -> None:
        self.passed[name] += 1
        left = self.kill_at.get(name)
        if left is None:
            return
        if left > 1:
            self.kill_at[name] = left - 1
            return
        del self.kill_at[name]
        raise KilledError(name)

    def _set_timer(self) -> None:
        due = self.role.next_due()
        self._armed += 1
        armed = self._armed
        if due is None:
            return

        def ring() -> None:
            if self._armed == armed:
                self.run(self.role.tick)

        self.kernel.at(max(due, self.kernel.now + MIN_WAIT_S), ring)
