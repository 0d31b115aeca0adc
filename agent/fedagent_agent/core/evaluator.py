"""Evaluations of models that an edge calls for, and one answer to each call.

At most one call is under way; a newer round of its run takes its place. An order goes first:
one model comes in at a time. An answer is repeated word for word to every edge that asks again;
in mode ``peers`` it goes to the neighbours and to no edge.
"""

from collections import Counter
from dataclasses import InitVar, dataclass, field

from msgspec import structs

from fedagent_agent.peers.core.selection import PeerSelection
from fedagent_agent.trainer.frames import Evaluate, Evaluated, Failed
from fedagent_node.effects import Effect, Emit, Send
from fedagent_node.timers import Timers
from fedagent_protocol.messages import MAX_ROUNDS_AHEAD, Opinion, OpinionCall, OpinionMode
from fedagent_protocol.signed import SignAnswer

from .device import DeviceState
from .download import Download
from .effects import Key, Newest, OpinionAnswer, OpinionRecord, StoreOpinion, state_name
from .opinions import NO_LIMITS, PrivacySettings
from .orders import REMEMBERED, Orders
from .session import Session
from .tasks import Jobs, Task, Tasks, TaskState

ELSEWHERE = "already sent to another edge"
ENOUGH = 30
"""Samples whose sums a device reports without waiting for more."""
LOOK_S = 0.5
MODES = {
    OpinionMode.REPORT: frozenset({"auto", "report"}),
    OpinionMode.PEERS: frozenset({"peers"}),
}
"""What a task has to say about opinions for a call to be followed."""


@dataclass(slots=True)
class PendingEvaluation:
    """One call that is being followed."""

    key: Key  # edge that task and model come from, run and round
    call: OpinionCall  # as that edge sent it
    askers: dict[str, OpinionCall]
    fetch: Download
    until: float  # when no edge waits any more
    patient_until: float  # when mode ``moments`` waits no more for enough samples
    answer: OpinionAnswer | None = None
    job: int | None = None
    look_at: float = 0.0  # when mode ``moments`` looks at the stream again

    @property
    def moments(self) -> bool:
        """Whether sums over the samples are wanted, of which the model knows nothing."""
        return self.call.mode is OpinionMode.MOMENTS


@dataclass(slots=True)
class Evaluator:
    """At most one call at a time, and one answer to a round."""

    _device: DeviceState
    _orders: Orders
    _tasks: Tasks
    _jobs: Jobs
    _counters: Counter[str]
    _timers: Timers
    peers: PeerSelection
    _limits: PrivacySettings
    record: InitVar[OpinionRecord]
    _idle_opinions: bool  # there are opinions even where the task learns nothing
    _sign: SignAnswer  # of opinions that edges get, for the model and the task that they are of
    pending: PendingEvaluation | None = None
    spent: dict[str, float] = field(default_factory=dict)  # epsilon of opinions so far, by run
    ever: float = 0.0  # epsilon of all runs
    _answers: Newest[tuple[str, bool], OpinionAnswer] = field(
        default_factory=lambda: Newest(REMEMBERED)
    )

    def __post_init__(self, record: OpinionRecord) -> None:
        self.spent, self.ever = dict(record.spent), record.ever
        for answer in record.answers:
            self._remember(answer)

    # ------------------------------------------------------------------ calls

    def call(self, session: Session, call: OpinionCall, now: float) -> list[Effect]:
        """Take a call; the same again, also by another edge, has the same answer."""
        edge, moments, pending = session.edge, call.mode is OpinionMode.MOMENTS, self.pending
        newest = self._answers.get((call.run, moments))
        known = newest if newest is not None and newest.opinion.round == call.round else None
        if known is not None:
            if (known.opinion.model, known.mode) != (call.model, call.mode):
                self._counters["opinion_of_another"] += 1
                return []
            # After a restart neighbours need the task before they can go on.
            task = self._tasks.of(call.task)
            opened = task is not None and task.state is TaskState.OPEN
            if opened or call.mode is not OpinionMode.PEERS:
                return self._reply(edge, call, known, now)
        same_round = pending is not None and pending.key[1:] == (call.run, call.round)
        if pending and same_round and (moments or not pending.moments):
            self._join(pending, edge, call, now)
            return []
        if hindrance := self._hindrance(session, call, newest):
            self._counters[hindrance] += 1
            return []
        self._stop("superseded")
        session.run = call.run
        return self._begin(edge, call, known, now)

    def _begin(
        self, edge: str, call: OpinionCall, known: OpinionAnswer | None, now: float
    ) -> list[Effect]:
        key, span_s = Key(edge, call.run, call.round), call.until_ms / 1000
        fetch = Download(key, call.model, call.size, call.chunk_bytes, self._counters, self._timers)
        self.pending = PendingEvaluation(
            key, call, {edge: call}, fetch, now + span_s, now + span_s / 2, known
        )
        self._timers.at("call", now + span_s, self._too_late)
        readings = self._device.readings
        if known is None and not readings.available:
            return self.answer_none(readings.reason, now)
        if known is None and not fetch.fits:
            return self.answer_none(f"a model of {call.size} bytes", now)
        return self._tasks.want(call.task, key, now) + self.go_on(now)

    def _join(self, pending: PendingEvaluation, edge: str, call: OpinionCall, now: float) -> None:
        ours = pending.call
        if (call.task, call.model, call.mode) != (ours.task, ours.model, ours.mode):
            self._counters["opinion_of_another"] += 1
            return
        pending.askers[edge] = call
        pending.until = max(pending.until, now + call.until_ms / 1000)
        self._timers.at("call", pending.until, self._too_late)

    def _hindrance(self, session: Session, call: OpinionCall, newest: OpinionAnswer | None) -> str:
        """Return why a call is left without an answer; the edge repeats it."""
        pending, active = self.pending, self._orders.active
        newest_round = max(newest.opinion.round if newest else 0, session.round)
        if call.round > newest_round + MAX_ROUNDS_AHEAD:
            return "opinion_too_far"
        if newest and call.round < newest.opinion.round:
            return "opinion_outdated"
        if pending is not None:
            if pending.key.run == call.run and call.round < pending.key.round:
                return "opinion_outdated"
            if pending.key.run != call.run and pending.key.edge != session.edge:
                return "opinion_busy"
        if active is not None and active.order.task != call.task:
            return "opinion_busy"
        return ""

    # ------------------------------------------------------------- evaluation

    def go_on(self, now: float) -> list[Effect]:
        """Do the next step that nothing stands in the way of."""
        pending = self.pending
        if pending is None or pending.job is not None or now < pending.look_at:
            return []
        call, fetch, active = pending.call, pending.fetch, self._orders.active
        task = self._tasks.of(call.task)
        if task is not None and task.state is TaskState.REFUSED:
            return self.answer_none(task.refusal[1], now)
        if fetch.problem:
            return self.answer_none(fetch.problem, now)
        opened = task is not None and task.state is TaskState.OPEN
        if pending.answer is not None:
            return self._give(pending, pending.answer, now) if opened else []
        if fetch.whole_at is None and not pending.moments:
            busy = fetch.loading or (active is not None and active.fetch.loading)
            return [] if busy else fetch.begin()
        if task is None or not opened:
            return []
        if problem := self._objection(pending, task):
            return self.answer_none(problem, now)
        pending.job = self._jobs.start(self._evaluated)
        if pending.moments:
            return [Evaluate(job=pending.job, model="", moments=True, state="")]
        state = state_name(pending.key.run, call.task)
        return [Evaluate(job=pending.job, model=call.model, moments=False, state=state)]

    def _objection(self, pending: PendingEvaluation, task: Task) -> str:
        """Return why a model is not evaluated; an empty string if it may be."""
        spec, readings, mode = task.spec, self._device.readings, pending.call.mode
        assert spec is not None
        if not readings.available:
            return readings.reason
        if task.idle and not self._idle_opinions:
            return "the task learns nothing"
        if pending.moments:
            if not spec.data.standardize:
                return "the task does not standardize"
            if self._limits == NO_LIMITS:
                return ""
            return "the owner's privacy limits forbid statistics of the samples"
        if spec.opinions.mode not in MODES[mode]:
            # An edge must not get out of a device what its task keeps to itself.
            return f"the task has opinions.mode = {spec.opinions.mode}"
        spent = self.spent.get(pending.key.run, 0.0)
        return self._limits.objection(spec, mode, spent=spent, ever=self.ever)

    def make_room(self) -> None:
        """Let the model of an order that was taken come in first, and drop another task's call."""
        pending, active = self.pending, self._orders.active
        if pending is None or active is None:
            return
        if active.order.task != pending.call.task:
            self._stop("outranked")
        else:
            pending.fetch.pause()

    def _evaluated(self, result: Evaluated | Failed, now: float) -> list[Effect]:
        """Take the trainer's result of the call under way."""
        pending = self.pending
        assert pending is not None
        if isinstance(result, Failed):
            return self.answer_none(result.detail or result.reason, now)
        key, mode, samples = pending.key, pending.call.mode, result.samples
        if pending.moments and samples < ENOUGH and now < pending.patient_until:
            pending.job, pending.look_at = None, now + LOOK_S
            self._timers.at("look", pending.look_at, self.go_on)
            return []
        if not samples:
            return self.answer_none("no samples have arrived that were not trained on", now)
        if pending.moments and samples < ENOUGH:
            # Nothing hides them: the sums of one sample are that sample.
            few = f"{samples} samples have arrived: sums of fewer than {ENOUGH} tell too much"
            return self.answer_none(few, now)
        opinion = Opinion(
            run=key.run,
            round=key.round,
            model=pending.call.model,
            score=result.score,
            samples=samples,
            metric=result.metric,
            epsilon=result.epsilon,
            moments=result.moments,
        )
        if mode is OpinionMode.REPORT:
            opinion = structs.replace(opinion, claim=self._sign(pending.call, opinion, ""))
        # A device that is counted at two edges would be counted twice.
        pending.answer = OpinionAnswer(opinion, mode, edge=key.edge if pending.moments else "")
        if result.epsilon <= 0:
            return self._give(pending, pending.answer, now)
        # Noise must not be drawn twice: it is sent only when it cannot be forgotten.
        return [StoreOpinion(pending.answer, self.spent.get(key.run, 0.0) + result.epsilon)]

    # ---------------------------------------------------------------- answers

    def stored(self, answer: OpinionAnswer, now: float) -> list[Effect]:
        """Send an answer that is durable."""
        run = answer.opinion.run
        self.spent[run] = self.spent.get(run, 0.0) + answer.opinion.epsilon
        self.ever += answer.opinion.epsilon
        assert self.pending is not None
        return self._give(self.pending, answer, now)

    def answer_none(self, reason: str, now: float) -> list[Effect]:
        """Answer that there is no opinion, and why."""
        pending = self.pending
        assert pending is not None
        key, model = pending.key, pending.call.model
        opinion = Opinion(run=key.run, round=key.round, model=model, reason=reason[:500])
        return self._give(pending, OpinionAnswer(opinion, pending.call.mode), now)

    def _give(self, pending: PendingEvaluation, answer: OpinionAnswer, now: float) -> list[Effect]:
        self._end(pending)
        self._remember(answer)
        opinion, effects = answer.opinion, list[Effect]()
        for edge, call in pending.askers.items():
            effects += self._reply(edge, call, answer, now)
        # Never the score: events may be read by others than the owner.
        fields = {
            "round": opinion.round,
            "mode": str(answer.mode),
            "samples": opinion.samples,
            "epsilon": opinion.epsilon,
            "reason": opinion.reason,
        }
        return [*effects, Emit("opinion", fields)]

    def _reply(
        self, edge: str, call: OpinionCall, answer: OpinionAnswer, now: float
    ) -> list[Effect]:
        opinion = answer.opinion
        if answer.mode is OpinionMode.PEERS:
            score, task = opinion.score if opinion.samples else None, self._tasks.of(call.task)
            spec = task.spec.peers if task is not None and task.spec is not None else None
            return self.peers.begin(call, spec, edge, score, now)
        if answer.edge not in ("", edge):
            run, number, model = opinion.run, opinion.round, opinion.model
            opinion = Opinion(run=run, round=number, model=model, reason=ELSEWHERE)
        return [Send(edge, opinion)]

    def _remember(self, answer: OpinionAnswer) -> None:
        opinion, moments = answer.opinion, answer.mode is OpinionMode.MOMENTS
        if moments and not opinion.samples:
            return  # an edge that asks again may get some
        known = self._answers.get((opinion.run, moments))
        if known is None or known.opinion.round <= opinion.round:
            self._answers[opinion.run, moments] = answer

    # ------------------------------------------------------------------- ends

    def lost(self, edge: str) -> None:
        """Let go of what only this edge could get or give: the session with it is over."""
        for key, answer in list(self._answers.items()):
            if answer.edge == edge:
                del self._answers[key]
        pending = self.pending
        if pending is None or edge not in pending.askers:
            return
        del pending.askers[edge]
        if pending.key.edge == edge:
            # Another edge that asked repeats its call, and is followed then.
            self._stop("lost")

    def _too_late(self, now: float) -> list[Effect]:  # noqa: ARG002 - a timer
        self._stop("late")
        return []

    def _stop(self, reason: str) -> None:
        """Let go of the call under way without an answer."""
        if self.pending is not None:
            self._counters[f"opinion_{reason}"] += 1
            self._end(self.pending)

    def _end(self, pending: PendingEvaluation) -> None:
        self.pending = None
        pending.fetch.pause()
        self._jobs.pop(pending.job or 0, None)
        self._timers.stop("call")
        self._timers.stop("look")
