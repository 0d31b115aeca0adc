"""The task that the trainer is open for: one at a time, which orders and evaluations share.

A task comes from an edge, with the coordinator's word on it where that is asked for. Until the word
is here, and is good, nothing of it is opened, and an edge has to repeat an order or a call.
"""

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Any

from msgspec.structs import replace

from fedagent_agent.trainer.frames import Failed, Open, Opened, Reply
from fedagent_node.effects import Effect, Send
from fedagent_protocol.messages import (
    CHUNK_BYTES,
    DeclineReason,
    EdgeBeacon,
    TaskBody,
    TaskNeed,
    Weighting,
    Welcome,
)
from fedagent_task.errors import TaskFormatError
from fedagent_task.recipe.spec import SecureAggregationSpec, TaskSpec
from fedagent_task.recipe.text import parse_task

from .device import DeviceState
from .download import Download, fits
from .effects import Key, Newest, Timer
from .session import Session, Sessions, SessionState
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


Taker = Callable[[Any, float], list[Effect]]


def why(failed: Failed) -> tuple[DeclineReason, str]:
    """Return what a failure of the trainer is to an edge, and its words."""
    reason, word = _REASONS.get(failed.reason, DeclineReason.ERROR), failed.reason
    said = failed.detail if word == reason else f"{word}: {failed.detail}".rstrip(": ")
    return reason, said or word


class Jobs:
    """The trainer's jobs under way, by number: who takes the one answer of each."""

    def __init__(self) -> None:
        self._last = 0
        self._takers: dict[int, Taker] = {}

    def start(self, taker: Taker) -> int:
        """Return the number of a new job."""
        self._last += 1
        self._takers[self._last] = taker
        return self._last

    def drop(self, job: int | None) -> None:
        """Want the answer no more."""
        self._takers.pop(job or 0, None)

    def answer(self, reply: Reply, now: float) -> list[Effect] | None:
        """Hand an answer on; None: nobody wants it."""
        taker = self._takers.pop(reply.job, None)
        return taker(reply, now) if taker is not None else None


class _State(Enum):
    WANTED = "wanted"  # an edge was asked for its body
    FETCHING = "fetching"  # what its devices get once is on its way
    OPENING = "opening"  # the stream is being opened for it
    OPEN = "open"
    REFUSED = "refused"


@dataclass(slots=True)
class Task:
    """The task that was wanted last; of one that is refused, `detail` says why."""

    digest: str
    state: _State = _State.WANTED
    spec: TaskSpec | None = None
    body: bytes = b""
    recipe: str = ""
    detail: str = ""
    reason: DeclineReason = DeclineReason.SCHEMA
    refused_at: float = 0.0
    once: Download | None = None
    chunk_bytes: int = CHUNK_BYTES
    key: Key | None = None

    @property
    def idle(self) -> bool:
        """Whether nothing is learnt, so that there is no stream and no trainer."""
        return self.spec is not None and self.spec.learner.name == NO_TRAINING


@dataclass(slots=True)
class _Ask:
    """A task that an edge was asked for."""

    at: float = -math.inf
    refusal: str = ""  # why the word was not good
    refused_at: float = -math.inf


@dataclass(slots=True)
class Tasks:
    """Gets a task and has the stream opened for it, by `_stream` with its body and a number."""

    _device: DeviceState
    _stream: Open
    _jobs: Jobs
    _counters: Counter[str]
    _vouching: Vouching
    _task: Task | None = None
    _asks: Newest[tuple[str, str, str], _Ask] = field(default_factory=lambda: Newest(REMEMBERED))

    # ----------------------------------------------------------------- asking

    def want(self, digest: str, key: Key, now: float) -> list[Effect]:
        """Get a task, in the place of any other; ask for `refused` afterwards.

        One that nobody has vouched for takes no place until its edge shows the coordinator's word.
        """
        if not self._vouching.stands(key, digest, now):
            return self._ask(digest, key, now)
        task = self._take_place(digest)
        if task.state is _State.WANTED:
            return self._ask(digest, key, now)
        # A trainer that died is started again at once; a stream must be fixed first.
        patience = 0.0 if task.reason is DeclineReason.ERROR else OPEN_AGAIN_S
        if task.state is _State.REFUSED and now >= task.refused_at + patience:
            return self._open(task, now)
        return []

    def refusal(self, key: Key, task: str, now: float) -> str:
        """Return why an edge's word on a task was refused, as long as it is not asked again."""
        ask = self._asks.get((key.edge, key.run, task))
        return ask.refusal if ask is not None and now < ask.refused_at + REFUSED_S else ""

    def _ask(self, digest: str, key: Key, now: float) -> list[Effect]:
        named = key.edge, key.run, digest
        ask = self._asks[named] = self._asks.get(named, _Ask())
        if now < ask.at + AGAIN_S or self.refusal(key, digest, now):
            return []
        ask.at, ask.refusal = now, ""
        return [Send(key.edge, TaskNeed(run=key.run, round=key.round, digest=digest))]

    def _take_place(self, digest: str) -> Task:
        if self._task is None or self._task.digest != digest:
            self._task = Task(digest)
            self._device.cold = True
        return self._task

    def receive(self, edge: str, message: TaskBody, now: float, *, busy: bool) -> list[Effect]:
        """Take the task that was asked for.

        One that is not what it is called is asked for again. While the device is `busy`, a task
        that is vouched for only now takes the place of none.
        """
        key, digest, effects = Key(edge, message.run, 0), message.digest, list[Effect]()
        named = (edge, message.run, digest)
        ask = self._asks.get(named)
        if ask is None or ask.refusal:
            self._counters["task_unasked"] += 1
            return []
        if not self._vouching.stands(key, digest, now):
            if why := self._vouching.judge(key, digest, message.claim, now):
                ask.refusal, ask.refused_at = f"{why}: {HINTS.get(why, why)}", now
                text = f"task {digest[:12]} of run {key.run[:8]} refused: {ask.refusal}"
                effects = self._vouching.warn(edge, text)
            elif not busy:
                self._take_place(digest)
        if (task := self._in(_State.WANTED, digest)) is not None and not ask.refusal:
            if hashlib.sha256(message.body).hexdigest() != digest:
                self._counters["digest_mismatch"] += 1
                ask.at = now
                return effects
            task.body, task.recipe, task.key = message.body, message.recipe, key
            task.chunk_bytes = message.chunk_bytes
            effects += self._open(task, now)
        if not ask.refusal:
            del self._asks[named]
        return effects

    # ------------------------------------------------------------ what is known

    @property
    def digest(self) -> str:
        """Digest of the task that was wanted last; empty before the first."""
        return self._task.digest if self._task is not None else ""

    def is_settled(self, digest: str, key: Key) -> bool:
        """Whether a task of an edge is open, or refused, or not wanted any more."""
        ask = self._asks.get((key.edge, key.run, digest))
        if ask is not None and not ask.refusal:
            return False
        task = self._of(digest)
        return task is None or task.state in (_State.OPEN, _State.REFUSED)

    def opened(self, digest: str) -> Task | None:
        """Return the task if the stream is open for it."""
        return self._in(_State.OPEN, digest)

    def refused(self, digest: str) -> Task | None:
        """Return the task if the device cannot do it."""
        return self._in(_State.REFUSED, digest)

    def spec(self, digest: str) -> TaskSpec | None:
        """Return what a task says, once its body is here."""
        task = self._of(digest)
        return task.spec if task is not None else None

    def masked(self, digest: str) -> SecureAggregationSpec | None:
        """Return how a task wants updates masked, once its body is here; None: it does not."""
        spec = self.spec(digest)
        masks = spec.secure_aggregation if spec is not None else None
        return masks if masks is not None and masks.wanted else None

    def weight(self, digest: str, samples: int) -> int:
        """Return what a masked update of so many samples weighs."""
        spec = self.spec(digest)
        assert spec is not None
        if spec.weighting is Weighting.UNIFORM:
            return 1
        return max(1, min(samples, spec.limits.max_samples))

    def _of(self, digest: str) -> Task | None:
        task = self._task
        return task if task is not None and task.digest == digest else None

    def _in(self, state: _State, digest: str) -> Task | None:
        task = self._of(digest)
        return task if task is not None and task.state is state else None

    # ---------------------------------------------------------------- opening

    def _replied(self, task: Task, reply: Opened | Failed, now: float) -> list[Effect]:
        if isinstance(reply, Failed):
            reason, detail = why(reply)
            self._refuse(task, detail, reason, now)
        else:
            task.state = _State.OPEN
        return []

    def _open(self, task: Task, now: float) -> list[Effect]:
        try:
            task.spec = parse_task(task.body)
        except TaskFormatError as error:
            self._refuse(task, str(error), DeclineReason.SCHEMA, now)
            return []
        if task.idle:
            task.state = _State.OPEN
            return []
        model, chunk_bytes = task.spec.model, task.chunk_bytes
        if not model.once:
            return self._open_stream(task)
        if not fits(model.once_bytes, chunk_bytes):
            detail = f"model.once: {model.once_bytes} bytes in chunks of {chunk_bytes}"
            self._refuse(task, detail, DeclineReason.SCHEMA, now)
            return []
        assert task.key is not None
        task.state = _State.FETCHING
        task.once = Download(
            task.key, model.once, model.once_bytes, chunk_bytes, self._counters, once=True
        )
        return task.once.begin()

    def _open_stream(self, task: Task) -> list[Effect]:
        task.state = _State.OPENING
        once = task.once.digest if task.once is not None else ""
        job = self._jobs.start(partial(self._replied, task))
        return [replace(self._stream, job=job, task=task.body, once=once)]

    @property
    def once(self) -> Download | None:
        """What is fetched once for the task, while it is."""
        task = self._task
        return task.once if task is not None and task.state is _State.FETCHING else None

    def go_on(self, now: float) -> list[Effect]:
        """Open the stream once all is here that the task needs."""
        task, once = self._task, self.once
        if task is None or once is None:
            return []
        if once.problem:
            self._refuse(task, f"model.once: {once.problem}", DeclineReason.LOAD, now)
            return []
        return [] if once.whole_at is None else self._open_stream(task)

    def lost(self, edge: str) -> None:
        """Get the task again, of whichever edge names it: this one is gone."""
        task, once = self._task, self.once
        if task is not None and once is not None and once.key.edge == edge:
            task.state = _State.WANTED

    def _refuse(self, task: Task, detail: str, reason: DeclineReason, now: float) -> None:
        task.state, task.refused_at = _State.REFUSED, now
        task.detail, task.reason = detail, reason


@dataclass(slots=True)
class Preparation:
    """Gets ready before the first order: the task that an edge names is opened beforehand.

    The start of a trainer takes seconds on a small or busy device, more than a round may have.
    Meanwhile the agent reports that it is not available (docs/protocol.md, Sessions).
    """

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
