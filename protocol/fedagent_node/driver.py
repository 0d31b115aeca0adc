"""Drive a role's core: feed it inputs, perform its effects in order. No clock, thread or network.

`shell.Shell` drives a process with it, `fedagent_testbed.node` one of the virtual world.
"""

import functools
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from msgspec.structs import replace

from fedagent_protocol import topics
from fedagent_protocol.bucket import TokenBucket
from fedagent_protocol.codec import Direction, decode
from fedagent_protocol.errors import ProtocolError
from fedagent_protocol.messages import PROTOCOL_VERSION, AnyMessage, kind

from .effects import (
    Connect,
    ContentLostError,
    Effect,
    Emit,
    Input,
    Received,
    RunJob,
    Send,
    TakenOver,
    Warn,
    Write,
)
from .envelope import EnvelopeError, Gate, Refusal, named_sender

_parse = functools.lru_cache(maxsize=256)(topics.parse)
"""Kept are few: each is half a kilobyte."""

_RECEIVERS = {
    Direction.AGENT_TO_EDGE: "edge",
    Direction.EDGE_TO_AGENT: "agent",
    Direction.EDGE_TO_COORDINATOR: "",
    Direction.COORDINATOR_TO_EDGE: "edge",
}
"""The field of a topic that names the receiver."""
MESSAGES_AT_ONCE = 4096.0
MESSAGES_PER_S = 200.0
"""What is looked at of one sender: two of the largest models in pieces, however fast the link, and
then a tenth of a processor's time for its signatures."""
MAX_SENDERS = 20_000
REFUSED_S = 5.0
"""How often a line says who was refused, for each reason; between, they are counted."""


class Core(Protocol):
    """A role's decisions: a state machine without clock, disk or network."""

    counters: Counter[str]

    def receive(self, event: Input, now: float) -> list[Effect]:
        """Take in an event."""

    def tick(self, now: float) -> list[Effect]:
        """Do what is due."""

    def next_due(self) -> float | None:
        """Return when `tick` is wanted."""

    def urgent(self) -> bool:
        """Return whether something is open that a lost link must be back for soon."""


@dataclass(frozen=True, slots=True)
class Job:
    """What a `RunJob` comes to: `work` may run in any thread, and touches nothing of the core."""

    name: str
    work: Callable[[], Input]
    small: bool  # it takes less time than handing it to a thread and back


class Store(Protocol):
    """A role's disk. A checkpoint between any two disk effects may not return."""

    def write(self, effect: Write, now: float) -> Input | None:
        """Perform a disk effect; return its result, if the core waits for one."""

    def job(self, effect: RunJob) -> Job | None:
        """Prepare a job; None where another does it, and its result comes as an input."""

    def complete(self, message: AnyMessage, nbytes: int) -> AnyMessage:
        """Return a message with bytes that the store keeps, or raise `ContentLostError`."""

    def flush(self) -> None:
        """Write what may wait for others of its kind, and waits since the last flush."""

    def close(self) -> None:
        """Close the files. Idempotent."""


class Links(Protocol):
    """A role's connections."""

    def send(self, send: Send) -> bool:
        """Send a complete message, or raise `ProtocolError`; False if no connection took it."""

    def change(self, effect: Connect) -> None:
        """Change links or subscriptions."""


class Jobs(Protocol):
    """Where jobs run."""

    def submit(self, job: Job) -> Input | None:
        """Return the result of a job done at once; None if it comes by `Driver.receive`."""


def _raise(error: Exception) -> None:
    raise error


class Driver:
    """One role at work: what is addressed to another one than `me` is refused.

    `on_error` takes what an input caused; the others of its batch go on. Without a `gate`
    messages are bare: virtual time.
    """

    def __init__(
        self,
        core: Core,
        store: Store,
        *,
        links: Links,
        jobs: Jobs,
        clock: Callable[[], float],
        emit: Callable[[Emit], None],
        warn: Callable[[Warn], None],
        me: str,
        on_error: Callable[[Exception], None] = _raise,
        gate: Gate | None = None,
    ) -> None:
        self.core = core
        self.store = store
        self._links = links
        self._jobs = jobs
        self._clock = clock
        self._emit = emit
        self._warn = warn
        self._me = me
        self._on_error = on_error
        self._gate = gate
        self._refused: dict[str, tuple[float, int]] = {}
        self._budgets: dict[str, TokenBucket] = {}

    def arrived(
        self,
        link: str,
        direction: Direction,
        topic: str,
        payload: bytes,
        *,
        at: float,
        link_idle: bool = True,
    ) -> None:
        """Take in what came on a topic, until `flush`; foreign bytes are only counted."""
        try:
            where = _parse(topic)
        except ProtocolError as error:
            self.core.counters[error.reason] += 1
            return
        try:
            to = getattr(where, _RECEIVERS[direction], "")
            if where.direction is not direction or to not in ("", self._me):
                self.core.counters["topic"] += 1
                return
            if not self._may_send(named_sender(where)):
                self._refuse("refused_flood", where, "more messages than anybody sends: revoke it")
                return
            if where.version != PROTOCOL_VERSION:
                why = f"it speaks protocol {where.version}, we {PROTOCOL_VERSION}: install the same"
                self._refuse("protocol_version", where, f"{why} version of fedagent on both")
                return
            event = self._event(where, topic, payload, link, at, link_idle=link_idle)
        except EnvelopeError as error:
            self._refuse(f"refused_{error.detail}", where, str(error))
            if error.detail is Refusal.CLONED:
                self._handle(self.core.receive, TakenOver(named_sender(where), sure=True))
            return
        except ProtocolError as error:
            self._refuse(
                error.reason, where, f"{error}; the sender may run another version of fedagent"
            )
            return
        if event is not None:
            self._handle(self.core.receive, event)

    def _may_send(self, sender: str) -> bool:
        """Take from a sender's budget of messages, before any is looked at."""
        # The newest last: those that were silent for longest are forgotten.
        bucket = self._budgets.pop(sender, None) or TokenBucket(MESSAGES_AT_ONCE, MESSAGES_PER_S)
        self._budgets[sender] = bucket
        if len(self._budgets) > MAX_SENDERS:
            del self._budgets[next(iter(self._budgets))]
        return bucket.take(self._clock())

    def _event(
        self,
        where: topics.Topic,
        topic: str,
        payload: bytes,
        link: str,
        at: float,
        *,
        link_idle: bool,
    ) -> Input | None:
        """Return what a payload is to the core; None of what was for the gate."""
        sender, proof = named_sender(where), b""
        body: bytes | memoryview = payload
        if self._gate is not None:
            opened = self._gate.open(topic, where, payload, link)
            if opened is None:
                return None
            sender, body, proof = opened.sender, opened.body, opened.proof
        message = decode(where.direction, body)
        if kind(message) != where.kind:
            # What comes bare would let any message in.
            raise ProtocolError(f"a {kind(message)} on a topic of another kind")
        return Received(sender, message, link, at, link_idle, proof)

    def _refuse(self, counter: str, where: topics.Topic, why: str) -> None:
        """Count what is not taken; say who and why, but not of each."""
        now = self._clock()
        self.core.counters[counter] += 1
        said_at, more = self._refused.get(counter, (-REFUSED_S, 0))
        if now - said_at < REFUSED_S:
            self._refused[counter] = said_at, more + 1
            return
        self._refused[counter] = now, 0
        others = f" (and {more} more for this reason)" if more else ""
        self._warn(Warn(named_sender(where), f"{where.kind} refused: {why}{others}"))

    def receive(self, *events: Input) -> None:
        """Take in events, and make durable what they wrote."""
        for event in events:
            self._handle(self.core.receive, event)
        self.flush()

    def flush(self) -> None:
        """Make durable what the inputs since the last flush wrote."""
        try:
            self.store.flush()
        except Exception as error:  # noqa: BLE001 - the owner decides
            self._on_error(error)

    def tick(self) -> None:
        """Do what is due."""
        self._handle(self.core.tick)
        self.flush()

    def next_due(self) -> float | None:
        """Return when `tick` is wanted."""
        return self.core.next_due()

    def _handle(self, decide: Callable[..., list[Effect]], *inputs: Input) -> None:
        """Do in order what the core decides; what a result leads to, at its effect's place."""
        now = self._clock()
        try:
            todo = deque(decide(*inputs, now))
            while todo:
                result: Input | None = None
                match todo.popleft():
                    case Send() as send:
                        result = self._send(send)
                    case Write() as write:
                        result = self.store.write(write, now)
                    case RunJob() as run:
                        job = self.store.job(run)
                        result = self._jobs.submit(job) if job is not None else None
                    case Emit() as event:
                        self._emit(event)
                    case Warn() as warning:
                        self._warn(warning)
                    case Connect() as change:
                        self._links.change(change)
                if result is not None:
                    todo.extendleft(reversed(self.core.receive(result, now)))
        except Exception as error:  # noqa: BLE001 - the owner decides
            self._on_error(error)

    def _send(self, send: Send) -> Input | None:
        try:
            if send.stored:
                message = self.store.complete(send.message, send.stored)
                send = replace(send, message=message, stored=0)
            sent = self._links.send(send)
        except ContentLostError as error:
            return error.lost
        except ProtocolError as error:
            self._warn(Warn(send.to, f"{kind(send.message)} cannot be sent: {error}"))
            sent = False
        if not sent:
            self.core.counters["not_sent"] += 1
        return None
