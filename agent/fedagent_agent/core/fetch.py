"""A task and a model on their way from an edge, for an order or for an evaluation.

The trainer is open for one task at a time, which orders and evaluations share.
"""

import hashlib
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from msgspec.structs import replace

from fedagent_agent.trainer.frames import Failed, Open, Opened, Refused
from fedagent_node.effects import Effect, Send
from fedagent_protocol.messages import (
    CHUNK_BYTES,
    DeclineReason,
    OpinionCall,
    TaskBody,
    TaskNeed,
    TrainOrder,
    Weighting,
)
from fedagent_task.errors import TaskFormatError
from fedagent_task.recipe.spec import PeersSpec, SecureAggregationSpec, TaskSpec
from fedagent_task.recipe.text import parse_task

from .device import DeviceState
from .download import Download, fits
from .effects import Key
from .vouching import Vouching

TASK_AGAIN_S = 1.0
OPEN_AGAIN_S = 10.0
"""A stream that did not fit is tried again after this long, when a task needs it."""
REASONS = {
    "no_data": DeclineReason.NO_DATA,
    "memory": DeclineReason.LOAD,
    "privacy": DeclineReason.PRIVACY,
}
"""What a failure of the trainer is to the edge; any other is an error."""
NO_TRAINING = "none"
"""Learner of a task that opens no stream and starts no trainer."""


class _TaskState(Enum):
    WANTED = "wanted"  # its body was asked for
    FETCHING = "fetching"  # what its devices get once is on its way
    OPENING = "opening"  # the stream is being opened for it
    OPEN = "open"
    REFUSED = "refused"


@dataclass(slots=True)
class Task:
    """The task that was wanted last."""

    digest: str
    state: _TaskState = _TaskState.WANTED
    spec: TaskSpec | None = None
    body: bytes = b""
    recipe: str = ""
    job: int = 0
    detail: str = ""
    reason: DeclineReason = DeclineReason.SCHEMA
    """What a refusal is about: the stream, memory, or the trainer itself."""
    asked_at: float = -1e9
    refused_at: float = 0.0
    once: Download | None = None
    chunk_bytes: int = CHUNK_BYTES
    key: Key | None = None

    @property
    def idle(self) -> bool:
        """Whether nothing is learnt, so that there is no stream and no trainer."""
        return self.spec is not None and self.spec.learner.name == NO_TRAINING


class Tasks:
    """Fetches a task and has the stream opened for it, by `stream` with its body and a number."""

    def __init__(
        self,
        device: DeviceState,
        stream: Open,
        jobs: Iterator[int],
        counters: Counter[str],
        vouching: Vouching,
    ) -> None:
        self._device = device
        self._stream = stream
        self._jobs = jobs
        self._counters = counters
        self._vouching = vouching
        self._task: Task | None = None

    def want(self, digest: str, key: Key, now: float) -> list[Effect]:
        """Get a task, in the place of any other; ask for `refused` afterwards.

        One that nobody has vouched for takes no place until its edge shows the coordinator's word.
        """
        if not self._vouching.stands(key, digest, now):
            return self._vouching.ask(key, digest, now)
        task, effects = self._replace(digest)
        if task.state is _TaskState.REFUSED:
            # A trainer that died is started again at once; a stream must be fixed first.
            fixable = task.reason is not DeclineReason.ERROR
            settled = fixable and now < task.refused_at + OPEN_AGAIN_S
            return [] if settled else self._open(task, now)
        return effects + self.ask(digest, key, now)

    def _replace(self, digest: str) -> tuple[Task, list[Effect]]:
        task, effects = self._task, list[Effect]()
        if task is None or task.digest != digest:
            effects = task.once.pause() if task is not None and task.once is not None else []
            task = self._task = Task(digest)
            self._device.cold = True
        return task, effects

    @property
    def digest(self) -> str:
        """Digest of the task that was wanted last; empty before the first."""
        return self._task.digest if self._task is not None else ""

    def is_settled(self, digest: str, key: Key) -> bool:
        """Whether a task of an edge is open, or refused, or not wanted any more."""
        if self._vouching.is_asked(key, digest):
            return False
        task = self._task
        if task is None or task.digest != digest:
            return True
        return task.state in (_TaskState.OPEN, _TaskState.REFUSED)

    def ask(self, digest: str, key: Key, now: float) -> list[Effect]:
        """Ask the edge of an order or an evaluation for the body, if it is still wanted."""
        task = self._in(_TaskState.WANTED, digest)
        if task is None:
            return []
        task.asked_at = now
        return [Send(key.edge, TaskNeed(run=key.run, round=key.round, digest=digest))]

    def remind(self, digest: str, key: Key, now: float) -> list[Effect]:
        """Ask an edge again for what of a task that it names got lost, if that is due."""
        if self._vouching.is_asked(key, digest):
            return self._vouching.ask(key, digest, now)
        due = self.due(digest)
        return self.ask(digest, key, now) if due is not None and now >= due else []

    def due(self, digest: str) -> float | None:
        """Return when `ask` is wanted again; None: it is not."""
        task = self._in(_TaskState.WANTED, digest)
        return None if task is None else task.asked_at + TASK_AGAIN_S

    def opened(self, digest: str) -> Task | None:
        """Return the task if the stream is open for it."""
        return self._in(_TaskState.OPEN, digest)

    def refused(self, digest: str) -> Task | None:
        """Return the task if the device cannot do it."""
        return self._in(_TaskState.REFUSED, digest)

    def peers(self, digest: str) -> PeersSpec | None:
        """Return what a task says of neighbours, once its body is here."""
        task = self._task
        if task is None or task.digest != digest or task.spec is None:
            return None
        return task.spec.peers

    def masked(self, digest: str) -> SecureAggregationSpec | None:
        """Return how a task wants updates masked, once its body is here; None: it does not."""
        task = self._task
        if task is None or task.digest != digest or task.spec is None:
            return None
        spec = task.spec.secure_aggregation
        return spec if spec.wanted else None

    def weight(self, digest: str, samples: int) -> int:
        """Return what a masked update of so many samples weighs."""
        task = self._task
        assert task is not None
        assert task.spec is not None
        assert task.digest == digest
        limit, uniform = task.spec.limits.max_samples, task.spec.weighting is Weighting.UNIFORM
        return 1 if uniform else max(1, min(samples, limit))

    def is_opening(self, job: int) -> bool:
        """Whether the trainer's job with this number opens the stream."""
        task = self._task
        return task is not None and task.state is _TaskState.OPENING and task.job == job

    def receive(
        self, edge: str, message: TaskBody, now: float, *, busy: bool = False
    ) -> list[Effect]:
        """Take the task that was asked for; one that is not what it is called is asked again.

        While the device is `busy`, a task that is vouched for only now takes the place of none.
        """
        key, effects = Key(edge, message.run, 0), list[Effect]()
        awaited = self._vouching.is_asked(key, message.digest)
        if awaited:
            effects = self._vouching.take(edge, message, now)
            if self._vouching.stands(key, message.digest, now) and not busy:
                effects += self._replace(message.digest)[1]
        task = self._in(_TaskState.WANTED, message.digest)
        if task is None:
            self._counters["task_unasked"] += not awaited
            return effects
        return effects + self._take_body(task, edge, message, now)

    def _take_body(self, task: Task, edge: str, message: TaskBody, now: float) -> list[Effect]:
        if hashlib.sha256(message.body).hexdigest() != message.digest:
            self._counters["digest_mismatch"] += 1
            task.asked_at = now
            return []
        task.body, task.recipe = message.body, message.recipe
        task.key, task.chunk_bytes = Key(edge, message.run, 0), message.chunk_bytes
        return self._open(task, now)

    def replied(self, reply: Opened | Refused | Failed, now: float) -> None:
        """Take the trainer's reply; one to an older request changes nothing."""
        task = self._task
        if task is None or not self.is_opening(reply.job):
            return
        match reply:
            case Opened():
                task.state = _TaskState.OPEN
            case Refused():
                self._refuse(task, reply.detail or reply.key, DeclineReason.SCHEMA, now)
            case Failed():
                detail = f"trainer {reply.reason}: {reply.detail}".rstrip(": ")
                self._refuse(task, detail, REASONS.get(reply.reason, DeclineReason.ERROR), now)

    def _open(self, task: Task, now: float) -> list[Effect]:
        try:
            task.spec = parse_task(task.body)
        except TaskFormatError as error:
            self._refuse(task, str(error), DeclineReason.SCHEMA, now)
            return []
        if task.idle:
            task.state = _TaskState.OPEN
            return []
        model = task.spec.model
        if not model.once:
            return self._open_stream(task)
        if not fits(model.once_bytes, task.chunk_bytes):
            detail = f"model.once: {model.once_bytes} bytes in chunks of {task.chunk_bytes}"
            self._refuse(task, detail, DeclineReason.SCHEMA, now)
            return []
        assert task.key is not None
        task.state = _TaskState.FETCHING
        task.once = Download(
            task.key, model.once, model.once_bytes, task.chunk_bytes, self._counters, once=True
        )
        return task.once.begin()

    def _open_stream(self, task: Task) -> list[Effect]:
        task.state, task.job = _TaskState.OPENING, next(self._jobs)
        once = task.once.digest if task.once is not None else ""
        return [replace(self._stream, job=task.job, task=task.body, once=once)]

    # ------------------------------------------------ what devices get once

    @property
    def once(self) -> Download | None:
        """What is fetched once for the task, while it is."""
        task = self._task
        fetching = task is not None and task.state is _TaskState.FETCHING
        return task.once if task is not None and fetching else None

    def go_on(self, now: float) -> list[Effect]:
        """Open the stream once all is here that the task needs."""
        once = self.once
        if once is None:
            return []
        task = self._task
        assert task is not None
        if once.problem:
            self._refuse(task, f"model.once: {once.problem}", DeclineReason.LOAD, now)
            return once.pause()
        return [] if once.whole_at is None else self._open_stream(task)

    def moved_at(self, digest: str) -> float:
        """Return when something of what a task needs came last."""
        once = self.once
        return once.moved_at if once is not None and self.digest == digest else -math.inf

    def lost(self, edge: str) -> list[Effect]:
        """Ask for the task again, of whichever edge names it: this one is gone."""
        once, task = self.once, self._task
        if once is None or task is None or once.key.edge != edge:
            return []
        task.state, task.asked_at = _TaskState.WANTED, -math.inf
        return once.pause()

    def _refuse(self, task: Task, detail: str, reason: DeclineReason, now: float) -> None:
        task.state, task.refused_at = _TaskState.REFUSED, now
        task.detail, task.reason = detail, reason

    def _in(self, state: _TaskState, digest: str) -> Task | None:
        task = self._task
        found = task is not None and task.digest == digest and task.state is state
        return task if found else None


class Fetch(Download):
    """One task and one model from one edge, for the order or evaluation that names them."""

    def __init__(
        self, key: Key, wanted: TrainOrder | OpinionCall, tasks: Tasks, counters: Counter[str]
    ) -> None:
        super().__init__(key, wanted.model, wanted.size, wanted.chunk_bytes, counters)
        self.wanted = wanted
        self.tasks = tasks

    @property
    def model_at(self) -> float | None:
        """When the model was whole."""
        return self.whole_at

    def acknowledge(self) -> list[Effect]:
        """Show the edge that its order is here, once the model is: there is nothing to ask for."""
        if self.whole_at is None or not isinstance(self.wanted, TrainOrder):
            return []
        return [Send(self.key.edge, self._need(()))]

    def move(self, edge: str, wanted: OpinionCall, now: float) -> list[Effect]:
        """Go on with another edge."""
        effects = self.pause()
        self.key, self.wanted = Key(edge, self.key.run, self.key.round), wanted
        self.digest, self.size, self.chunk_bytes = wanted.model, wanted.size, wanted.chunk_bytes
        return effects + self.tasks.ask(self.wanted.task, self.key, now)

    # ------------------------------------------------------------------- time

    def reconnected(self, now: float) -> list[Effect]:
        """Ask again for what may be lost, perhaps on a new link."""
        return self.tasks.ask(self.wanted.task, self.key, now) + self.resume()

    def tick(self, now: float) -> list[Effect]:
        """Ask again for what did not come."""
        effects, asked = [], self.tasks.due(self.wanted.task)
        if asked is not None and now >= asked:
            effects += self.tasks.ask(self.wanted.task, self.key, now)
        return effects + self.look(now)

    def dues(self) -> list[float]:
        """Return when `tick` is wanted."""
        dues = (self.tasks.due(self.wanted.task), self.due)
        return [due for due in dues if due is not None]


def is_oversized(wanted: TrainOrder | OpinionCall) -> bool:
    """Whether a model is not of a size that is fetched."""
    return not fits(wanted.size, wanted.chunk_bytes)
