"""Calls for opinions and volunteers between two rounds: the middle part of the engine.

After a merge whose model is to be evaluated every live edge is called, and again every second
until it has answered; the policy learns of the round when the answers are booked, so that
what it learns and what the books replay is the same (docs/opinions.md).
"""

from abc import abstractmethod
from dataclasses import replace

import numpy as np

from fedagent_coordinator.policies.base import OPINIONS, VOLUNTEERS, Feedback
from fedagent_protocol.errors import MalformedError
from fedagent_protocol.messages import EdgeMoments, OpinionMode, Opinions, Volunteers

from .edge_messages import EdgeMessages, EvaluationAnswer, Phase
from .edges import EdgeSession, Indices
from .effects import BookOpinions, BookVolunteers, Effect, Event, Learn, Standardize, Value
from .evaluation import (
    EdgeAnswer,
    EvaluationCall,
    RefusedAnswerError,
    moments_in,
    opinions_in,
    spread,
    volunteers_in,
)
from .evaluation_schedule import EvaluationSchedule, LastOpinions
from .observe import Observed
from .orders import OrderedRound
from .settings import Progress, Settings
from .settled_reports import SettledReports

STATISTICS = "statistics"
"""What is waited for while devices add up their samples, or when none of them has any."""


class EvaluationPhase(EdgeMessages):
    """Calls clients to evaluate models.

    Args:
        settings: The run.
        progress: Where it stands.
        indices: Run-wide indices of clients and edges.
        fates: Asked about rounds that this process did not settle itself.

    Attributes:
        timing_ms: Durations of the steps of this round.
    """

    def __init__(
        self,
        settings: Settings,
        progress: Progress,
        indices: Indices,
        settled_reports: SettledReports,
    ) -> None:
        super().__init__(settings, progress, indices, settled_reports)
        calls = progress.calls
        self.timing_ms: dict[str, float] = {}
        self._last_opinions = LastOpinions(calls)
        self._schedule = EvaluationSchedule(settings.opinions, settings.opinions_every, calls.count)
        self._pending_round = calls.pending_round if settings.opinions is not None else None
        self._trained_since = set(calls.trained)
        self._due: int | None = None
        self._held: Learn | None = None
        self._unmeasured = settings.standardize > 0
        self._measurements = 0

    @abstractmethod
    def _wait(self, reason: str, now: float, *, edges: int = 0, agents: int = 0) -> list[Effect]:
        """Wait for what is missing."""

    @abstractmethod
    def _open(self, now: float) -> list[Effect]:
        """Ask all edges for this round's columns."""

    @abstractmethod
    def _after_call(self, now: float, *, opening: bool) -> list[Effect]:
        """Go on when a call is booked."""

    # ------------------------------------------------------ before and after a call

    def _learn_or_hold(
        self, ordered: OrderedRound, feedback: Feedback, *, last: bool
    ) -> list[Effect]:
        """Let the policy learn of a settled round, now or when its model is evaluated."""
        learn = Learn(ordered.round, feedback, ordered.controls)
        mode = self.settings.opinions
        if mode is OpinionMode.PEERS:
            used = np.flatnonzero(feedback.used).tolist()
            self._trained_since.update(ordered.agents(used))
        played = bool(len(feedback.pairs))
        if not self._schedule.is_due(merges=ordered.want_model, played=played, last=last):
            return [learn]
        self._due = ordered.round
        if mode is OpinionMode.PEERS:
            return [learn]
        self._held = learn
        return []

    def _heard(self, observed: Observed) -> Observed:
        """Return the same with what clients said last, if the run calls for it."""
        clients = len(observed.view.client_price)
        match self.settings.opinions:
            case OpinionMode.REPORT:
                said = replace(observed.view, opinions=self._last_opinions.opinions(clients))
            case OpinionMode.PEERS:
                said = replace(observed.view, volunteers=self._last_opinions.volunteers(clients))
            case None:
                return observed
        return replace(observed, view=said)

    def _evaluate(self, round_: int, now: float, *, opening: bool = False) -> list[Effect]:
        """Call every live edge for opinions of the global model."""
        s = self.settings
        assert s.opinions is not None
        self._due = self._pending_round = None
        first = self._last_opinions.evaluated == 0
        until = now + max(s.opinions_timeout_s, s.first_call_s if first else 0.0)
        trained, self._trained_since = frozenset(self._trained_since), set()
        self._call = EvaluationCall(
            round=round_,
            slot=self._last_opinions.evaluated + 1,
            mode=s.opinions,
            digest=self.models.digest,
            began=now,
            until=until,
            give_up_at=until + s.grace_s,
            best=s.volunteers,
            opening=opening,
            trained=trained,
        )
        self.phase = Phase.EVALUATING
        for edge in self.edges.live():
            self._call.join(edge, now)
        return self._tick_evaluating(now)

    def _measure(self, now: float) -> list[Effect]:
        """Ask every live edge what its agents' samples add up to, before the first round."""
        s = self.settings
        self._measurements += 1
        until = now + s.standardize_s
        self._call = EvaluationCall(
            round=0,
            slot=self._measurements,
            mode=OpinionMode.MOMENTS,
            digest=self.models.digest,
            began=now,
            until=until,
            give_up_at=until + s.grace_s,
            best=0,
            opening=True,
        )
        live = self.edges.live()
        told = self._wait(STATISTICS, now, edges=len(live), agents=sum(e.agents for e in live))
        self.phase = Phase.EVALUATING
        for edge in live:
            self._call.join(edge, now)
        return told + self._tick_evaluating(now)

    def _measured(self, call: EvaluationCall, now: float) -> list[Effect]:
        """Have features scaled by what all samples add up to; ask again if there are none."""
        self._call = None
        total, agents, reasons = call.added_up(self.edges.live())
        effects: list[Effect] = []
        for part in call.parts.values():
            if part.answer is not None:
                effects.append(self._messages.opinions_receipt(part.edge, call.round))
            elif self.edges.by_id[part.edge].live:
                effects.append(self._messages.call_over(part.edge, call.round))
        self.counters.update({f"moments_{why}": n for why, n in reasons.items()})
        if total is None:
            return effects + self._wait(STATISTICS, now, edges=len(self.edges.live()))
        self._unmeasured = False
        return [*effects, Standardize(total, agents, now)]

    def standardized(self, task: str, body: bytes, now: float) -> list[Effect]:
        """Take in the task as it is from now on; edges are told, and the round goes on."""
        self._messages.settings = self.settings = replace(self.settings, task=task, body=body)
        told: list[Effect] = [self._messages.welcome(edge.id) for edge in self.edges.live()]
        return told + self._open(now)

    def _tick_evaluating(self, now: float) -> list[Effect]:
        """Call those again that did not answer, bring them the model, or end the call."""
        call = self._call
        assert call is not None
        if call.over(self.edges.live(), now):
            return self._evaluated(call, now)
        effects: list[Effect] = []
        for part in call.due_again(now):
            edge = self.edges.by_id[part.edge]
            if edge.live:
                if edge.model != edge.expected:
                    effects += self.models.catch_up(edge, self.round, now)
                effects.append(self._messages.call(edge, call, now))
        return effects

    def _evaluated(self, call: EvaluationCall, now: float) -> list[Effect]:
        """Book what a call came to, then let the policy learn."""
        if call.mode is OpinionMode.MOMENTS:
            return self._measured(call, now)
        self._call = None
        found = call.booked(now)
        self._last_opinions.take(found)
        self.timing_ms["evaluate"] = round(1000.0 * (now - call.began), 3)
        effects: list[Effect] = [found]
        for part in call.parts.values():
            if call.mode is OpinionMode.REPORT and part.answer is not None:
                effects.append(self._messages.opinions_receipt(part.edge, call.round))
            elif self.edges.by_id[part.edge].live:
                effects.append(self._messages.call_over(part.edge, call.round))
        held, self._held = self._held, None
        if held is not None:
            assert isinstance(found, BookOpinions)
            size = len(held.feedback.view.client_price)
            opinions = spread(found.client, found.score, size)
            effects.append(replace(held, feedback=replace(held.feedback, opinions=opinions)))
        effects.append(_summary(found))
        return effects + self._after_call(now, opening=call.opening)

    # ---------------------------------------------------------------- what edges say

    def _call_again(self, session: EdgeSession, now: float) -> list[Effect]:
        """Call an edge that is new, back, or does not know a call."""
        call = self._call
        if call is None:
            return []
        call.join(session, now)
        return self._tick_evaluating(now)

    def _on_answer(self, edge: str, message: EvaluationAnswer, now: float) -> list[Effect]:
        """Take in opinions, or who volunteers."""
        if not self._ours(message.run):
            return []
        session, changed = self._hear(edge, message.epoch, now)
        effects = self._greet(session, now, changed=True) if changed else []
        call = self._call
        if call is None or message.round != call.round:
            return effects + self._late(edge, message)
        if _mode_of(message) is not call.mode:
            self.counters["opinions_mode"] += 1
            return effects
        if edge not in call.parts:
            call.join(session, now)
        try:
            known = isinstance(message, EdgeMoments) or session.learn_ids(
                message.known, message.new_ids, self._indices
            )
            if not known:
                # What it names goes on where an answer ended that never came.
                return effects + self._call_again(session, now)
            answer = self._read(message, session, call)
        except MalformedError as error:
            why = error.word if isinstance(error, RefusedAnswerError) else error.reason
            self.counters[f"opinions_{why}"] += 1
            call.parts[edge].refused = call.parts[edge].answer is None
            return effects + self._tick_evaluating(now)
        if call.mode is not OpinionMode.PEERS and call.parts[edge].answer is not None:
            self.counters["opinions_repeated"] += 1
            return effects
        call.take(edge, answer, now)
        return effects + self._tick_evaluating(now)

    def _read(
        self, message: EvaluationAnswer, session: EdgeSession, call: EvaluationCall
    ) -> EdgeAnswer:
        if isinstance(message, EdgeMoments):
            s = self.settings
            return moments_in(message, call, features=s.standardize, max_samples=s.max_samples)
        if isinstance(message, Opinions):
            return opinions_in(message, session, call.digest)
        return volunteers_in(message, session)

    def _late(self, edge: str, message: EvaluationAnswer) -> list[Effect]:
        """Count what nobody waits for; an edge that is told so stops saying it."""
        if message.round > self._over:
            self.counters["opinions_unasked"] += 1
            return []
        self.counters["opinions_late"] += 1
        if not isinstance(message, Volunteers):
            return [self._messages.opinions_receipt(edge, message.round)]
        return [self._messages.call_over(edge, message.round)]


def _mode_of(message: EvaluationAnswer) -> OpinionMode:
    match message:
        case Opinions():
            return OpinionMode.REPORT
        case Volunteers():
            return OpinionMode.PEERS
        case EdgeMoments():
            return OpinionMode.MOMENTS


def called_for(mode: OpinionMode | None) -> frozenset[str]:
    """Return the needs that are no features and that a run in this mode calls clients for."""
    match mode:
        case OpinionMode.REPORT:
            return frozenset({OPINIONS})
        case OpinionMode.PEERS:
            return frozenset({VOLUNTEERS})
        case OpinionMode.MOMENTS | None:
            return frozenset()


def _summary(found: BookOpinions | BookVolunteers) -> Event:
    """Return what is told of a call on stdout."""
    fields: dict[str, Value] = {"round": found.round, "slot": found.slot}
    if isinstance(found, BookOpinions):
        fields |= {"mode": "report", "mean": found.mean, "answered": len(found.client)}
    else:
        fields |= {"mode": "peers", "volunteers": len(found.client)}
    missing = {why: float(count) for why, count in found.reasons.items()}
    fields |= {"asked": found.asked, "missing": missing, "seconds": found.seconds}
    return Event("opinions", fields)
