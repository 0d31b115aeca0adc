"""Getting ready before the first order: the task that an edge names is opened beforehand.

The start of a trainer takes seconds on a small or busy device, more than a round may have.
Meanwhile the agent reports that it is not available (docs/protocol.md, Sessions).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from fedagent_node.effects import Effect, Send
from fedagent_protocol.messages import EdgeBeacon, Welcome

from .device import DeviceState
from .effects import Key, Timer
from .session import Session, Sessions, SessionState
from .tasks import Tasks

PREPARE_S = 30.0
"""After so long an agent may be ordered although it is not ready: the order tells why."""


@dataclass(slots=True)
class Preparation:
    """Has the task opened that edges name, unless another one is in use."""

    device: DeviceState
    tasks: Tasks
    sessions: Sessions
    until: float = math.inf
    _digest: str = ""
    _key: Key | None = None

    def named(
        self, session: Session, message: Welcome | EdgeBeacon, now: float, *, busy: bool
    ) -> list[Effect]:
        """Begin with the task that an edge names, or ask again for what of it got lost.

        The task that is open stays so while it is `busy`: ordered or evaluated.
        """
        task, key = message.task, Key(session.edge, message.run, 0)
        if not task or session.state is not SessionState.OPEN:
            return []
        if task == session.task:
            settled = self.tasks.is_settled(task, key)
            return [] if settled else self.tasks.want(task, key, now)
        session.task = task
        held, effects = self.tasks.digest, list[Effect]()
        named = any(other.task == held for other in self.sessions.values())
        if held in ("", task) or not (busy or named):
            effects = self.tasks.want(task, key, now)
        if self.tasks.is_settled(task, key):
            return [*effects, Send(session.edge, self.sessions.report(session, now))]
        self._digest, self._key = task, key
        self.until = now + PREPARE_S
        self.device.preparing = True
        return effects + self.sessions.measured(now, forced=True)

    def tick(self, now: float) -> list[Effect]:
        """Report that the device is available, once it is."""
        if not self.device.preparing or self._key is None:
            return []
        if not self.tasks.is_settled(self._digest, self._key):
            if self.tasks.digest == self._digest and (once := self.tasks.once) is not None:
                # It may take longer, and is no reason to be ordered as long as it moves.
                self.until = max(self.until, once.moved_at + PREPARE_S)
            if now < self.until:
                return []
        self.device.preparing, self.until = False, math.inf
        return self.sessions.measured(now, forced=True)

    def timers(self) -> Iterator[Timer]:
        """Report that the device is available, ready or not."""
        yield self.until, self.tick
