"""Getting ready before the first order: the task that an edge names is opened beforehand.

The start of a trainer takes seconds on a small or busy device, more than a round may have.
Meanwhile the agent reports that it is not available (docs/protocol.md, Sessions).
"""

import math
from dataclasses import dataclass

from fedagent_node.effects import Effect, Emit, Send
from fedagent_protocol.messages import EdgeBeacon, Welcome

from .device import DeviceState
from .effects import Key
from .fetch import Tasks
from .session import Session, Sessions, SessionState

NO_KEY = Key("", "", 0)
PREPARE_S = 30.0
"""After so long an agent may be ordered although it is not ready: the order tells why."""


@dataclass(slots=True)
class Preparation:
    """Has the task opened that edges name, unless another one is in use."""

    device: DeviceState
    tasks: Tasks
    sessions: Sessions
    until: float = math.inf
    _began: float = 0.0
    _digest: str = ""
    _key: Key = NO_KEY

    def named(
        self, session: Session, message: Welcome | EdgeBeacon, now: float, *, busy: bool
    ) -> list[Effect]:
        """Begin with the task that an edge names, or ask again for what of it got lost.

        The task that is open stays so while it is `busy`: ordered or evaluated.
        """
        task = message.task
        if not task or session.state is not SessionState.OPEN:
            return []
        key = Key(session.edge, message.run, 0)
        if task == session.task:
            return self.tasks.remind(task, key, now)
        session.task = task
        effects: list[Effect] = []
        if not self._is_used_elsewhere(task, busy=busy):
            effects = self.tasks.want(task, key, now)
        if self.tasks.is_settled(task, key):
            return [*effects, Send(session.edge, self.sessions.report(session, now))]
        self._digest, self._key = task, key
        self._began, self.until = now, now + PREPARE_S
        self.device.preparing = True
        return [*effects, *self.sessions.measured(now, forced=True)]

    def go_on(self, now: float) -> list[Effect]:
        """Report that the device is available, once it is."""
        if not self.device.preparing:
            return []
        if not self.tasks.is_settled(self._digest, self._key):
            # What is got once may take longer, and is no reason to be ordered as long as it moves.
            self.until = max(self.until, self.tasks.moved_at(self._digest) + PREPARE_S)
            if now < self.until:
                return []
        self.device.preparing, self.until = False, math.inf
        fields: dict[str, object] = {"seconds": round(now - self._began, 3)}
        return [Emit("prepared", fields), *self.sessions.measured(now, forced=True)]

    def _is_used_elsewhere(self, task: str, *, busy: bool) -> bool:
        held = self.tasks.digest
        if held in ("", task):
            return False
        return busy or any(session.task == held for session in self.sessions.values())
