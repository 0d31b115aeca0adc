"""The evaluation of models by clients, one after the other: opinions, statistics or volunteers.

docs/protocol.md has the order of messages. Answers are in memory alone: after a restart
the coordinator's repeated `OpinionOpen` asks anew.
"""

import itertools
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TypeVar

import numpy as np

from fedagent_node.effects import Effect, Received, Send, Warn
from fedagent_protocol import messages as m
from fedagent_protocol.columns import claim_column
from fedagent_protocol.errors import ProtocolError
from fedagent_protocol.signed import CLAIM_BYTES, Asked, is_claim
from fedagent_protocol.transfer import Layout
from fedagent_task.moments import Moments

from .effects import COORDINATOR, Ignored
from .exchange import Exchange
from .neighbours import Neighbourhood
from .sessions import MAX_ROWS_BYTES, AgentSessions
from .state import EdgeState, wake
from .weighing import UNREAD, Task, task_of

RETURN_S = 2.0
"""How long agents that were here before a restart of the edge may take to be back."""
AGAIN_S = 1.0
"""How long a call waits for an answer, and an answer for its receipt."""
LAST_S = 30.0
"""After this nothing is repeated unasked: the coordinator repeats `OpinionOpen` if it wants it."""
COALESCE_S = 0.02
"""How long a volunteer waits for others, so that they go up together."""
NOTHING = m.OpinionOpen(round=-1, model="", until_ms=0)

Answer = m.Opinion | m.Volunteer
A = TypeVar("A", m.Opinion, Answer)


class Stage(IntEnum):
    """Where an evaluation stands; it goes to a later one, and never back."""

    WAITING = 0  # for its model
    CALLED = 1  # all who are here, and who come
    OVER = 2  # its time is, or all have answered
    ENDED = 3  # nothing of it is wanted any more


@dataclass(slots=True)
class Evaluation:
    """One model under evaluation: who was called for it, and what came of that.

    `ask` is the coordinator's newest message about it. In mode ``peers`` opinions do not come here,
    and are dropped unread.
    """

    ask: m.OpinionOpen
    task: Task
    settled_at: float = 0.0
    """Until then agents may come that were here before the edge's start, and it is not over
    although all have answered."""
    deadline: float = 0.0
    stage: Stage = Stage.WAITING
    size: int = 0  # of the model, once it is here
    up_at: float = math.inf
    asked: set[str] = field(default_factory=set)
    gone: set[str] = field(default_factory=set)
    awaited: dict[str, float] = field(default_factory=dict)
    """When each that has not answered is called again; the first is the next."""
    given: dict[str, Answer] = field(default_factory=dict)
    unused: dict[str, str] = field(default_factory=dict)
    """Why some answers do not count."""
    moments: list[Moments] = field(default_factory=list)

    @property
    def final(self) -> bool:
        """Whether answers go up together, once none is waited for; otherwise as they come."""
        return self.ask.mode is not m.OpinionMode.PEERS

    def is_same(self, ask: m.OpinionOpen) -> bool:
        """Whether this is the evaluation that the coordinator asks for."""
        mine = self.ask
        if ask.mode is m.OpinionMode.MOMENTS and ask.slot != mine.slot:
            return False  # none had samples: they are asked anew
        return (mine.round, mine.model, mine.mode) == (ask.round, ask.model, ask.mode)

    def is_over(self, now: float) -> bool:
        """Whether nothing is waited for any more."""
        answered = self.final and self.stage is Stage.CALLED and not self.awaited
        return now >= self.deadline or (answered and now >= self.settled_at)

    @property
    def due(self) -> float:
        """When something of it may be due although nothing comes."""
        dues = [self.up_at]
        if self.stage <= Stage.CALLED:
            dues.append(self.deadline)
        if self.stage is Stage.CALLED:
            dues += itertools.islice(self.awaited.values(), 1)
            if self.final and not self.awaited:
                dues.append(self.settled_at)
        return min(dues)

    def take(self, agent: str, answer: Answer, state: EdgeState) -> str:
        """Take an answer; return what is wrong with it, if a person should know.

        Raises:
            Ignored: It is not the agent's first to what it was asked, in time, and its own.
        """
        name, ask, mine = m.kind(answer), self.ask, state.memory
        if agent not in self.asked or isinstance(answer, m.Opinion) is not self.final:
            raise Ignored(f"{name}_unasked")
        if isinstance(answer, m.Opinion) and answer.model != ask.model:
            raise Ignored("opinion_of_another_model")
        if agent in self.given:
            raise Ignored(f"{name}_twice")
        if self.stage > Stage.CALLED:
            raise Ignored(f"{name}_late")
        asked = Asked(
            site=state.config.site, run=mine.run, round=ask.round, task=mine.task, model=ask.model
        )
        if isinstance(answer, m.Volunteer):
            _expect_signed(agent, answer, asked.volunteer(agent, state.me.edge))
            self.given[agent] = answer
            return ""
        _expect_signed(agent, answer, asked.opinion(agent, answer))
        self.given[agent] = answer
        if not answer.samples:
            self.unused[agent] = "none"
        if not 0 <= answer.score <= 1:
            self.unused[agent] = "invalid"
        return self._moments_of(agent, answer) if ask.mode is m.OpinionMode.MOMENTS else ""

    def _moments_of(self, agent: str, answer: m.Opinion) -> str:
        if not answer.samples:
            return f"sent no statistics: {answer.reason or 'no samples'}"
        features = self.task.model.features if self.task.model is not None else 0
        most = self.task.limits.max_samples
        try:
            found = Moments.decode(answer.moments, features=features, most=most)
            problem = "" if found.count == answer.samples else "count"
        except ProtocolError as error:
            problem = str(error)
        if problem:
            self.unused[agent] = "invalid"
            return f"its statistics are invalid: {problem}"
        self.moments.append(found)
        return ""

    def message(self, sessions: AgentSessions) -> m.EdgeToCoordinator:
        """Return what goes up, with the reasons why others have no part in it."""
        reasons = Counter({} if self.size else {"not_asked": sessions.present})
        for agent in self.asked:
            reason = "gone" if agent in self.gone else "missing"
            reasons[self.unused.get(agent, "") if agent in self.given else reason] += 1
        del reasons[""]
        match self.ask.mode:
            case m.OpinionMode.REPORT:
                return self._opinions(sessions, reasons)
            case m.OpinionMode.PEERS:
                return self._volunteers(sessions)
        found, ask = self.moments, self.ask
        return m.EdgeMoments(
            run=ask.run,
            round=ask.round,
            epoch=sessions.epoch,
            model=ask.model,
            moments=sum(found[1:], found[0]).encode() if found else b"",
            agents=len(found),
            asked=len(self.asked),
            reasons=dict(sorted(reasons.items())),
        )

    def _opinions(self, sessions: AgentSessions, without: Counter[str]) -> m.Opinions:
        """Return a row for every opinion that fits.

        What most scores are is the metric of all, so that no single agent decides it; an
        answer with another one, or of an agent whose id does not fit yet, has no row.
        """
        ask, given = self.ask, self.given.items()
        valid = {a: o for a, o in given if isinstance(o, m.Opinion) and a not in self.unused}
        known, named, new_ids = sessions.listing(ask.epoch, ask.known, sorted(valid))
        metrics = Counter(one.metric for one in valid.values())
        metric = max(sorted(metrics), key=metrics.__getitem__, default="")
        same = {agent: one for agent, one in valid.items() if one.metric == metric}
        without["metric"] += len(valid) - len(same)
        rows = _fitting(sessions, same, 20, named)
        without["unnamed"] += len(same) - len(rows)
        opinions = [one for _, one in rows]
        epsilon = np.array([one.epsilon for one in opinions], "<f4")
        return m.Opinions(
            run=ask.run,
            round=ask.round,
            epoch=sessions.epoch,
            model=ask.model,
            known=known,
            new_ids=new_ids,
            session=np.array([index for index, _ in rows], "<i4").tobytes(),
            score=np.array([one.score for one in opinions], "<f4").tobytes(),
            samples=np.array([one.samples for one in opinions], "<i8").tobytes(),
            epsilon=epsilon.tobytes() if epsilon.any() else b"",
            metric=metric,
            asked=len(self.asked),
            reasons={why: count for why, count in sorted(without.items()) if count},
            claim=claim_column([one.claim for one in opinions]),
        )

    def _volunteers(self, sessions: AgentSessions) -> m.Volunteers:
        """Return all who have volunteered so far and can be named.

        Who was asked is named as well: the coordinator counts who is at two edges once.
        """
        ask = self.ask
        agents, others = sorted(self.given), sorted(self.asked)
        known, named, new_ids = sessions.listing(ask.epoch, ask.known, agents, others)
        rows = _fitting(sessions, self.given, 4, named)
        return m.Volunteers(
            run=ask.run,
            round=ask.round,
            epoch=sessions.epoch,
            known=known,
            new_ids=new_ids,
            session=np.array([index for index, _ in rows], "<i4").tobytes(),
            asked=len(self.asked),
            claim=claim_column([one.claim for _, one in rows]),
        )


def _fitting(
    sessions: AgentSessions, given: Mapping[str, A], row_bytes: int, named: int
) -> list[tuple[int, A]]:
    """Return the answers with a named index that fit one message, by it.

    They are more than a coordinator takes of one edge.
    """
    rows = sorted(((sessions.index(a), one) for a, one in given.items()), key=lambda row: row[0])
    rows = [row for row in rows if row[0] < named]
    claimed = any(one.claim for _, one in rows)
    return rows[: MAX_ROWS_BYTES // (row_bytes + (CLAIM_BYTES if claimed else 0))]


def _expect_signed(agent: str, answer: Answer, statement: bytes) -> None:
    """Raise `Ignored` where an answer bears another's claim: it would be taken for our own work.

    What has none the coordinator refuses in a site with certificates.
    """
    if answer.claim and not is_claim(answer.claim, agent, statement):
        raise Ignored(f"{m.kind(answer)}_unsigned")


class Evaluations:
    """The evaluation that was asked for last, and what agents say to each other in it."""

    def __init__(self, state: EdgeState, exchange: Exchange) -> None:
        self.state, self._timers = state, state.timers
        self.neighbours = Neighbourhood(state.sessions, state.counters)
        self._exchange = exchange
        self.returned_at = 0.0
        self.adopt()

    def adopt(self) -> None:
        """Begin with another run or task."""
        self.current = Evaluation(NOTHING, UNREAD, stage=Stage.ENDED)
        self._task: Task = task_of(self.state.memory.body)
        self._begin_neighbours()

    def _begin_neighbours(self) -> None:
        self.neighbours.begin(self.state.memory.run, self._task.peers)
        self._timers.stop("neighbours")

    # -------------------------------------------------------- from coordinator

    def open(self, ask: m.OpinionOpen, now: float) -> list[Effect]:
        """Begin an evaluation, or answer again what became of it."""
        last = self.current
        newest = max(self.state.memory.last_round, last.ask.round)
        ended = last.stage is Stage.ENDED and ask.round == last.ask.round
        if ask.round < newest or ended:
            raise Ignored("opinion_open_old")
        until = now + ask.until_ms / 1000
        if last.is_same(ask):
            # It has had no answer. The earliest estimate is that of the message delayed least.
            last.ask, last.deadline = ask, min(last.deadline, until)
            if last.stage is Stage.OVER if last.final else last.size > 0:
                last.up_at = now
            return []
        self._end(now)
        effects: list[Effect] = []
        if last.ask.model != ask.model:
            self._exchange.stop(last.ask.model)
        self.current = Evaluation(ask, self._task, self.returned_at, until)
        if not self.current.final:
            self.neighbours.call(until)
            self._timers.stop("neighbours")
            for agent in self.state.sessions.present_ids():
                effects += self.neighbours.neighbours_of(agent)
        return effects

    def close(self, close: m.OpinionClose, now: float) -> list[Effect]:
        """End the evaluation of this round."""
        if self.current.ask.round == close.round:
            self._end(now)
        return []

    def receipt(self, receipt: m.OpinionsReceipt, now: float) -> list[Effect]:  # noqa: ARG002 - as all handlers
        """Stop repeating: the opinions of this round are booked."""
        if self.current.ask.round == receipt.round:
            self.current.up_at = math.inf
        return []

    def end_run(self, now: float) -> None:
        """End the evaluation, and carry nothing any more; the run is over."""
        self._begin_neighbours()
        self._end(now)

    def _end(self, now: float) -> None:
        self.neighbours.call_ended(now)
        self.current.stage, self.current.up_at = Stage.ENDED, math.inf
        self._timers.stop("evaluation")

    # ------------------------------------------------------------- from agents

    def answer(self, event: Received, answer: Answer, now: float) -> list[Effect]:
        """Take what an agent says about the model, if it was asked."""
        agent, current = event.sender, self.current
        if (answer.run, answer.round) != (self.state.memory.run, current.ask.round):
            raise Ignored(f"{m.kind(answer)}_late")
        problem = current.take(agent, answer, self.state)
        current.awaited.pop(agent, None)
        if not current.final:
            current.up_at = min(current.up_at, now + COALESCE_S)
            return []
        self._exchange.done(agent)
        return [Warn(agent, problem)] if problem else []

    def wanted(self, agent: str, digest: str) -> Layout | None:
        """Return how a model is cut that an agent is to evaluate; None for no such model."""
        current = self.current
        asked = current.stage is Stage.CALLED and agent in current.asked
        if not asked or digest != current.ask.model or not self._is_held:
            return None
        return self.state.layout(current.size)

    def here(self, agent: str, now: float) -> list[Effect]:
        """Call an agent that came, or came back, and send it its neighbours."""
        self._changed(now)
        effects: list[Effect] = []
        if self.neighbours.is_open(now):
            effects += self.neighbours.neighbours_of(agent)
        if not effects and not self.current.final:
            # Alone it would find itself the best: it is called with its neighbours, soon.
            return []
        return effects + self._call_again(agent, now)

    def left(self, agent: str, now: float) -> None:
        """Wait no more for an agent that left."""
        self._changed(now)
        if agent in self.current.asked:
            self.current.gone.add(agent)
            self.current.awaited.pop(agent, None)

    def _changed(self, now: float) -> None:
        """Draw the graph of neighbours again soon: somebody came or went."""
        if self.neighbours.is_open(now):
            self._timers.sooner("neighbours", now + self.neighbours.wait_s, self._redraw)

    def _redraw(self, now: float) -> list[Effect]:
        effects: list[Effect] = []
        for named in self.neighbours.refresh():
            effects.append(named)
            if not self.current.final and named.to not in self.current.asked:
                effects += self._call_again(named.to, now)
        return effects

    # -------------------------------------------------------------- from call to answer

    def look(self, now: float) -> list[Effect]:
        """Begin when the model is here, end when all have answered or the time is over.

        To be called after each input, and when time has passed. A round that was ordered ends the
        evaluation of the one before.
        """
        current, effects = self.current, list[Effect]()
        if current.stage is Stage.ENDED:
            return effects
        if current.ask.round < self.state.memory.last_round:
            self._end(now)
            return effects
        if current.stage is Stage.WAITING and now < current.deadline and self._is_held:
            current.stage, current.size = Stage.CALLED, self.state.memory.model_bytes
            current.up_at = math.inf if current.final else now
            effects += [self._call(agent, now) for agent in self.state.sessions.present_ids()]
        if current.stage <= Stage.CALLED and current.is_over(now):
            current.stage, current.up_at = Stage.OVER, now
        if current.stage is Stage.CALLED:
            late = itertools.takewhile(lambda one: one[1] <= now, current.awaited.items())
            effects += [self._call(agent, now) for agent, _ in list(late)]
        if now >= current.up_at:
            # Final answers are repeated until the receipt, others to the end.
            wanted = current.final or current.stage <= Stage.CALLED
            wanted = wanted and now < current.deadline + LAST_S
            current.up_at = now + AGAIN_S if wanted else math.inf
            effects.append(Send(COORDINATOR, current.message(self.state.sessions)))
        self._timers.at("evaluation", current.due, wake)
        return effects

    @property
    def _is_held(self) -> bool:
        """Whether the model is still the edge's: another may take its place on the disk."""
        return self.state.memory.model == self.current.ask.model

    def _call_again(self, agent: str, now: float) -> list[Effect]:
        current = self.current
        current.gone.discard(agent)
        if current.stage is not Stage.CALLED or agent in current.given:
            return []
        return [self._call(agent, now)]

    def _call(self, agent: str, now: float) -> Send:
        state, current = self.state, self.current
        ask = current.ask
        current.asked.add(agent)
        current.awaited.pop(agent, None)
        current.awaited[agent] = now + AGAIN_S
        call = m.OpinionCall(
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
