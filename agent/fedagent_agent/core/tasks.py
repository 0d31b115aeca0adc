"""The task that the trainer is open for, or that is being fetched: one at a time.

Orders and calls for opinions share it; nearly always they name the same one.
"""

from collections import Counter
from dataclasses import dataclass
from enum import Enum

from fedagent_protocol.messages import DeclineReason, TaskBody, TaskNeed

from .effects import Effect, Key, OpenTask, Send
from .reporting import DeviceState

TASK_AGAIN_S = 1.0
OPEN_AGAIN_S = 10.0
"""A stream that did not fit is tried again after this long, when somebody wants it."""


class TaskState(Enum):
    """How far a task is."""

    WANTED = "wanted"  # its body was asked for
    OPENING = "opening"  # the stream is being opened for it
    OPEN = "open"
    REFUSED = "refused"


@dataclass(slots=True)
class Task:
    """The task that was wanted last.

    Attributes:
        body: Its canonical bytes; empty until they came.
        reason: What a refusal is about: the stream, memory, or the trainer itself.
        recipe: Name of the recipe it was fetched for, for people.
    """

    digest: str
    state: TaskState = TaskState.WANTED
    body: bytes = b""
    detail: str = ""
    reason: DeclineReason = DeclineReason.SCHEMA
    asked_at: float = -1e9
    refused_at: float = 0.0
    recipe: str = ""


class Tasks:
    """Fetches a task and has the stream opened for it."""

    def __init__(self, device: DeviceState, counters: Counter[str]) -> None:
        self._device = device
        self._counters = counters
        self._task: Task | None = None

    def want(self, digest: str, key: Key, now: float) -> list[Effect]:
        """Get a task, in the place of any other; ask for `refused` afterwards."""
        task = self._task
        if task is None or task.digest != digest:
            task = self._task = Task(digest)
            self._device.cold = True
        if task.state is TaskState.REFUSED:
            # A trainer that died is started again at once; a stream must be fixed first.
            fixable = task.reason is not DeclineReason.ERROR
            settled = fixable and now < task.refused_at + OPEN_AGAIN_S
            return [] if settled else self._open(task)
        return self.ask(digest, key, now)

    def ask(self, digest: str, key: Key, now: float) -> list[Effect]:
        """Ask the edge of an order or a call for the body, if it is still wanted."""
        task = self._of(digest, TaskState.WANTED)
        if task is None:
            return []
        task.asked_at = now
        return [Send(key.edge, TaskNeed(run=key.run, round=key.round, digest=digest))]

    def again(self, digest: str, key: Key, now: float) -> list[Effect]:
        """Ask again when it is due."""
        due = self.due(digest)
        return self.ask(digest, key, now) if due is not None and now >= due else []

    def due(self, digest: str) -> float | None:
        """Return when `again` would ask; None: it need not."""
        task = self._of(digest, TaskState.WANTED)
        return None if task is None else task.asked_at + TASK_AGAIN_S

    def opened(self, digest: str) -> Task | None:
        """Return the task if the stream is open for it."""
        return self._of(digest, TaskState.OPEN)

    def refused(self, digest: str) -> Task | None:
        """Return the task if the device cannot do it."""
        return self._of(digest, TaskState.REFUSED)

    def body(self, message: TaskBody) -> list[Effect]:
        """Take in the task that was asked for."""
        task = self._of(message.digest, TaskState.WANTED)
        if task is None:
            self._counters["task_unasked"] += 1
            return []
        task.body, task.recipe = message.body, message.recipe
        return self._open(task)

    def settle(self, digest: str, now: float, *, refused: str, reason: DeclineReason) -> bool:
        """Take in whether the stream fits; False if nobody waits for that any more."""
        task = self._of(digest, TaskState.OPENING)
        if task is None:
            return False
        task.state = TaskState.OPEN
        if refused:
            task.state, task.refused_at = TaskState.REFUSED, now
            task.detail, task.reason = refused, reason
        return True

    def spoilt(self, digest: str, now: float) -> None:
        """The body does not hash to its name: ask again, later."""
        task = self._task
        if task is not None and task.digest == digest:
            self._counters["digest_mismatch"] += 1
            task.state, task.body, task.asked_at = TaskState.WANTED, b"", now

    def _of(self, digest: str, state: TaskState) -> Task | None:
        task = self._task
        there = task is not None and task.digest == digest and task.state is state
        return task if there else None

    def _open(self, task: Task) -> list[Effect]:
        task.state = TaskState.OPENING
        return [OpenTask(task.digest, task.body)]
