"""When clients evaluate a model, for what, and the phase in which they are asked.

Between rounds clients give their opinions of the global model, or volunteer to train it; before
the first round they may add up the statistics of their samples. An edge is asked every second
until it has answered (docs/opinions.md).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
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
    RoundView,
)
from fedagent_coordinator.policies.state import grown
from fedagent_node.effects import Effect, Emit
from fedagent_protocol.errors import MalformedError
from fedagent_protocol.messages import (
    EdgeMoments,
    OpinionClose,
    OpinionMode,
    OpinionsReceipt,
)
from fedagent_protocol.signed import Asked, Calling

from .edges import EdgeSession
from .effects import BookOpinions, BookVolunteers, Learn, Standardize
from .evaluation import MODES, AnswerMessage, ClientEvaluation, by_client
from .ordered import SettledRound
from .phases import Phase, milliseconds
from .readiness import STATISTICS
from .settings import PastEvaluations, Settings, evaluation_period

if TYPE_CHECKING:
    from .engine import Engine

_PROVIDES: Mapping[OpinionMode | None, frozenset[str]] = {
    OpinionMode.REPORT: frozenset({OPINIONS}),
    OpinionMode.PEERS: frozenset({VOLUNTEERS}),
}
"""Needs of policies that are no features, and are met by what clients are asked for."""


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
            return self._close(now)
        effects: list[Effect] = []
        for part in evaluation.due_again(now):
            edge = engine.edges.by_id[part.edge]
            if edge.live:
                if edge.model != edge.expected:
                    effects += engine.models.catch_up(edge, engine.round, now)
                effects.append(self._call(edge, now))
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
        """Take in an answer; None if it is of another evaluation."""
        engine, evaluation, s = self.engine, self._evaluation, self.engine.settings
        if message.round != evaluation.round or MODES[type(message)] is not evaluation.mode:
            return None
        if edge.id not in evaluation.parts:
            evaluation.join(edge, now)
        part = evaluation.parts[edge.id]
        if part.answer is not None and not evaluation.asks_for_volunteers:
            return []
        asked = None
        if engine.enrolled is not None:
            round_, model = evaluation.round, evaluation.digest
            asked = Asked(site=s.site, run=s.run, round=round_, task=s.task, model=model)

        def index(rows: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
            client = edge.index_of(rows, engine.indices, engine.enrolled)
            engine.counters["no_index"] += int((client < 0).sum())
            return client

        try:
            if not isinstance(message, EdgeMoments) and not edge.learn_ids(
                message.known, message.new_ids
            ):
                # What it names goes on where an answer ended that never came.
                return self.greet(edge, now)
            answer = evaluation.read(message, edge, index, asked, s.recipe)
        except MalformedError:
            engine.counters["opinions_refused"] += 1
            part.refused = part.answer is None
            return self.tick(now)
        evaluation.take(edge.id, answer, now)
        what = "volunteers" if evaluation.asks_for_volunteers else "opinions"
        return edge.suspect(what, len(answer.unsigned)) + self.tick(now)

    def _call(self, edge: EdgeSession, now: float) -> Effect:
        """Call the devices of an edge, signed."""
        engine, s, ask = self.engine, self.engine.settings, self._evaluation.message(edge, now)
        made = Calling(s.run, ask.round, s.task, ask.model, ask.mode, ask.slot)
        return engine.send(edge.id, structs.replace(ask, signed=engine.vouching.sign(made)))

    def _close(self, now: float) -> list[Effect]:
        """End the evaluation: books first, then receipts, then what is learnt."""
        engine, evaluation, settled = self.engine, self._evaluation, self._settled
        if evaluation.mode is OpinionMode.MOMENTS:
            return self._receipts() + self._standardize(now)
        found = evaluation.record(now)
        engine.evaluations.take(found)
        effects: list[Effect] = [found, *self._receipts()]
        if settled is not None:
            settled.settled.timing_ms["evaluate"] = milliseconds(now - evaluation.began)
            if settled.held is not None:
                effects.append(_with_opinions(settled.held, found))
        effects.append(_event(found))
        return effects + (engine.open(now) if settled is None else engine.close(settled, now))

    def _standardize(self, now: float) -> list[Effect]:
        engine, live = self.engine, self.engine.edges.able()
        total, agents = self._evaluation.total(live)
        if total is None:
            return engine.wait(STATISTICS, now, edges=len(live))
        return [Standardize(total, agents), *engine.enter(Standardizing(engine), now)]

    def _receipts(self) -> list[Effect]:
        engine, evaluation, effects = self.engine, self._evaluation, list[Effect]()
        for part in evaluation.parts.values():
            if part.answer is not None and not evaluation.asks_for_volunteers:
                effects.append(engine.send(part.edge, OpinionsReceipt(round=evaluation.round)))
            elif engine.edges.by_id[part.edge].live:
                effects.append(engine.send(part.edge, OpinionClose(round=evaluation.round)))
        return effects


class Standardizing(Phase):
    """The statistics are written; `Engine.standardized` goes on."""

    name = "standardizing"


def _with_opinions(learn: Learn, found: BookOpinions | BookVolunteers) -> Learn:
    assert isinstance(found, BookOpinions)
    clients = len(learn.feedback.view.client_price)
    opinions = by_client(found.client, found.score, clients)
    return structs.replace(learn, feedback=replace(learn.feedback, opinions=opinions))


def _event(found: BookOpinions | BookVolunteers) -> Emit:
    fields: dict[str, object] = {"round": found.round, "slot": found.slot}
    if isinstance(found, BookOpinions):
        fields |= {"mode": "report", "mean": found.mean, "answered": len(found.client)}
    else:
        fields |= {"mode": "peers", "volunteers": len(found.client)}
    missing = {why: float(count) for why, count in found.reasons.items()}
    fields |= {"asked": found.asked, "missing": missing, "seconds": found.seconds}
    return Emit("opinions", fields)


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
    """The evaluations of a run, and what policies are shown of them; none without a mode."""

    def __init__(self, settings: Settings, past: PastEvaluations) -> None:
        self._settings, mode = settings, settings.opinions
        every = evaluation_period(settings.recipe, mode)
        self._schedule = EvaluationSchedule(mode, every, past.count)
        self._evaluated = past.evaluated
        self._pending = past.pending_round if mode is not None else None
        client = np.array(list(past.opinions), dtype=np.int64)
        score = np.array(list(past.opinions.values()), dtype=np.float64)
        self._opinions = by_client(client, score, int(client.max(initial=-1)) + 1)
        self._volunteers = past.volunteers or frozenset()
        self._trained = set(past.trained if mode is OpinionMode.PEERS else ())

    @property
    def taught(self) -> bool:
        """Whether the policy learns from a round after its model was evaluated."""
        return self._settings.opinions is OpinionMode.REPORT

    def is_due(self, *, merges: bool, used: Iterable[str], played: bool, last: bool) -> bool:
        """Count a settled round, and whose updates it used."""
        if self._settings.opinions is OpinionMode.PEERS:
            self._trained.update(used)
        return self._schedule.is_due(merges=merges, played=played, last=last)

    def pending(self) -> int | None:
        """Return the round whose model is evaluated before the next round, once."""
        round_, self._pending = self._pending, None
        return round_

    def evaluation(self, round_: int, digest: str, now: float) -> ClientEvaluation:
        """Begin to evaluate the model with this digest."""
        s = self._settings
        until = now + max(s.recipe.opinions.timeout_s, 0.0 if self._evaluated else s.first_call_s)
        trained, self._trained = frozenset(self._trained), set()
        return ClientEvaluation(
            mode=s.opinions or OpinionMode.REPORT,
            round=round_,
            slot=self._evaluated + 1,
            digest=digest,
            began=now,
            until=until,
            give_up_at=until + s.grace_s,
            wanted=s.recipe.peers.best,
            trained=trained,
        )

    def take(self, found: BookOpinions | BookVolunteers) -> None:
        """Keep the result of an evaluation."""
        self._evaluated = found.slot
        if isinstance(found, BookVolunteers):
            self._volunteers = frozenset(found.client.tolist())
            return
        self._opinions = grown(self._opinions, int(found.client.max(initial=-1)) + 1, np.nan)
        self._opinions[found.client] = found.score

    def shown_in(self, view: RoundView) -> RoundView:
        """Return the view with what clients answered last; before the first time nobody did."""
        clients = len(view.client_price)
        match self._settings.opinions:
            case OpinionMode.REPORT:
                opinions = grown(self._opinions, clients, np.nan)[:clients].copy()
                return replace(view, opinions=opinions)
            case OpinionMode.PEERS:
                shown = np.zeros(clients, dtype=np.bool_)
                shown[[client for client in self._volunteers if client < clients]] = True
                return replace(view, volunteers=shown)
        return view


def unmet_needs(needs: frozenset[str], asked: OpinionMode | None) -> frozenset[str]:
    """Return those needs that no agent reports and no run has that asks its clients for this."""
    return needs & (NOT_FEATURES - {CLAIM_GAP, LOSSES} - _PROVIDES.get(asked, frozenset()))
