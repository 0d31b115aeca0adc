"""A task and a model on their way from an edge, for an order or for an evaluation.

The trainer is open for one task at a time, which orders and evaluations share.
"""

import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from msgspec.structs import replace

from fedagent_agent.trainer.frames import Failed, Open, Opened, Refused
from fedagent_node.effects import Effect, ModelFinished, Send, WriteModel
from fedagent_protocol.errors import ChunkError
from fedagent_protocol.messages import (
    MAX_CHUNKS,
    Chunk,
    DeclineReason,
    Need,
    OpinionCall,
    TaskBody,
    TaskNeed,
    TrainOrder,
)
from fedagent_protocol.transfer import Layout, Receiver
from fedagent_task.errors import TaskFormatError
from fedagent_task.recipe import parse_task
from fedagent_task.spec import PeersSpec, TaskSpec

from .device import DeviceState, LinkQuality
from .effects import FinishModel, Key, OpenModel, SubscribeModel, UnsubscribeModel

MAX_MODEL_BYTES = 512 << 20
WINDOW = 4
MAX_FRESH_STARTS = 3
TASK_AGAIN_S = 1.0
OPEN_AGAIN_S = 10.0
"""A stream that did not fit is tried again after this long, when a task needs it."""
REASONS = {"no_data": DeclineReason.NO_DATA, "memory": DeclineReason.LOAD}
"""What a failure of the trainer is to the edge; any other is an error."""
NO_TRAINING = "none"
"""Learner of a task that opens no stream and starts no trainer."""


class _TaskState(Enum):
    WANTED = "wanted"  # its body was asked for
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

    @property
    def idle(self) -> bool:
        """Whether nothing is learnt, so that there is no stream and no trainer."""
        return self.spec is not None and self.spec.learner.name == NO_TRAINING


class Tasks:
    """Fetches a task and has the stream opened for it, by `stream` with its body and a number."""

    def __init__(
        self, device: DeviceState, stream: Open, jobs: Iterator[int], counters: Counter[str]
    ) -> None:
        self._device = device
        self._stream = stream
        self._jobs = jobs
        self._counters = counters
        self._task: Task | None = None

    def want(self, digest: str, key: Key, now: float) -> list[Effect]:
        """Get a task, in the place of any other; ask for `refused` afterwards."""
        task = self._task
        if task is None or task.digest != digest:
            task = self._task = Task(digest)
            self._device.cold = True
        if task.state is _TaskState.REFUSED:
            # A trainer that died is started again at once; a stream must be fixed first.
            fixable = task.reason is not DeclineReason.ERROR
            settled = fixable and now < task.refused_at + OPEN_AGAIN_S
            return [] if settled else self._open(task, now)
        return self.ask(digest, key, now)

    @property
    def digest(self) -> str:
        """Digest of the task that was wanted last; empty before the first."""
        return self._task.digest if self._task is not None else ""

    def is_settled(self, digest: str) -> bool:
        """Whether a task is open, or refused, or not wanted any more."""
        return not (self._in(_TaskState.WANTED, digest) or self._in(_TaskState.OPENING, digest))

    def ask(self, digest: str, key: Key, now: float) -> list[Effect]:
        """Ask the edge of an order or an evaluation for the body, if it is still wanted."""
        task = self._in(_TaskState.WANTED, digest)
        if task is None:
            return []
        task.asked_at = now
        return [Send(key.edge, TaskNeed(run=key.run, round=key.round, digest=digest))]

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

    def is_opening(self, job: int) -> bool:
        """Whether the trainer's job with this number opens the stream."""
        task = self._task
        return task is not None and task.state is _TaskState.OPENING and task.job == job

    def receive(self, message: TaskBody, now: float) -> list[Effect]:
        """Take the task that was asked for; one that is not what it is called is asked again."""
        task = self._in(_TaskState.WANTED, message.digest)
        if task is None:
            self._counters["task_unasked"] += 1
            return []
        if hashlib.sha256(message.body).hexdigest() != message.digest:
            self._counters["digest_mismatch"] += 1
            task.asked_at = now
            return []
        task.body, task.recipe = message.body, message.recipe
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
        task.state = _TaskState.OPEN if task.idle else _TaskState.OPENING
        task.job = next(self._jobs)
        return [] if task.idle else [replace(self._stream, job=task.job, task=task.body)]

    def _refuse(self, task: Task, detail: str, reason: DeclineReason, now: float) -> None:
        task.state, task.refused_at = _TaskState.REFUSED, now
        task.detail, task.reason = detail, reason

    def _in(self, state: _TaskState, digest: str) -> Task | None:
        task = self._task
        found = task is not None and task.digest == digest and task.state is state
        return task if found else None


@dataclass(slots=True)
class Fetch:
    """One task and one model from one edge, for the order or evaluation that names them."""

    key: Key  # edge they come from, run and round
    wanted: TrainOrder | OpinionCall
    tasks: Tasks
    counters: Counter[str]
    model_at: float | None = None  # when it was whole
    problem: str = ""
    loading: bool = False
    _fresh_starts: int = 0
    _receiver: Receiver | None = None
    _listening: bool = False
    _first_at: float = 0.0
    _first_bytes: int = 0
    _got: int = 0
    _last_at: float = 0.0

    # ------------------------------------------------------------------ model

    def begin(self) -> list[Effect]:
        """Look for what of the model is on disk already."""
        self.loading = True
        return [OpenModel(self.wanted.model, self.wanted.size, self.wanted.chunk_bytes)]

    def opened(self, have: frozenset[int] | None, now: float) -> list[Effect]:
        """Go and get the chunks that are not here; None: the whole model is."""
        if have is None:
            self.loading, self.model_at = False, now
            return self.acknowledge()
        layout = Layout(self.wanted.size, self.wanted.chunk_bytes)
        self._receiver = Receiver(layout, window=WINDOW, have=set(have))
        if self._receiver.complete:
            return [FinishModel(self.wanted.model)]
        return [SubscribeModel(self.key.edge, self.wanted.model)]

    def subscribed(self, edge: str, now: float, *, ok: bool) -> list[Effect]:
        """Ask for chunks, which can come now."""
        if edge != self.key.edge:
            return []
        if not ok:
            self.problem = "the broker refused the subscription to the model"
            return []
        self._listening = True
        return self._ask(now)

    def receive(self, chunk: Chunk, now: float) -> list[Effect]:
        """Take a chunk; raise `ChunkError` if it does not fit the layout, or was not asked for."""
        receiver = self._receiver
        if receiver is None:
            raise ChunkError(f"chunk {chunk.index} was not asked for")
        if not receiver.accept(chunk.index, len(chunk.data), now):
            self.counters["chunk_twice"] += 1
            return []
        if self._got == 0:
            self._first_at, self._first_bytes = now, len(chunk.data)
        self._got += len(chunk.data)
        self._last_at = now
        offset = chunk.index * self.wanted.chunk_bytes
        effects: list[Effect] = [WriteModel(self.wanted.model, offset, chunk.data)]
        if receiver.complete:
            return [*effects, *self._unsubscribe(), FinishModel(self.wanted.model)]
        return effects + self._ask(now)

    def finished(self, result: ModelFinished, link: LinkQuality | None, now: float) -> list[Effect]:
        """Note that the model is whole; begin again if it does not hash to its name."""
        if not result.refused:
            self.loading, self.model_at = False, now
            nbytes, seconds = self._got - self._first_bytes, self._last_at - self._first_at
            # The first chunk waits for other agents; only what follows shows the link.
            if link is not None and nbytes > 0 and seconds > 0:
                link.note_download(nbytes, seconds)
            return [] if self._got else self.acknowledge()
        self.counters["digest_mismatch"] += 1
        if self._fresh_starts >= MAX_FRESH_STARTS:
            self.problem = result.refused
            return []
        self._fresh_starts += 1
        self._receiver, self._got = None, 0
        return self.begin()

    def acknowledge(self) -> list[Effect]:
        """Show the edge that its order is here, once the model is: there is nothing to ask for."""
        if self.model_at is None or not isinstance(self.wanted, TrainOrder):
            return []
        run, number = self.key.rank
        need = Need(run=run, round=number, digest=self.wanted.model, ranges=())
        return [Send(self.key.edge, need)]

    def pause(self) -> list[Effect]:
        """Let go of the network; `begin` goes on with what is on disk."""
        effects = self._unsubscribe() if self.loading else []
        self.loading, self._receiver, self._got = False, None, 0
        return effects

    def move(self, edge: str, wanted: OpinionCall, now: float) -> list[Effect]:
        """Go on with another edge."""
        effects = self.pause()
        self.key, self.wanted = Key(edge, self.key.run, self.key.round), wanted
        return effects + self.tasks.ask(self.wanted.task, self.key, now)

    def _ask(self, now: float) -> list[Effect]:
        if not self._listening or self._receiver is None or self._receiver.complete:
            return []
        ranges = self._receiver.ask(now)
        if not ranges:
            return []
        run, number = self.key.rank
        need = Need(run=run, round=number, digest=self.wanted.model, ranges=ranges)
        return [Send(self.key.edge, need)]

    def _unsubscribe(self) -> list[Effect]:
        if not self._listening and self._receiver is None:
            return []
        self._listening = False
        return [UnsubscribeModel(self.key.edge, self.wanted.model)]

    # ------------------------------------------------------------------- time

    def reconnected(self, now: float) -> list[Effect]:
        """Ask again for what may be lost, perhaps on a new link."""
        effects = self.tasks.ask(self.wanted.task, self.key, now)
        if self.loading and self._receiver is not None and not self._receiver.complete:
            self._listening = False
            self._receiver.forget_credit()
            effects.append(SubscribeModel(self.key.edge, self.wanted.model))
        return effects

    def tick(self, now: float) -> list[Effect]:
        """Ask again for what did not come."""
        effects, asked = [], self.tasks.due(self.wanted.task)
        if asked is not None and now >= asked:
            effects += self.tasks.ask(self.wanted.task, self.key, now)
        if (due := self._due) is not None and now >= due:
            effects += self._ask(now)
        return effects

    def dues(self) -> list[float]:
        """Return when `tick` is wanted."""
        dues = (self.tasks.due(self.wanted.task), self._due)
        return [due for due in dues if due is not None]

    @property
    def _due(self) -> float | None:
        return self._receiver.due if self._receiver is not None and self._listening else None


def is_oversized(wanted: TrainOrder | OpinionCall) -> bool:
    """Whether a model is not of a size that is fetched."""
    chunks = wanted.chunk_bytes * MAX_CHUNKS
    return not 0 < wanted.size <= min(MAX_MODEL_BYTES, chunks)
