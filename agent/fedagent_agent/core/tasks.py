"""Tasks: fetched from edges, and opened with the stream, before the first order if need be.

An agent knows one task at a time. Where the coordinator signs tasks (`Vouching`), one that an edge
hands out needs its word: the edge is asked for the body, and the word comes with it. Until the word
is here, and is good, nothing of it is opened, and an edge has to repeat an order or a call.
"""

import hashlib
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Any

from msgspec.structs import replace

from fedagent_agent.trainer.frames import Failed, Open, Opened
from fedagent_node.effects import Effect, Send
from fedagent_node.timers import Timers
from fedagent_protocol.messages import (
    CHUNK_BYTES,
    DeclineReason,
    EdgeBeacon,
    TaskBody,
    TaskNeed,
    Welcome,
)
from fedagent_task.errors import TaskFormatError
from fedagent_task.recipe.spec import SecureAggregationSpec, TaskSpec
from fedagent_task.recipe.text import parse_task

from .device import DeviceState
from .download import Download
from .effects import Key, Newest
from .session import Session, Sessions
from .vouching import HINTS, REMEMBERED, Vouching

AGAIN_S = 1.0
REFUSED_S = 10.0
"""An edge that had no good word for a task is asked again after this long."""
PREPARE_S = 30.0
"""After so long an agent may be ordered although it is not ready: the order tells why."""
OPEN_AGAIN_S = 10.0
"""A stream that did not fit is tried again after this long, when a task needs it."""
_REASONS = {
    "schema": DeclineReason.SCHEMA,
    "no_data": DeclineReason.NO_DATA,
    "memory": DeclineReason.LOAD,
    "privacy": DeclineReason.PRIVACY,
}
"""What a failure of the trainer is to the edge; any other is an error."""
NO_TRAINING = "none"
"""Learner of a task that opens no stream and starts no trainer."""


def why(failed: Failed) -> tuple[DeclineReason, str]:
    """Return what a failure of the trainer is to an edge, and its words."""
    reason, word = _REASONS.get(failed.reason, DeclineReason.ERROR), failed.reason
    said = failed.detail if word == reason else f"{word}: {failed.detail}".rstrip(": ")
    return reason, said or word


class Jobs(dict[int, Callable[[Any, float], list[Effect]]]):
    """The trainer's jobs under way, by number: who takes the one answer of each."""

    _last = 0

    def start(self, taker: Callable[[Any, float], list[Effect]]) -> int:
        """Return the number of a new job."""
        self._last += 1
        self[self._last] = taker
        return self._last


class TaskState(Enum):
    """How far a task is."""

    WANTED = "wanted"  # an edge was asked for its body
    FETCHING = "fetching"  # what its devices get once is on its way
    OPENING = "opening"  # the stream is being opened for it
    OPEN = "open"
    REFUSED = "refused"


@dataclass(slots=True)
class Task:
    """The task that was wanted last; of one that is refused, `refusal` says why."""

    digest: str
    state: TaskState = TaskState.WANTED
    spec: TaskSpec | None = None  # what it says, once its body is here
    key: Key | None = None  # of whom it is here
    body: bytes = b""
    recipe: str = ""
    chunk_bytes: int = CHUNK_BYTES
    refusal: tuple[DeclineReason, str] = (DeclineReason.ERROR, "")
    refused_at: float = 0.0
    fetch: Download | None = None  # of what is fetched once for it

    @property
    def idle(self) -> bool:
        """Whether nothing is learnt, so that there is no stream and no trainer."""
        return self.spec is not None and self.spec.learner.name == NO_TRAINING

    @property
    def masks(self) -> SecureAggregationSpec | None:
        """How it wants updates masked; None: it does not, or is not here."""
        masks = self.spec.secure_aggregation if self.spec is not None else None
        return masks if masks is not None and masks.wanted else None


@dataclass(slots=True)
class _Ask:
    """A task that an edge was asked for."""

    at: float = -math.inf
    refusal: str = ""  # why the word was not good
    refused_at: float = -math.inf


@dataclass(slots=True)
class Tasks:
    """Gets a task and has the stream opened for it, by `_stream` with its body and a number.

    The start of a trainer takes seconds on a small or busy device, more than a round may have. So
    the task that an edge names is opened before its first order; meanwhile the agent reports that
    it is not available (docs/protocol.md, Sessions).
    """

    _device: DeviceState
    _stream: Open
    _jobs: Jobs
    _counters: Counter[str]
    _vouching: Vouching
    _sessions: Sessions
    _timers: Timers
    task: Task | None = None
    _asks: Newest[tuple[str, str, str], _Ask] = field(default_factory=lambda: Newest(REMEMBERED))
    _prepares: tuple[str, Key] | None = None
    """The task that is opened beforehand, and for whom."""

    def of(self, digest: str) -> Task | None:
        """Return a task, if it is the one that was wanted last."""
        task = self.task
        return task if task is not None and task.digest == digest else None

    # ----------------------------------------------------------------- asking

    def want(self, digest: str, key: Key, now: float) -> list[Effect]:
        """Get a task, in the place of any other; ask for `refused` afterwards.

        One that nobody has vouched for takes no place until its edge shows the coordinator's word.
        """
        if not self._vouching.stands(key, digest, now):
            return self._ask(digest, key, now)
        task = self._take_place(digest)
        if task.state is TaskState.WANTED:
            return self._ask(digest, key, now)
        # A trainer that died is started again at once; a stream must be fixed first.
        patience = 0.0 if task.refusal[0] is DeclineReason.ERROR else OPEN_AGAIN_S
        if task.state is TaskState.REFUSED and now >= task.refused_at + patience:
            return self._open(task, now)
        return []

    def distrust(self, key: Key, task: str, now: float) -> str:
        """Return why an edge's word on a task was refused, as long as it is not asked again."""
        ask = self._asks.get((key.edge, key.run, task))
        return ask.refusal if ask is not None and now < ask.refused_at + REFUSED_S else ""

    def _ask(self, digest: str, key: Key, now: float) -> list[Effect]:
        named = key.edge, key.run, digest
        ask = self._asks[named] = self._asks.get(named, _Ask())
        if now < ask.at + AGAIN_S or self.distrust(key, digest, now):
            return []
        ask.at, ask.refusal = now, ""
        return [Send(key.edge, TaskNeed(run=key.run, round=key.round, digest=digest))]

    def _take_place(self, digest: str) -> Task:
        if self.task is None or self.task.digest != digest:
            self._drop_fetch()
            self.task = Task(digest)
            self._device.cold = True
        return self.task

    def receive(self, edge: str, message: TaskBody, now: float, *, busy: bool) -> list[Effect]:
        """Take the task that was asked for.

        One that is not what it is called is asked for again. While the device is `busy`, a task
        that is vouched for only now takes the place of none.
        """
        key, digest = Key(edge, message.run, 0), message.digest
        named = (edge, message.run, digest)
        ask = self._asks.get(named)
        if ask is None or ask.refusal:
            self._counters["task_unasked"] += 1
            return []
        if not self._vouching.stands(key, digest, now):
            if why := self._vouching.judge(key, digest, message.claim, now):
                ask.refusal, ask.refused_at = f"{why}: {HINTS.get(why, why)}", now
                text = f"task {digest[:12]} of run {key.run[:8]} refused: {ask.refusal}"
                return self._vouching.warn(edge, text)
            if not busy:
                self._take_place(digest)
        task = self.of(digest)
        if task is None or task.state is not TaskState.WANTED:
            del self._asks[named]
            return []
        if hashlib.sha256(message.body).hexdigest() != digest:
            self._counters["digest_mismatch"] += 1
            ask.at = now
            return []
        del self._asks[named]
        task.key, task.body, task.recipe = key, message.body, message.recipe
        task.chunk_bytes = message.chunk_bytes
        return self._open(task, now)

    # ---------------------------------------------------------------- opening

    def _open(self, task: Task, now: float) -> list[Effect]:
        """Read the body; get what its devices get once, if there is such, and open the stream."""
        assert task.key is not None
        try:
            task.spec = parse_task(task.body)
        except TaskFormatError as error:
            return self._refuse(task, DeclineReason.SCHEMA, str(error), now)
        model = task.spec.model
        if task.idle or not model.once:
            return self._open_stream(task)
        chunk_bytes, more = task.chunk_bytes, (self._counters, self._timers)
        fetch = Download(task.key, model.once, model.once_bytes, chunk_bytes, *more, once=True)
        if not fetch.fits:
            detail = f"model.once: {model.once_bytes} bytes in chunks of {chunk_bytes}"
            return self._refuse(task, DeclineReason.SCHEMA, detail, now)
        task.state, task.fetch = TaskState.FETCHING, fetch
        return fetch.begin()

    def _open_stream(self, task: Task) -> list[Effect]:
        assert task.spec is not None
        if task.idle:
            task.state = TaskState.OPEN
            return []
        task.state = TaskState.OPENING
        job = self._jobs.start(partial(self._replied, task))
        return [replace(self._stream, job=job, task=task.body, once=task.spec.model.once)]

    def _replied(self, task: Task, reply: Opened | Failed, now: float) -> list[Effect]:
        if isinstance(reply, Failed):
            return self._refuse(task, *why(reply), now)
        task.state = TaskState.OPEN
        return []

    def _refuse(self, task: Task, reason: DeclineReason, detail: str, now: float) -> list[Effect]:
        task.state, task.refusal, task.refused_at = TaskState.REFUSED, (reason, detail), now
        return []

    def lost(self, edge: str) -> None:
        """Get the task again, of whichever edge names it: this one is gone."""
        task = self.task
        if task is not None and task.fetch is not None and task.fetch.key.edge == edge:
            self._drop_fetch()
            task.state = TaskState.WANTED

    def _drop_fetch(self) -> None:
        if self.task is not None and self.task.fetch is not None:
            self.task.fetch.pause()
            self.task.fetch = None

    # -------------------------------------------------------------- preparing

    def named(
        self, session: Session, message: Welcome | EdgeBeacon, now: float, *, busy: bool
    ) -> list[Effect]:
        """Begin with the task that an edge names, or ask again for what of it got lost.

        The task that is open stays so while it is `busy`: ordered or evaluated.
        """
        digest, key = message.task, Key(session.edge, message.run, 0)
        if not digest or self._sessions.open(session.edge) is None:
            return []
        if digest == session.task:
            return [] if self._is_settled(digest, key) else self.want(digest, key, now)
        session.task, effects = digest, list[Effect]()
        held = self.task.digest if self.task is not None else ""
        wanted = any(other.task == held for other in self._sessions.values())
        if held in ("", digest) or not (busy or wanted):
            effects = self.want(digest, key, now)
        if self._is_settled(digest, key):
            return [*effects, Send(session.edge, self._sessions.report(session, now))]
        self._prepares, self._device.preparing = (digest, key), True
        self._timers.at("prepare", now + PREPARE_S, self._prepared)
        return effects + self._sessions.measured(now, forced=True)

    def go_on(self, now: float) -> list[Effect]:
        """Open the stream once all is here that the task needs; report that it is open."""
        effects, task = list[Effect](), self.task
        if task is not None and (fetch := task.fetch) is not None:
            if fetch.problem:
                task.fetch = None
                self._refuse(task, DeclineReason.LOAD, f"model.once: {fetch.problem}", now)
            elif fetch.whole_at is not None:
                task.fetch = None
                if self._prepares is not None and self._prepares[0] == task.digest:
                    self._timers.at("prepare", now + PREPARE_S, self._prepared)
                effects = self._open_stream(task)
        if self._prepares is not None and self._is_settled(*self._prepares):
            effects += self._ready(now)
        return effects

    def _prepared(self, now: float) -> list[Effect]:
        """Report that the device is available, ready or not, unless something still comes."""
        task = self.of(self._prepares[0]) if self._prepares is not None else None
        if task is not None and task.fetch is not None and now < task.fetch.moved_at + PREPARE_S:
            self._timers.at("prepare", task.fetch.moved_at + PREPARE_S, self._prepared)
            return []
        return self._ready(now)

    def _ready(self, now: float) -> list[Effect]:
        self._prepares, self._device.preparing = None, False
        self._timers.stop("prepare")
        return self._sessions.measured(now, forced=True)

    def _is_settled(self, digest: str, key: Key) -> bool:
        """Whether a task of an edge is open, or refused, or not wanted any more."""
        ask, task = self._asks.get((key.edge, key.run, digest)), self.of(digest)
        if ask is not None and not ask.refusal:
            return False
        return task is None or task.state in (TaskState.OPEN, TaskState.REFUSED)
