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
from fedagent_protocol.columns import claim_column
from fedagent_protocol.errors import MalformedError
from fedagent_protocol.messages import (
    EdgeMoments,
    EdgeToCoordinator,
    Opinion,
    OpinionCall,
    OpinionClose,
    OpinionMode,
    OpinionOpen,
    Opinions,
    OpinionsReceipt,
    Volunteer,
    Volunteers,
    kind,
)
from fedagent_protocol.signed import CLAIM_BYTES, Asked, is_claim
from fedagent_protocol.transfer import Layout
from fedagent_task.moments import Moments

from .effects import COORDINATOR, Ignored
from .exchange import Exchange
from .neighbours import Neighbourhood
from .sessions import MAX_ROWS_BYTES, AgentSessions
from .state import EdgeState
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

Answer = Opinion | Volunteer
A = TypeVar("A", Opinion, Answer)


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

    ask: OpinionOpen
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
        return self.ask.mode is not OpinionMode.PEERS

    def is_same(self, ask: OpinionOpen) -> bool:
        """Whether this is the evaluation that the coordinator asks for."""
        mine = self.ask
        if ask.mode is OpinionMode.MOMENTS and ask.slot != mine.slot:
            return False  # none had samples: they are asked anew
        return (mine.round, mine.model, mine.mode) == (ask.round, ask.model, ask.mode)

    def is_over(self, now: float) -> bool:
        """Whether nothing is waited for any more."""
        answered = self.final and self.stage is Stage.CALLED and not self.awaited
        return now >= self.deadline or (answered and now >= self.settled_at)

    def take(self, agent: str, answer: Answer, state: EdgeState) -> str:
        """Take an answer; return what is wrong with it, if a person should know.

        Raises:
            Ignored: It is not the agent's first to what it was asked, in time, and its own.
        """
        name, ask = kind(answer), self.ask
        if agent not in self.asked or isinstance(answer, Opinion) is not self.final:
            raise Ignored(f"{name}_unasked")
        if isinstance(answer, Opinion) and answer.model != ask.model:
            raise Ignored("opinion_of_another_model")
        if agent in self.given:
            raise Ignored(f"{name}_twice")
        if self.stage > Stage.CALLED:
            raise Ignored(f"{name}_late")
        if answer.claim and not _is_theirs(state, ask, agent, answer):
            # The coordinator would take it for the edge's own work; what has none it refuses in a
            # site with certificates.
            raise Ignored(f"{name}_unsigned")
        self.given[agent] = answer
        if isinstance(answer, Volunteer):
            return ""
        if not answer.samples:
            self.unused[agent] = "none"
        if not 0 <= answer.score <= 1:
            self.unused[agent] = "invalid"
        return self._moments_of(agent, answer) if ask.mode is OpinionMode.MOMENTS else ""

    def _moments_of(self, agent: str, answer: Opinion) -> str:
        if not answer.samples:
            return f"sent no statistics: {answer.reason or 'no samples'}"
        features = self.task.model.features if self.task.model is not None else 0
        most = self.task.limits.max_samples
        try:
            found = Moments.decode(answer.moments, features=features, most=most)
            reason = "" if found.count == answer.samples else "count"
        except MalformedError as error:
            reason = str(error)
        if reason:
            self.unused[agent] = "invalid"
            return f"its statistics are invalid: {reason}"
        self.moments.append(found)
        return ""

    def message(self, sessions: AgentSessions) -> EdgeToCoordinator:
        """Return what goes up, with the reasons why others have no part in it."""
        reasons = Counter({} if self.size else {"not_asked": sessions.present})
        for agent in self.asked:
            reason = "gone" if agent in self.gone else "missing"
            reasons[self.unused.get(agent, "") if agent in self.given else reason] += 1
        del reasons[""]
        match self.ask.mode:
            case OpinionMode.REPORT:
                return self._opinions(sessions, reasons)
            case OpinionMode.PEERS:
                return self._volunteers(sessions)
        found, ask = self.moments, self.ask
        return EdgeMoments(
            run=ask.run,
            round=ask.round,
            epoch=sessions.epoch,
            model=ask.model,
            moments=sum(found[1:], found[0]).encode() if found else b"",
            agents=len(found),
            asked=len(self.asked),
            reasons=dict(sorted(reasons.items())),
        )

    def _opinions(self, sessions: AgentSessions, without: Counter[str]) -> Opinions:
        """Return a row for every opinion that fits.

        What most scores are is the metric of all, so that no single agent decides it; an
        answer with another one, or of an agent whose id does not fit yet, has no row.
        """
        ask, given = self.ask, self.given.items()
        valid = {a: o for a, o in given if isinstance(o, Opinion) and a not in self.unused}
        listing = sessions.listing(ask.epoch, ask.known, sorted(valid))
        metrics = Counter(one.metric for one in valid.values())
        metric = max(sorted(metrics), key=metrics.__getitem__, default="")
        same = {agent: one for agent, one in valid.items() if one.metric == metric}
        without["metric"] += len(valid) - len(same)
        rows = _fitting(sessions, same, 20, listing.named)
        without["unnamed"] += len(same) - len(rows)
        opinions = [one for _, one in rows]
        epsilon = np.array([one.epsilon for one in opinions], "<f4")
        return Opinions(
            run=ask.run,
            round=ask.round,
            epoch=sessions.epoch,
            model=ask.model,
            known=listing.known,
            new_ids=listing.new_ids,
            session=np.array([index for index, _ in rows], "<i4").tobytes(),
            score=np.array([one.score for one in opinions], "<f4").tobytes(),
            samples=np.array([one.samples for one in opinions], "<i8").tobytes(),
            epsilon=epsilon.tobytes() if epsilon.any() else b"",
            metric=metric,
            asked=len(self.asked),
            reasons={why: count for why, count in sorted(without.items()) if count},
            claim=claim_column([one.claim for one in opinions]),
        )

    def _volunteers(self, sessions: AgentSessions) -> Volunteers:
        """Return all who have volunteered so far and can be named.

        Who was asked is named as well: the coordinator counts who is at two edges once.
        """
        ask = self.ask
        listing = sessions.listing(ask.epoch, ask.known, sorted(self.given), sorted(self.asked))
        rows = _fitting(sessions, self.given, 4, listing.named)
        return Volunteers(
            run=ask.run,
            round=ask.round,
            epoch=sessions.epoch,
            known=listing.known,
            new_ids=listing.new_ids,
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


def _is_theirs(state: EdgeState, ask: OpinionOpen, agent: str, answer: Answer) -> bool:
    mine = state.memory
    asked = Asked(
        site=state.config.site, run=mine.run, round=ask.round, task=mine.task, model=ask.model
    )
    if isinstance(answer, Opinion):
        return is_claim(answer.claim, agent, asked.opinion(agent, answer))
    return is_claim(answer.claim, agent, asked.volunteer(agent, state.me.edge))


class Evaluations:
    """The evaluation that was asked for last, and what agents say to each other in it."""

    def __init__(self, state: EdgeState, exchange: Exchange) -> None:
        self.state = state
        self.neighbours = Neighbourhood(state.sessions, state.counters)
        self._exchange = exchange
        self.returned_at = 0.0
        self.adopt()

    def adopt(self) -> None:
        """Begin with another run or task."""
        self.current = Evaluation(NOTHING, UNREAD, stage=Stage.ENDED)
        self._task: Task = task_of(self.state.memory.body)
        self.neighbours.begin(self.state.memory.run, self._task.peers)

    # -------------------------------------------------------- from coordinator

    def open(self, ask: OpinionOpen, now: float) -> list[Effect]:
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
            ready = last.stage is Stage.OVER if last.final else last.size > 0
            return self._send_answers(now) if ready else []
        self._end(now)
        effects: list[Effect] = []
        if last.ask.model != ask.model:
            self._exchange.stop(last.ask.model)
        self.current = Evaluation(ask, self._task, self.returned_at, until)
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
            self.current.up_at = math.inf
        return []

    def end_run(self, now: float) -> None:
        """End the evaluation, and carry nothing any more; the run is over."""
        self.neighbours.begin(self.state.memory.run, self.neighbours.spec)
        self._end(now)

    def _end(self, now: float) -> None:
        self.neighbours.call_ended(now)
        self.current.stage, self.current.up_at = Stage.ENDED, math.inf

    # ------------------------------------------------------------- from agents

    def answer(self, event: Received, answer: Answer, now: float) -> list[Effect]:
        """Take what an agent says about the model, if it was asked."""
        agent, current = event.sender, self.current
        if (answer.run, answer.round) != (self.state.memory.run, current.ask.round):
            raise Ignored(f"{kind(answer)}_late")
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
        if current.stage is not Stage.CALLED or agent in current.given:
            return []
        return [self._call(agent, now)]

    # ------------------------------------------------------------------- time

    def look(self, now: float) -> list[Effect]:
        """Begin when the model is here, end when all have answered or the time is over.

        A round that was ordered ends the evaluation of the one before.
        """
        current, effects = self.current, list[Effect]()
        if current.stage is not Stage.ENDED and current.ask.round < self.state.memory.last_round:
            self._end(now)
        if current.stage > Stage.CALLED:
            return []
        if current.stage is Stage.WAITING and now < current.deadline and self._is_held:
            effects += self._begin(now)
        if not current.is_over(now):
            return effects
        current.stage = Stage.OVER
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
        if current.stage is Stage.CALLED:
            due = itertools.takewhile(lambda one: one[1] <= now, current.awaited.items())
            effects += [self._call(agent, now) for agent, _ in list(due)]
        if now >= current.up_at:
            effects += self._send_answers(now)
        return effects

    def next_due(self, now: float) -> float:  # noqa: ARG002 - as all parts of the edge
        """Return when `tick` is wanted."""
        current = self.current
        dues = [current.up_at, self.neighbours.due]
        if current.stage <= Stage.CALLED:
            dues.append(current.deadline)
        if current.stage is Stage.CALLED:
            if current.awaited:
                dues.append(next(iter(current.awaited.values())))
            elif current.final:
                dues.append(current.settled_at)
        return min(dues)

    @property
    def _is_held(self) -> bool:
        """Whether the model is still the edge's: another may take its place on the disk."""
        return self.state.memory.model == self.current.ask.model

    def _begin(self, now: float) -> list[Effect]:
        state, current = self.state, self.current
        current.stage, current.size = Stage.CALLED, state.memory.model_bytes
        agents = state.sessions.present_ids()
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
        wanted = current.final or current.stage <= Stage.CALLED
        wanted = wanted and now < current.deadline + LAST_S
        current.up_at = now + AGAIN_S if wanted else math.inf
        return [Send(COORDINATOR, current.message(self.state.sessions))]
