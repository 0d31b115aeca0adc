"""The evaluation of models by clients, one after the other.

docs/protocol.md has the order of messages. Opinions are in memory alone: after a restart
the coordinator's repeated `OpinionOpen` asks anew.
"""

import itertools
import math

from fedagent_node.effects import Effect, Received, Send, Warn
from fedagent_protocol.messages import (
    Opinion,
    OpinionCall,
    OpinionClose,
    OpinionOpen,
    OpinionsReceipt,
    PeerSend,
    Volunteer,
    kind,
)
from fedagent_protocol.transfer import Layout

from .answers import Evaluation
from .effects import COORDINATOR, EdgeState, Ignored
from .exchange import Exchange
from .neighbours import Neighbourhood
from .weighing import UNREAD, Task, task_of

RETURN_S = 2.0
"""How long agents that were here before a restart of the edge may take to be back."""
AGAIN_S = 1.0
"""How long a call waits for an answer, and an answer for its receipt."""
LAST_S = 30.0
"""After this nothing is repeated unasked: the coordinator repeats `OpinionOpen` if it wants it."""
COALESCE_S = 0.02
"""How long a volunteer waits for others, so that they go up together."""


NOTHING = OpinionOpen(round=-1, model="", until_ms=0)


class Evaluations:
    """The evaluation that was asked for last, and what agents say to each other in it."""

    def __init__(self, state: EdgeState, exchange: Exchange) -> None:
        self.state = state
        self.neighbours = Neighbourhood(state.sessions, state.counters)
        self._exchange = exchange
        self._returned_at = 0.0
        self.adopt()

    def adopt(self) -> None:
        """Begin with another run or task."""
        self.current = Evaluation(NOTHING, UNREAD, over=True, ended=True)
        self._task: Task = task_of(self.state.memory.body)
        if self.state.memory.body and self._task is UNREAD:
            self.state.counters["task_unread"] += 1
        self.neighbours.begin(self.state.memory.run, self._task.peers)

    def lan_up(self, now: float) -> None:
        """Give agents time to come: they can from now on."""
        self._returned_at = now + RETURN_S

    # -------------------------------------------------------- from coordinator

    def open(self, ask: OpinionOpen, now: float) -> list[Effect]:
        """Begin an evaluation, or answer again what became of it."""
        last = self.current
        newest = max(self.state.memory.last_round, last.ask.round)
        if ask.round < newest or (last.ended and ask.round == last.ask.round):
            raise Ignored("opinion_open_old")
        until = now + ask.until_ms / 1000
        if last.is_same(ask):
            # It has had no answer. The earliest estimate is that of the message delayed least.
            last.ask, last.deadline = ask, min(last.deadline, until)
            last.receipted = False
            ready = last.over if last.final else last.size > 0
            return self._send_answers(now) if ready else []
        self._end(now)
        effects: list[Effect] = []
        if last.ask.model != ask.model:
            self._exchange.stop(last.ask.model)
        self.current = Evaluation(ask, self._task, self._returned_at, until)
        if not self.current.final:
            self.neighbours.call(until)
            for agent in self.state.sessions.present_ids():
                effects += self.neighbours.neighbours_of(agent)
        return effects + self._step(now)

    def close(self, close: OpinionClose, now: float) -> list[Effect]:
        """End the evaluation of this round."""
        if self.current.ask.round == close.round:
            self._end(now)
        return []

    def receipt(self, receipt: OpinionsReceipt, now: float) -> list[Effect]:  # noqa: ARG002 - as all handlers
        """Stop repeating: the opinions of this round are booked."""
        if self.current.ask.round == receipt.round:
            self.current.receipted, self.current.up_at = True, math.inf
        return []

    def end_run(self, now: float) -> None:
        """End the evaluation, and carry nothing any more; the run is over."""
        self.neighbours.begin(self.state.memory.run, self.neighbours.spec)
        self._end(now)

    def _end(self, now: float) -> None:
        """End it: nothing is wanted any more."""
        self.neighbours.call_ended(now)
        self.current.over = self.current.ended = True
        self.current.up_at = math.inf

    # ------------------------------------------------------------- from agents

    def answer(self, event: Received, answer: Opinion | Volunteer, now: float) -> list[Effect]:
        """Take what an agent says about the model, if it was asked."""
        agent, current = event.sender, self.current
        if (answer.run, answer.round) != (self.state.memory.run, current.ask.round):
            raise Ignored(f"{kind(answer)}_late")
        problem = current.take(agent, answer, self.state)
        current.awaited.pop(agent, None)
        if not current.final:
            current.up_at = min(current.up_at, now + COALESCE_S)
            return []
        effects = self._exchange.done(agent, now)
        return [*effects, Warn(agent, problem)] if problem else effects

    def envelope(self, event: Received, envelope: PeerSend, now: float) -> list[Effect]:
        """Hand on what one agent says to another."""
        return self.neighbours.send(event.sender, envelope, now)

    def wanted(self, agent: str, digest: str) -> Layout | None:
        """Return how a model is cut that an agent is to evaluate; None for no such model."""
        current = self.current
        asked = current.size > 0 and not current.over and agent in current.asked
        if not asked or digest != current.ask.model or not self._is_held:
            return None
        return self.state.layout(current.size)

    def here(self, agent: str, now: float) -> list[Effect]:
        """Call an agent that came, or came back, and send it its neighbours."""
        self.neighbours.changed(now)
        effects: list[Effect] = []
        if self.neighbours.is_open(now):
            effects += self.neighbours.neighbours_of(agent)
        if not effects and not self.current.final:
            # Alone it would find itself the best: it is called with its neighbours, soon.
            return []
        return effects + self._call_again(agent, now)

    def left(self, agent: str, now: float) -> list[Effect]:
        """Wait no more for an agent that left."""
        self.neighbours.changed(now)
        if agent in self.current.asked:
            self.current.gone.add(agent)
            self.current.awaited.pop(agent, None)
        return []

    def _call_again(self, agent: str, now: float) -> list[Effect]:
        current = self.current
        current.gone.discard(agent)
        if not current.size or current.over or agent in current.given:
            return []
        return [self._call(agent, now)]

    # ------------------------------------------------------------------- time

    def look(self, now: float) -> list[Effect]:
        """Begin when the model is here, end when all have answered or the time is over.

        A round that was ordered ends the evaluation of the one before.
        """
        current = self.current
        if current.ask.round < self.state.memory.last_round and not current.ended:
            self._end(now)
        if current.over:
            return []
        began = not current.size and now < current.deadline and self._is_held
        effects = self._begin(now) if began else []
        if not current.is_over(now):
            return effects
        current.over = True
        return effects + self._send_answers(now)

    def tick(self, now: float) -> list[Effect]:
        """Do what is due, and repeat what was not answered."""
        effects: list[Effect] = []
        current = self.current
        for named in self.neighbours.refresh() if now >= self.neighbours.due else ():
            effects.append(named)
            if not current.final and named.to not in current.asked:
                effects += self._call_again(named.to, now)
        return effects + self._step(now)

    def _step(self, now: float) -> list[Effect]:
        effects, current = self.look(now), self.current
        if not current.over:
            due = itertools.takewhile(lambda one: one[1] <= now, current.awaited.items())
            effects += [self._call(agent, now) for agent, _ in list(due)]
        if now >= current.up_at:
            effects += self._send_answers(now)
        return effects

    def next_due(self, now: float) -> float:  # noqa: ARG002 - as all parts of the edge
        """Return when `tick` is wanted."""
        current = self.current
        dues = [current.up_at, self.neighbours.due]
        if not current.over:
            dues.append(current.deadline)
            if current.awaited:
                dues.append(next(iter(current.awaited.values())))
            elif current.size and current.final:
                dues.append(current.settled_at)
        return min(dues)

    @property
    def _is_held(self) -> bool:
        """Whether the model is still the edge's: another may take its place on the disk."""
        return self.state.memory.model == self.current.ask.model

    def _begin(self, now: float) -> list[Effect]:
        state, current = self.state, self.current
        current.size = state.memory.model_bytes
        agents = state.sessions.present_ids()
        self._exchange.serve(current.ask.model, state.layout(current.size), set(agents), now)
        if not current.final:
            current.up_at = now
        return [self._call(agent, now) for agent in agents]

    def _call(self, agent: str, now: float) -> Send:
        state, current = self.state, self.current
        ask = current.ask
        current.asked.add(agent)
        current.awaited.pop(agent, None)
        current.awaited[agent] = now + AGAIN_S
        call = OpinionCall(
            run=state.memory.run,
            round=ask.round,
            task=state.memory.task,
            model=ask.model,
            size=current.size,
            chunk_bytes=state.config.chunk_bytes,
            until_ms=max(0, round((current.deadline - now) * 1000)),
            mode=ask.mode,
            slot=ask.slot,
            trained=agent in ask.trained,
            signed=ask.signed,
        )
        return Send(agent, call)

    def _send_answers(self, now: float) -> list[Effect]:
        """Send up what there is, and again: final answers until the receipt, others to the end."""
        current = self.current
        wanted = not current.receipted if current.final else not current.over
        wanted = wanted and now < current.deadline + LAST_S
        current.up_at = now + AGAIN_S if wanted else math.inf
        return [Send(COORDINATOR, current.message(self.state.sessions))]
