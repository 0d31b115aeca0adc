"""When clients evaluate a model, for what, and the phase in which they are asked.

Between rounds clients give their opinions of the global model, or volunteer to train it; before
the first round they may add up the statistics of their samples. An edge is asked every second
until it has answered (docs/opinions.md).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from msgspec import structs

from fedagent_coordinator.policies.base import (
    CLAIM_GAP,
    LOSSES,
    NOT_FEATURES,
    OPINIONS,
    VOLUNTEERS,
    Feedback,
    RoundView,
)
from fedagent_coordinator.policies.state import grown
from fedagent_node.effects import Effect, Emit
from fedagent_protocol.errors import MalformedError
from fedagent_protocol.messages import (
    EdgeMoments,
    OpinionClose,
    OpinionMode,
    Opinions,
    OpinionsReceipt,
    Volunteers,
)
from fedagent_protocol.opinions import Asked

from .answers import (
    EdgeAnswer,
    RefusedAnswerError,
    moments_in,
    opinions_in,
    volunteers_in,
)
from .edges import EdgeSession
from .effects import BookEvaluation, BookOpinions, Learn, Standardize
from .evaluation import (
    AnswerMessage,
    ClientEvaluation,
    OpinionEvaluation,
    StatisticsCollection,
    VolunteerEvaluation,
    by_client,
)
from .ordered import OrderedRound, SettledRound
from .phases import Phase, milliseconds
from .readiness import STATISTICS
from .settings import PastEvaluations, Settings, evaluation_period
from .signed_answers import BoolArray, ClaimedRows

if TYPE_CHECKING:
    from .engine import Engine


class Evaluating(Phase):
    """Clients evaluate the model; the end of the round `settled` waits for it, if there is one."""

    name = "evaluating"

    def __init__(
        self, engine: "Engine", evaluation: ClientEvaluation, settled: SettledRound | None = None
    ) -> None:
        super().__init__(engine)
        self._evaluation = evaluation
        self._settled = settled

    def begin(self, now: float) -> list[Effect]:
        """Ask every edge."""
        for edge in self.engine.edges.able():
            self._evaluation.join(edge, now)
        return self.tick(now)

    def tick(self, now: float) -> list[Effect]:
        """Ask again, bring edges the model, or end the evaluation."""
        engine, evaluation = self.engine, self._evaluation
        if evaluation.is_over(engine.edges.able(), now):
            return self._end(now)
        effects: list[Effect] = []
        for part in evaluation.due_again(now):
            edge = engine.edges.by_id[part.edge]
            if edge.live:
                if edge.model != edge.expected:
                    effects += engine.models.catch_up(edge, engine.round, now)
                effects.append(engine.call(edge, evaluation.message(edge, now)))
        return effects

    def next_due(self) -> float | None:
        """Return when `tick` is wanted."""
        return self._evaluation.next_due()

    def greet(self, edge: EdgeSession, now: float) -> list[Effect]:
        """Ask the edge at once."""
        self._evaluation.join(edge, now)
        return self.tick(now)

    def receive_answer(
        self, edge: EdgeSession, message: AnswerMessage, now: float
    ) -> list[Effect] | None:
        """Take in an answer; None if it is of another round."""
        engine, evaluation = self.engine, self._evaluation
        if message.round != evaluation.round:
            return None
        if _MODES[type(message)] is not evaluation.mode:
            engine.counters["opinions_mode"] += 1
            return []
        if edge.id not in evaluation.parts:
            evaluation.join(edge, now)
        part = evaluation.parts[edge.id]
        if evaluation.receipts and part.answer is not None:
            engine.counters["opinions_repeated"] += 1
            return []
        try:
            known = isinstance(message, EdgeMoments) or edge.learn_ids(
                message.known, message.new_ids
            )
            if not known:
                # What it names goes on where an answer ended that never came.
                return self.greet(edge, now)
            answer = self._read(message, edge)
        except MalformedError as error:
            word = error.word if isinstance(error, RefusedAnswerError) else error.reason
            engine.counters[f"opinions_{word}"] += 1
            part.refused = part.answer is None
            return self.tick(now)
        evaluation.take(edge.id, answer, now)
        what = "opinions" if isinstance(message, Opinions) else "volunteers"
        return edge.told_unsigned(what, len(answer.unsigned)) + self.tick(now)

    def _index(self, edge: EdgeSession, rows: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        client = edge.index_of(rows, self.engine.indices, self.engine.enrolled)
        self.engine.counters["no_index"] += int((client < 0).sum())
        return client

    def _word(self, rows: ClaimedRows) -> BoolArray:
        engine, s = self.engine, self.engine.settings
        if engine.enrolled is None:
            return rows.client >= 0
        round_, model = self._evaluation.round, self._evaluation.digest
        asked = Asked(site=s.site, run=s.run, round=round_, task=s.task, model=model)
        theirs, refused = engine.answers.judge(rows, asked)
        engine.counters["opinions_unsigned"] += refused
        return theirs

    def _read(self, message: AnswerMessage, edge: EdgeSession) -> EdgeAnswer:
        model, s = self._evaluation.digest, self.engine.settings
        match message:
            case Opinions():
                return opinions_in(message, edge, self._index, self._word, model=model)
            case Volunteers():
                return volunteers_in(message, edge, self._index, self._word)
            case EdgeMoments():
                return moments_in(
                    message,
                    model=model,
                    features=s.recipe.model.features,
                    max_samples=s.recipe.limits.max_samples,
                )

    def _end(self, now: float) -> list[Effect]:
        engine, evaluation, settled = self.engine, self._evaluation, self._settled
        assert isinstance(evaluation, OpinionEvaluation | VolunteerEvaluation)
        found = evaluation.record(now)
        engine.evaluations.take(found)
        effects: list[Effect] = [found, *self._receipts()]
        if settled is not None:
            settled.settled.timing_ms["evaluate"] = milliseconds(now - evaluation.began)
            if settled.held is not None:
                effects.append(_with_opinions(settled.held, found))
        effects.append(_event(found))
        return effects + (engine.open(now) if settled is None else engine.close(settled, now))

    def _receipts(self) -> list[Effect]:
        engine, evaluation, effects = self.engine, self._evaluation, list[Effect]()
        for part in evaluation.parts.values():
            if evaluation.receipts and part.answer is not None:
                effects.append(engine.send(part.edge, OpinionsReceipt(round=evaluation.round)))
            elif engine.edges.by_id[part.edge].live:
                effects.append(engine.send(part.edge, OpinionClose(round=evaluation.round)))
        return effects


class Measuring(Evaluating):
    """Before the first round clients tell the statistics of their samples."""

    name = "measuring"

    def _end(self, now: float) -> list[Effect]:
        engine = self.engine
        assert isinstance(self._evaluation, StatisticsCollection)
        live = engine.edges.able()
        total, agents, reasons = self._evaluation.total(live)
        effects = self._receipts()
        engine.counters.update({f"moments_{why}": n for why, n in reasons.items()})
        if total is None:
            return effects + engine.wait(STATISTICS, now, edges=len(live))
        return [*effects, Standardize(total, agents), *engine.enter(Standardizing(engine), now)]


class Standardizing(Phase):
    """The statistics are written; `Engine.standardized` goes on."""

    name = "standardizing"


_MODES: dict[type[AnswerMessage], OpinionMode] = {
    Opinions: OpinionMode.REPORT,
    Volunteers: OpinionMode.PEERS,
    EdgeMoments: OpinionMode.MOMENTS,
}


def _with_opinions(learn: Learn, found: BookEvaluation) -> Learn:
    assert isinstance(found, BookOpinions)
    clients = len(learn.feedback.view.client_price)
    opinions = by_client(found.client, found.score, clients)
    return structs.replace(learn, feedback=replace(learn.feedback, opinions=opinions))


def _event(found: BookEvaluation) -> Emit:
    fields: dict[str, object] = {"round": found.round, "slot": found.slot}
    if isinstance(found, BookOpinions):
        fields |= {"mode": "report", "mean": found.mean, "answered": len(found.client)}
    else:
        fields |= {"mode": "peers", "volunteers": len(found.client)}
    missing = {why: float(count) for why, count in found.reasons.items()}
    fields |= {"asked": found.asked, "missing": missing, "seconds": found.seconds}
    return Emit("opinions", fields)


DueEvaluation = Callable[[str, float], ClientEvaluation]
"""Begins an evaluation of the model with this digest now."""


@dataclass(slots=True)
class EvaluationSchedule:
    """Counts towards the next evaluation, as slots of policies count their rounds."""

    mode: OpinionMode | None
    every: int = 1
    count: int = 0

    def is_due(self, *, merges: bool, played: bool, last: bool) -> bool:
        """Count a settled round; return whether its model is to be evaluated.

        A slot begins with the first round in which an agent was ordered (`played`). Volunteers are
        asked for again after a round in which none could play, and not after the last one.
        """
        if self.mode is None:
            return False
        peers = self.mode is OpinionMode.PEERS
        if (peers or merges) and (played or self.count):
            self.count += 1
        due = merges and (self.count >= self.every or (peers and not played))
        if due:
            self.count = 0
        return due and not (peers and last)


class EvaluationPlan:
    """The evaluations of a run; of one that asks its clients for nothing, none.

    Attributes:
        provides: Needs of policies that are met by it and are no features.
        taught: The policy learns from a round after its model was evaluated.
    """

    provides: frozenset[str] = frozenset()
    taught = False

    def __init__(self, settings: Settings, past: PastEvaluations) -> None:
        self._settings = settings
        self._schedule = EvaluationSchedule(
            settings.opinions, evaluation_period(settings.recipe, settings.opinions), past.count
        )
        self._evaluated = past.evaluated
        self._pending = past.pending_round if settings.opinions is not None else None

    def due(self, ordered: OrderedRound, feedback: Feedback, *, last: bool) -> DueEvaluation | None:
        """Count a settled round; return the evaluation of its model if that is due."""
        played = bool(len(feedback.pairs))
        due = self._schedule.is_due(merges=ordered.want_model, played=played, last=last)
        return partial(self._begin, ordered.round) if due else None

    def pending(self) -> DueEvaluation | None:
        """Return an evaluation that comes before the next round, once."""
        round_, self._pending = self._pending, None
        return None if round_ is None else partial(self._begin, round_)

    def take(self, found: BookEvaluation) -> None:
        """Keep the result of an evaluation."""
        self._evaluated = found.slot

    def shown_in(self, view: RoundView) -> RoundView:
        """Return the view with what clients answered last."""
        return view

    def _begin(self, round_: int, digest: str, now: float) -> ClientEvaluation:
        s = self._settings
        until = now + max(s.recipe.opinions.timeout_s, 0.0 if self._evaluated else s.first_call_s)
        evaluation = VolunteerEvaluation if s.opinions is OpinionMode.PEERS else OpinionEvaluation
        return evaluation(
            round=round_,
            slot=self._evaluated + 1,
            digest=digest,
            began=now,
            until=until,
            give_up_at=until + s.grace_s,
            wanted=s.recipe.peers.best,
            trained=self._trained_since(),
        )

    def _trained_since(self) -> frozenset[str]:
        return frozenset()


class OpinionPlan(EvaluationPlan):
    """Clients report opinions, which policies see and learn from."""

    provides = frozenset({OPINIONS})
    taught = True

    def __init__(self, settings: Settings, past: PastEvaluations) -> None:
        super().__init__(settings, past)
        client = np.array(list(past.opinions), dtype=np.int64)
        score = np.array(list(past.opinions.values()), dtype=np.float64)
        self._last = by_client(client, score, int(client.max(initial=-1)) + 1)

    def take(self, found: BookEvaluation) -> None:
        """Keep the opinions."""
        assert isinstance(found, BookOpinions)
        super().take(found)
        self._last = grown(self._last, int(found.client.max(initial=-1)) + 1, np.nan)
        self._last[found.client] = found.score

    def shown_in(self, view: RoundView) -> RoundView:
        """Return the view with the last opinion of each client."""
        clients = len(view.client_price)
        return replace(view, opinions=grown(self._last, clients, np.nan)[:clients].copy())


class VolunteerPlan(EvaluationPlan):
    """Clients volunteer for the rounds that follow."""

    provides = frozenset({VOLUNTEERS})

    def __init__(self, settings: Settings, past: PastEvaluations) -> None:
        super().__init__(settings, past)
        self._volunteers = past.volunteers or frozenset()
        self._trained = set(past.trained)

    def due(self, ordered: OrderedRound, feedback: Feedback, *, last: bool) -> DueEvaluation | None:
        """Count a settled round, and note who trained."""
        self._trained.update(ordered.agents(np.flatnonzero(feedback.used).tolist()))
        return super().due(ordered, feedback, last=last)

    def take(self, found: BookEvaluation) -> None:
        """Keep the volunteers."""
        super().take(found)
        self._volunteers = frozenset(found.client.tolist())

    def shown_in(self, view: RoundView) -> RoundView:
        """Return the view with those who volunteered last; nobody before the first time."""
        shown = np.zeros(len(view.client_price), dtype=np.bool_)
        shown[[client for client in self._volunteers if client < len(shown)]] = True
        return replace(view, volunteers=shown)

    def _trained_since(self) -> frozenset[str]:
        trained, self._trained = frozenset(self._trained), set()
        return trained


_PLANS: Mapping[OpinionMode | None, type[EvaluationPlan]] = {
    OpinionMode.REPORT: OpinionPlan,
    OpinionMode.PEERS: VolunteerPlan,
}


def evaluation_plan(settings: Settings, past: PastEvaluations) -> EvaluationPlan:
    """Return the plan of a run that asks its clients for what the settings say."""
    return _PLANS.get(settings.opinions, EvaluationPlan)(settings, past)


def unmet_needs(needs: frozenset[str], asked: OpinionMode | None) -> frozenset[str]:
    """Return those needs that no agent reports and no run has that asks its clients for this."""
    provided = _PLANS.get(asked, EvaluationPlan).provides
    return needs & (NOT_FEATURES - {CLAIM_GAP, LOSSES} - provided)
