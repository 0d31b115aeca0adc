"""The evaluating phase: every edge's clients are asked about a model, until they answer.

Between rounds clients give their opinions of the global model, or volunteer to train it; before
the first round they may add up the statistics of their samples. An edge is asked every second
until it has answered (docs/opinions.md).
"""

from dataclasses import replace
from typing import TYPE_CHECKING

from msgspec import structs

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
from .ordered import SettledRound
from .phases import Phase, milliseconds
from .readiness import STATISTICS

if TYPE_CHECKING:
    from .engine import Engine


class Evaluating(Phase):
    """The edges' clients evaluate the global model.

    Args:
        engine: The engine.
        evaluation: What they are asked for.
        settled: The round before, whose end waits for it; None before the first round.
    """

    name = "evaluating"

    def __init__(
        self, engine: "Engine", evaluation: ClientEvaluation, settled: SettledRound | None = None
    ) -> None:
        super().__init__(engine)
        self._evaluation = evaluation
        self._settled = settled

    def begin(self, now: float) -> list[Effect]:
        """Ask every edge."""
        for edge in self.engine.edges.live():
            self._evaluation.join(edge, now)
        return self.tick(now)

    def tick(self, now: float) -> list[Effect]:
        """Ask again, bring edges the model, or end the evaluation."""
        engine, evaluation = self.engine, self._evaluation
        if evaluation.is_over(engine.edges.live(), now):
            return self._end(now)
        effects: list[Effect] = []
        for part in evaluation.due_again(now):
            edge = engine.edges.by_id[part.edge]
            if edge.live:
                if edge.model != edge.expected:
                    effects += engine.models.catch_up(edge, engine.round, now)
                effects.append(engine.send(edge.id, evaluation.message(edge, now)))
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
        try:
            known = isinstance(message, EdgeMoments) or edge.learn_ids(
                message.known, message.new_ids, engine.indices
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
        if evaluation.receipts and part.answer is not None:
            engine.counters["opinions_repeated"] += 1
            return []
        evaluation.take(edge.id, answer, now)
        return self.tick(now)

    def _read(self, message: AnswerMessage, edge: EdgeSession) -> EdgeAnswer:
        model, s = self._evaluation.digest, self.engine.settings
        match message:
            case Opinions():
                return opinions_in(message, edge, model=model)
            case Volunteers():
                return volunteers_in(message, edge)
            case EdgeMoments():
                return moments_in(
                    message, model=model, features=s.standardize, max_samples=s.max_samples
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
        live = engine.edges.live()
        total, agents, reasons = self._evaluation.total(live)
        effects = self._receipts()
        engine.counters.update({f"moments_{why}": n for why, n in reasons.items()})
        if total is None:
            return effects + engine.wait(STATISTICS, now, edges=len(live))
        engine.enter(Standardizing(engine))
        return [*effects, Standardize(total, agents)]


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
