"""The evaluator: takes calls for opinions, has the model scored, and answers each call once.

At most one call is under way; a newer round of its run takes its place. An order goes
first where both need the network: one model comes in at a time. What was answered is
said again, word for word, to whoever asks again; in mode ``peers`` nothing is said, and
the opinion goes to `PeerExchange` instead.
"""

from collections import Counter, OrderedDict

from fedagent_agent.trainer_wire import EvaluationResult, Failed
from fedagent_protocol.messages import MAX_CHUNKS, Chunk, Opinion, OpinionCall, OpinionMode
from fedagent_protocol.transfer import Layout
from fedagent_task.recipe import parse_task
from fedagent_task.spec import TaskSpec

from .calls import (
    NO_LIMITS,
    NO_OPINIONS,
    OpinionRecord,
    PeerExchange,
    PendingEvaluation,
    PrivacyLimits,
)
from .download import MAX_FRESH_STARTS, Download
from .effects import Effect, EvaluateOnDevice, Event, Key, OpinionAnswer, Send, StoreOpinion
from .order_history import REMEMBERED
from .reporting import DeviceState, LinkQuality
from .session import Session
from .tasks import Tasks
from .training_queue import MAX_MODEL_BYTES, TrainingQueue

ELSEWHERE = "it was told to another edge"
ENOUGH = 30
"""Samples with which a device tells what they add up to, without waiting for more."""
LOOK_S = 0.5
MODES = {
    OpinionMode.REPORT: frozenset({"auto", "report"}),
    OpinionMode.PEERS: frozenset({"peers"}),
}
"""What a task has to say about opinions for a call to be followed."""


class Evaluator:
    """At most one call at a time, and one answer to a round.

    Attributes:
        current: The call that is being followed.
        peering: Takes opinions in mode ``peers``; without it such calls are not followed.
        spent: Epsilon that opinions have cost so far, by run.
        ever: The same of all runs there have been.
    """

    def __init__(
        self,
        device: DeviceState,
        queue: TrainingQueue,
        tasks: Tasks,
        counters: Counter[str],
        *,
        limits: PrivacyLimits = NO_LIMITS,
        said: OpinionRecord = NO_OPINIONS,
    ) -> None:
        self.current: PendingEvaluation | None = None
        self.peering: PeerExchange | None = None
        self.spent = dict(said.spent)
        self.ever = said.ever
        self._device = device
        self._queue = queue
        self._tasks = tasks
        self._counters = counters
        self._limits = limits
        self._job = 0
        self._answers: OrderedDict[tuple[str, bool], OpinionAnswer] = OrderedDict()
        for answer in said.answers:
            self._remember(answer)

    # ------------------------------------------------------------------ calls

    def call(self, session: Session, call: OpinionCall, now: float) -> list[Effect]:
        """Take a call; the same again, also by another edge, has the same answer."""
        edge = session.edge
        if call.mode is OpinionMode.PEERS and self.peering is None:
            self._counters["peers_unsupported"] += 1
            return []
        known = self._answers.get((call.run, call.mode is OpinionMode.MOMENTS))
        said = known if known is not None and known.opinion.round == call.round else None
        if said is not None and not self._wants_task(call, said):
            return self._repeat(edge, call, said, now)
        current = self.current
        if (
            current is not None
            and current.key.rank == (call.run, call.round)
            and not (current.message.mode is OpinionMode.MOMENTS is not call.mode)
        ):
            return self._join(current, edge, call, now)
        hindrance = self._hindrance(session, call, known)
        if hindrance:
            self._counters[hindrance] += 1
            return []
        effects = self._stop("superseded")
        session.enter_run(call.run)
        key = Key(edge, call.run, call.round)
        self.current = PendingEvaluation(
            key, call, {edge: call}, now + call.until_ms / 1000, answer=said
        )
        self.current.patient_until = now + call.until_ms / 2000
        if said is not None:
            return effects + self._tasks.want(call.task, key, now) + self.go_on(now)
        if not self._device.readings.available:
            return effects + self._none(self._device.readings.reason, now)
        if not 0 < call.size <= MAX_MODEL_BYTES or call.size > call.chunk_bytes * MAX_CHUNKS:
            return effects + self._none(f"a model of {call.size} bytes", now)
        return effects + self._tasks.want(call.task, key, now) + self.go_on(now)

    def _wants_task(self, call: OpinionCall, said: OpinionAnswer) -> bool:
        """Whether neighbours need the task before they can be told again, after a restart."""
        same = (said.opinion.model, said.mode) == (call.model, call.mode)
        return same and call.mode is OpinionMode.PEERS and self._tasks.opened(call.task) is None

    def _repeat(
        self, edge: str, call: OpinionCall, known: OpinionAnswer, now: float
    ) -> list[Effect]:
        """Say again what was said of this round."""
        same = (known.opinion.model, known.mode) == (call.model, call.mode)
        self._counters["opinion_repeated" if same else "opinion_of_another"] += 1
        return self._reply(edge, call, known, now) if same else []

    def _join(
        self, current: PendingEvaluation, edge: str, call: OpinionCall, now: float
    ) -> list[Effect]:
        """Another edge wants the same, or one asks again."""
        ours = current.message
        if (call.model, call.task, call.mode) != (ours.model, ours.task, ours.mode):
            self._counters["opinion_of_another"] += 1
            return []
        self._counters["opinion_repeated"] += edge in current.askers
        current.askers[edge] = call
        current.until = max(current.until, now + call.until_ms / 1000)
        return []

    def _hindrance(self, session: Session, call: OpinionCall, known: OpinionAnswer | None) -> str:
        """Return why a call is left without an answer; the edge says it again."""
        current, order = self.current, self._queue.active_order
        if call.run in session.retired or (known and call.round < known.opinion.round):
            return "opinion_outdated"
        if current is not None:
            if current.key.run == call.run and call.round < current.key.round:
                return "opinion_outdated"
            if current.key.run != call.run and current.key.edge != session.edge:
                return "opinion_busy"
        if order is not None and order.order.task != call.task:
            return "opinion_busy"
        return ""

    # ---------------------------------------------------------------- answers

    def evaluated(self, job: int, result: EvaluationResult | Failed, now: float) -> list[Effect]:
        """Take in what the trainer made of the model."""
        call = self.current
        if call is None or call.job != job or call.answer is not None:
            self._counters["opinion_unwanted"] += 1
            return []
        if isinstance(result, Failed):
            self._counters[f"opinion_{result.reason}"] += 1
            return self._none(result.detail or result.reason, now)
        moments = call.message.mode is OpinionMode.MOMENTS
        if moments and result.samples < ENOUGH and now < call.patient_until:
            call.job, call.look_at = None, now + LOOK_S
            return []
        if not result.samples:
            return self._none("nothing has arrived that was not learnt from", now)
        key = call.key
        opinion = Opinion(
            run=key.run,
            round=key.round,
            model=call.message.model,
            score=result.score,
            samples=result.samples,
            metric=result.metric,
            epsilon=result.epsilon,
            moments=result.moments,
        )
        # Who is counted at two edges would be counted twice.
        call.answer = OpinionAnswer(opinion, call.message.mode, key.edge if moments else "")
        if result.epsilon <= 0:
            return self._give(call, call.answer, now)
        # Noise must not be drawn twice: it is told only when it cannot be forgotten.
        return [StoreOpinion(call.answer, self.spent.get(key.run, 0.0) + result.epsilon)]

    def opinion_stored(
        self, answer: OpinionAnswer, now: float, *, refused: str = ""
    ) -> list[Effect]:
        """Take in that an answer is durable; `refused` says why it is not."""
        call = self.current
        if not refused:
            run = answer.opinion.run
            self.spent[run] = self.spent.get(run, 0.0) + answer.opinion.epsilon
            self.ever += answer.opinion.epsilon
            self._remember(answer)
        if call is None or call.answer is not answer:
            self._counters["opinion_unwanted"] += 1
            return []
        return self._none(f"disk: {refused}", now) if refused else self._give(call, answer, now)

    def _none(self, why: str, now: float) -> list[Effect]:
        """Answer that there is no opinion."""
        call = self.current
        assert call is not None
        key, model = call.key, call.message.model
        opinion = Opinion(run=key.run, round=key.round, model=model, reason=why[:500])
        return self._give(call, OpinionAnswer(opinion, call.message.mode), now)

    def _give(self, call: PendingEvaluation, answer: OpinionAnswer, now: float) -> list[Effect]:
        """Give everybody who asked the answer."""
        effects = self._end(call)
        self._remember(answer)
        opinion = answer.opinion
        self._counters["opinions"] += 1
        for edge, asked in call.askers.items():
            effects += self._reply(edge, asked, answer, now)
        # Never the score: what is told here may be read by others than the owner.
        said: dict[str, object] = {
            "round": opinion.round,
            "mode": str(answer.mode),
            "samples": opinion.samples,
            "epsilon": opinion.epsilon,
            "reason": opinion.reason,
        }
        return [*effects, Event("opinion", said)]

    def _reply(
        self, edge: str, call: OpinionCall, answer: OpinionAnswer, now: float
    ) -> list[Effect]:
        if answer.mode is not OpinionMode.PEERS:
            told = answer.opinion
            if answer.edge not in ("", edge):
                told = Opinion(run=told.run, round=told.round, model=told.model, reason=ELSEWHERE)
            return [Send(edge, told)]
        if self.peering is None:
            return []
        opinion = answer.opinion
        return self.peering.begin(call, edge, opinion.score if opinion.samples else None, now)

    def _remember(self, answer: OpinionAnswer) -> None:
        """Keep the newest answer of each run."""
        opinion, moments = answer.opinion, answer.mode is OpinionMode.MOMENTS
        if moments and not opinion.samples:
            return  # whoever asks again may find some
        key = opinion.run, moments
        known = self._answers.get(key)
        if known is None or known.opinion.round <= opinion.round:
            self._answers[key] = answer
            self._answers.move_to_end(key)
        while len(self._answers) > REMEMBERED:
            self._answers.popitem(last=False)

    # --------------------------------------------------------- task and model

    def go_on(self, now: float) -> list[Effect]:
        """Do the next step that nothing stands in the way of."""
        call = self.current
        if call is None or call.job is not None or now < call.look_at:
            return []
        message = call.message
        if (task := self._tasks.refused(message.task)) is not None:
            return self._none(task.detail, now)
        if call.answer is not None:
            ready = self._tasks.opened(message.task) is not None
            return self._give(call, call.answer, now) if ready else []
        if not call.here and message.mode is not OpinionMode.MOMENTS:
            if call.download is not None or self._queue.loading:
                return []
            layout = Layout(message.size, message.chunk_bytes)
            call.download = Download(call.key.edge, call.key.run, message.model, layout)
            return call.download.begin()
        if (task := self._tasks.opened(message.task)) is None:
            return []
        return self._evaluate(call, parse_task(task.body), now)

    def _evaluate(self, call: PendingEvaluation, task: TaskSpec, now: float) -> list[Effect]:
        """Have the model scored, if the task and the owner want that."""
        readings = self._device.readings
        if not readings.available:
            return self._none(readings.reason, now)
        mode, spent = call.message.mode, self.spent.get(call.key.run, 0.0)
        if mode is OpinionMode.MOMENTS:
            return self._measure(call, task, now)
        if task.opinions.mode not in MODES[mode]:
            # An edge must not get out of a device what its task keeps to itself.
            return self._none(f"the task has opinions.mode = {task.opinions.mode}", now)
        why = self._limits.objection(task, mode, spent=spent, ever=self.ever)
        if why:
            self._counters["opinion_withheld"] += 1
            return self._none(why, now)
        self._job += 1
        call.job = self._job
        return [EvaluateOnDevice(call.job, call.message.task, call.message.model)]

    def _measure(self, call: PendingEvaluation, task: TaskSpec, now: float) -> list[Effect]:
        """Have the samples added up, if the task wants that and the owner limits nothing."""
        if not task.data.standardize:
            return self._none("the task does not standardize", now)
        if self._limits != NO_LIMITS:
            self._counters["moments_withheld"] += 1
            return self._none("the owner limits what is told of the samples", now)
        self._job += 1
        call.job = self._job
        return [EvaluateOnDevice(call.job, call.message.task, call.message.model, moments=True)]

    def make_room(self) -> list[Effect]:
        """An order was taken: let its model come in first, and drop another task's call."""
        call, order = self.current, self._queue.active_order
        if call is None or order is None:
            return []
        if order.order.task != call.message.task:
            return self._stop("outranked")
        download, call.download = call.download, None
        return download.leave() if download is not None else []

    def has(self, digest: str) -> bool:
        """Whether this model is coming in for a call."""
        return self._download(digest) is not None

    def model_opened(self, digest: str, have: frozenset[int] | None, now: float) -> list[Effect]:
        """Take in what of the model is on disk."""
        found = self._download(digest)
        if found is None:
            return []
        call, download = found
        return self._whole(call, now) if have is None else download.opened(have)

    def subscribed(self, edge: str, digest: str, now: float, *, ok: bool) -> list[Effect]:
        """Take in that chunks can come."""
        found = self._download(digest)
        if found is None or found[1].edge != edge:
            return []
        call, download = found
        if not ok:
            return self._none("the broker refused the subscription to the model", now)
        return download.subscribed(call.key.round, now)

    def chunk(self, edge: str, chunk: Chunk, now: float) -> list[Effect]:
        """Take in a piece of the model.

        Raises:
            ChunkError: It does not fit.
        """
        found = self._download(chunk.digest)
        if found is None or found[1].edge != edge:
            self._counters["chunk_unasked"] += 1
            return []
        call, download = found
        return download.take(chunk, call.key.round, now, self._counters)

    def model_finished(
        self, digest: str, link: LinkQuality | None, now: float, *, ok: bool
    ) -> list[Effect]:
        """Take in whether the model is what it should be."""
        found = self._download(digest)
        if found is None:
            return []
        call, download = found
        if not ok:
            self._counters["digest_mismatch"] += 1
            if download.fresh_starts >= MAX_FRESH_STARTS:
                return self._none("the model did not hash to its digest", now)
            return download.start_over()
        download.measure(link)
        return self._whole(call, now)

    def model_unwritable(self, digest: str, detail: str, now: float) -> list[Effect]:
        """The disk refused the model that is coming in."""
        return self._none(f"disk: {detail}", now) if self.has(digest) else []

    def _whole(self, call: PendingEvaluation, now: float) -> list[Effect]:
        call.download, call.here = None, True
        return self.go_on(now)

    def _download(self, digest: str) -> tuple[PendingEvaluation, Download] | None:
        call = self.current
        if call is None or call.download is None or call.message.model != digest:
            return None
        return call, call.download

    # ------------------------------------------------------------------- time

    def reconnected(self, edge: str, now: float) -> list[Effect]:
        """The edge is back: ask again for what may be lost."""
        call = self.current
        if call is None or call.key.edge != edge:
            return []
        effects = self._tasks.ask(call.message.task, call.key, now)
        if call.download is not None:
            effects += call.download.reconnected()
        return effects

    def lost(self, edge: str, now: float) -> list[Effect]:
        """The session with an edge is over: another one that asked goes on with the model."""
        for key, answer in list(self._answers.items()):
            if answer.edge == edge:
                del self._answers[key]
        call = self.current
        if call is None or call.askers.pop(edge, None) is None:
            return []
        if not call.askers:
            return self._stop("lost")
        if call.key.edge != edge:
            return []
        download, call.download = call.download, None
        effects = download.leave() if download is not None else []
        other, call.message = next(iter(call.askers.items()))
        call.key = Key(other, call.key.run, call.key.round)
        return effects + self._tasks.ask(call.message.task, call.key, now) + self.go_on(now)

    def tick(self, now: float) -> list[Effect]:
        """Let time pass."""
        call = self.current
        if call is None:
            return []
        if now >= call.until:
            return self._stop("late")
        effects = self._tasks.again(call.message.task, call.key, now)
        due = call.download.due if call.download is not None else None
        if call.download is not None and due is not None and now >= due:
            effects += call.download.ask(call.key.round, now)
        return effects + self.go_on(now)

    def dues(self) -> list[float]:
        """Return when `tick` is wanted."""
        call = self.current
        if call is None:
            return []
        asked = self._tasks.due(call.message.task)
        due = call.download.due if call.download is not None else None
        look = call.look_at if call.job is None and call.look_at else None
        return [call.until, *(time for time in (asked, due, look) if time is not None)]

    def _stop(self, why: str) -> list[Effect]:
        """Let go of the call under way without an answer."""
        if self.current is None:
            return []
        self._counters[f"opinion_{why}"] += 1
        return self._end(self.current)

    def _end(self, call: PendingEvaluation) -> list[Effect]:
        self.current = None
        return call.download.leave() if call.download is not None else []
