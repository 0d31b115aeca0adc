"""The phase in which clients are asked about a model: for opinions, volunteers, or statistics.

An edge is asked every second until it has answered (docs/opinions.md). One that reports opinions or
statistics gets a receipt, and is not asked again; more volunteers may come from every edge.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedagent_node.effects import Emit
from fedagent_protocol.errors import MalformedError
from fedagent_protocol.messages import (
    EdgeMoments,
    OpinionClose,
    OpinionMode,
    OpinionOpen,
    OpinionsReceipt,
)
from fedagent_protocol.signed import Asked, Calling

from .answers import MODES, AnswerMessage, Answers, Call, EdgeAnswer, enough, no_answer, result
from .edges import EdgeSession
from .effects import BookOpinions, BookVolunteers
from .run import Phase, Run

REPEAT_S = 1.0
ENOUGH_S = 0.3
"""How much longer than the last volunteer that is wanted an evaluation stays open."""
MAX_TRAINED = 10_000
"""Ids of 64 letters that one message holds with room to spare."""


@dataclass(slots=True)
class Part:
    """One edge's part in an evaluation."""

    edge: EdgeSession
    agents: int
    ask_at: float
    answer: EdgeAnswer | None = None


class Evaluating(Phase):
    """Clients are asked; `then` goes on with what they answered."""

    def __init__(self, run: Run, call: Call, then: Callable[["Evaluating", float], Phase]) -> None:
        super().__init__(run)
        self.call, self._then = call, then
        self.parts: dict[str, Part] = {}
        self.found: BookOpinions | BookVolunteers | None = None
        s, asked = run.settings, None
        if run.members.agents is not None:
            asked = Asked(site=s.site, run=s.run, round=call.round, task=s.task, model=call.digest)
        self._answers = Answers(call, s.recipe, self._index, asked)
        self._ends_at = call.until if call.for_volunteers else call.give_up_at

    def begin(self, now: float) -> Phase:
        """Ask every edge."""
        for edge in self.run.edges.able():
            self._join(edge, now)
        return self.tick(now)

    def tick(self, now: float) -> Phase:
        """Ask again, bring edges the model, or end the evaluation."""
        able = self.run.edges.able()
        waits = bool(able) if self.call.for_volunteers else any(map(self._waits_for, able))
        if now >= self._ends_at or not waits:
            return self._end(now)
        for part in self._to_ask():
            if part.ask_at <= now < self.call.until:
                part.ask_at = now + REPEAT_S
                edge = part.edge
                if edge.live:
                    if edge.model != edge.expected:
                        self.run.models.catch_up(edge, self.run.numbers.round, now)
                    self._ask(edge, now)
        return self

    def next_due(self) -> float | None:
        """Return when an edge is asked again, or the evaluation may be over."""
        again = (part.ask_at for part in self._to_ask())
        return min([self._ends_at, *(at for at in again if at < self.call.until)])

    def greet(self, edge: EdgeSession, now: float) -> Phase:
        """Ask the edge at once."""
        self._join(edge, now)
        return self.tick(now)

    def expects(self, message: AnswerMessage) -> bool:
        """Return whether an answer is of this evaluation."""
        return message.round == self.call.round and MODES[type(message)] is self.call.mode

    def receive_answer(self, edge: EdgeSession, message: AnswerMessage, now: float) -> Phase:
        """Take in an answer; one that cannot be is none, and is not waited for."""
        part = self.parts.get(edge.id) or self._join(edge, now)
        if part.answer is not None and not self.call.for_volunteers:
            return self
        try:
            if not isinstance(message, EdgeMoments) and not edge.learn_ids(
                message.known, message.new_ids
            ):
                # What it names goes on where an answer ended that never came.
                return self.greet(edge, now)
            part.answer = self._answers.read(message, edge)
        except MalformedError:
            self.run.counters["opinions_refused"] += 1
            part.answer = part.answer or no_answer(part.agents)
            return self.tick(now)
        call = self.call
        answers = [one.answer for one in self.parts.values() if one.answer is not None]
        if call.for_volunteers and enough(call, answers, len(self.parts)):
            self._ends_at = min(self._ends_at, now + ENOUGH_S)
        what = "volunteers" if call.for_volunteers else "opinions"
        self.run.do(*edge.suspect(what, len(part.answer.unsigned)))
        return self.tick(now)

    def _join(self, edge: EdgeSession, now: float) -> Part:
        """Ask an edge; one that was asked and has not answered is asked again at once."""
        part = self.parts.setdefault(edge.id, Part(edge, 0, now))
        part.agents, part.ask_at = max(part.agents, edge.agents), now
        return part

    def _to_ask(self) -> list[Part]:
        more = self.call.for_volunteers
        return [part for part in self.parts.values() if more or part.answer is None]

    def _waits_for(self, edge: EdgeSession) -> bool:
        part = self.parts.get(edge.id)
        return not edge.quiet and (part is None or part.answer is None)

    def _index(self, edge: EdgeSession, rows: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        return edge.clients(rows, self.run.indices, self.run.members.agents)

    def _ask(self, edge: EdgeSession, now: float) -> None:
        """Call the devices of an edge, signed, with the time that is left.

        Those whose updates are in the model are named, as many as fit. The others count as if they
        had not trained, which leaves their own mean as it is.
        """
        call, s = self.call, self.run.settings
        # An edge that has just been started again has named nobody yet.
        trained = call.trained.intersection(edge.ids) if edge.ids else call.trained
        made = Calling(s.run, call.round, s.task, call.digest, call.mode, call.slot)
        question = OpinionOpen(
            round=call.round,
            model=call.digest,
            until_ms=max(0, int(1000 * (call.until - now))),
            mode=call.mode,
            slot=call.slot,
            epoch=edge.epoch,
            known=len(edge.ids),
            trained=tuple(sorted(trained)[:MAX_TRAINED]),
            signed=self.run.vouching.sign(made),
        )
        self.run.send(edge.id, question)

    def _end(self, now: float) -> Phase:
        """End the evaluation: books first, then receipts, then what follows."""
        run, call = self.run, self.call
        if call.mode is not OpinionMode.MOMENTS:
            answers = [
                (part.edge.index, part.answer or no_answer(part.agents))
                for part in self.parts.values()
            ]
            self.found = result(call, answers, now)
            run.evaluations.take(self.found)
            run.do(self.found)
        for name, part in self.parts.items():
            if part.answer is not None and not call.for_volunteers:
                run.send(name, OpinionsReceipt(round=call.round))
            elif part.edge.live:
                run.send(name, OpinionClose(round=call.round))
        return self._then(self, now)


def evaluated(found: BookOpinions | BookVolunteers) -> Emit:
    """Return the event of an evaluation."""
    fields: dict[str, object] = {"round": found.round, "slot": found.slot}
    if isinstance(found, BookOpinions):
        fields |= {"mode": "report", "mean": found.mean, "answered": len(found.client)}
    else:
        fields |= {"mode": "peers", "volunteers": len(found.client)}
    missing = {why: float(count) for why, count in found.reasons.items()}
    fields |= {"asked": found.asked, "missing": missing, "seconds": found.seconds}
    return Emit("opinions", fields)
