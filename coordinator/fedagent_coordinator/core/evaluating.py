"""The phase in which clients are asked about a model: for opinions, volunteers, or statistics.

An edge is asked every second until it has answered (docs/opinions.md). One that reports opinions or
statistics gets a receipt, and is not asked again; more volunteers may come from every edge.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from fedagent_node.effects import Emit
from fedagent_protocol.errors import ProtocolError
from fedagent_protocol.messages import (
    EdgeMoments,
    OpinionClose,
    OpinionMode,
    OpinionOpen,
    OpinionsReceipt,
)
from fedagent_protocol.signed import Asked, Calling

from .answers import MODES, AnswerMessage, Call, EdgeAnswer, enough, no_answer, read_answer, result
from .edges import EdgeSession
from .effects import BookEvaluation
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

    def __init__(
        self, run: Run, call: Call, then: Callable[["Evaluating", float], Phase], now: float
    ) -> None:
        super().__init__(run)
        self.call, self._then, s = call, then, run.settings
        self.parts: dict[str, Part] = {}
        self.found: BookEvaluation | None = None
        if run.members.agents is not None:
            asked = Asked(site=s.site, run=s.run, round=call.round, task=s.task, model=call.digest)
            self.call = call = replace(call, asked=asked)
        self._ends_at = call.until if call.for_volunteers else call.give_up_at

        for edge in run.edges.able():
            self.greet(edge, now)

    def step(self, now: float) -> Phase:
        """Ask again, bring edges the model, or end the evaluation."""
        able, call = self.run.edges.able(), self.call
        waits = bool(able) if call.for_volunteers else any(map(self._waits_for, able))
        if now >= self._ends_at or not waits:
            return self._end(now)
        self.due = self._ends_at
        for part in self.parts.values():
            if part.answer is not None and not call.for_volunteers:
                continue
            if part.ask_at <= now < call.until:
                part.ask_at = now + REPEAT_S
                edge = part.edge
                if edge.live:
                    if edge.model != edge.expected:
                        self.run.models.catch_up(edge, self.run.numbers.round, now)
                    self._ask(edge, now)
            if part.ask_at < call.until:
                self.due = min(self.due, part.ask_at)
        return self

    def greet(self, edge: EdgeSession, now: float) -> None:
        """Have the edge asked at once, again if it has not answered."""
        part = self.parts.setdefault(edge.id, Part(edge, 0, now))
        part.agents, part.ask_at = max(part.agents, edge.agents), now

    def expects(self, message: AnswerMessage) -> bool:
        """Return whether an answer is of this evaluation."""
        return message.round == self.call.round and MODES[type(message)] is self.call.mode

    def receive_answer(self, edge: EdgeSession, message: AnswerMessage, now: float) -> None:
        """Take in an answer; one that cannot be is none, and is not waited for."""
        if edge.id not in self.parts:
            self.greet(edge, now)
        part, call = self.parts[edge.id], self.call
        if part.answer is not None and not call.for_volunteers:
            return
        try:
            if not isinstance(message, EdgeMoments) and not edge.learn_ids(
                message.known, message.new_ids
            ):
                # What it names goes on where an answer ended that never came.
                self.greet(edge, now)
                return
            indices, members = self.run.indices, self.run.members.agents
            client = partial(edge.clients, indices=indices, members=members)
            recipe = self.run.settings.recipe
            part.answer = read_answer(message, edge, call, recipe=recipe, client=client)
        except ProtocolError:
            self.run.counters["opinions_refused"] += 1
            part.answer = part.answer or no_answer(part.agents)
            return
        answers = [one.answer for one in self.parts.values() if one.answer is not None]
        if call.for_volunteers and enough(call, answers, len(self.parts)):
            self._ends_at = min(self._ends_at, now + ENOUGH_S)
        what = "volunteers" if call.for_volunteers else "opinions"
        self.run.do(*edge.suspect(what, len(part.answer.unsigned)))

    def _waits_for(self, edge: EdgeSession) -> bool:
        part = self.parts.get(edge.id)
        return not edge.quiet and (part is None or part.answer is None)

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
            run.do(self.found, self._event(self.found))
        for name, part in self.parts.items():
            if part.answer is not None and not call.for_volunteers:
                run.send(name, OpinionsReceipt(round=call.round))
            elif part.edge.live:
                run.send(name, OpinionClose(round=call.round))
        return self._then(self, now)

    @staticmethod
    def _event(found: BookEvaluation) -> Emit:
        answered: dict[str, object] = {"mean": found.mean, "answered": len(found.client)}
        fields: dict[str, object] = {
            "round": found.round,
            "slot": found.slot,
            "mode": found.mode.value,
            **({"volunteers": len(found.client)} if found.peers else answered),
            "asked": found.asked,
            "missing": {why: float(count) for why, count in found.reasons.items()},
            "seconds": found.seconds,
        }
        return Emit("opinions", fields)
