"""One call under way: every agent is asked what it thinks of a model.

In mode ``report`` opinions are collected until all have answered or the time is over, and
go up as one message; in mode ``peers`` only the word of those who volunteer does. Opinions
are in memory alone: after a restart the coordinator's repeated `OpinionOpen` asks anew.
"""

import itertools
import math
from collections import Counter
from dataclasses import dataclass, field

from fedagent_node.effects import Effect, Emit, Send, Warn
from fedagent_protocol.messages import (
    Need,
    Opinion,
    OpinionCall,
    OpinionMode,
    OpinionOpen,
)
from fedagent_protocol.transfer import Layout
from fedagent_task.moments import Moments, MomentsError

from .distribution import Distribution
from .effects import COORDINATOR
from .sessions import AgentSessions
from .settings import EdgeSettings, Memory
from .tally import moments_of, opinions_of, volunteers_of

AGAIN_S = 1.0
"""How long a call waits for an answer, and an answer for its receipt."""
LAST_S = 30.0
"""After this nothing is repeated unasked: who wants it says `OpinionOpen` again."""
COALESCE_S = 0.02
"""How long a volunteer waits for others, so that they go up together."""


@dataclass(slots=True)
class EdgeEvaluation:
    """A call for opinions of one model.

    Attributes:
        ask: The coordinator's newest word of it.
        settled_at: Until then agents may come that were here before the edge's start, and
            a call is not over although all have answered.
        started: Agents were called.
        over: Its time is over or all have answered.
        ended: Nobody wants anything of it any more.
        features, max_samples: What moments must have, and may count.
        _awaited: When each that has not answered is called again; the first is the next.
    """

    ask: OpinionOpen
    memory: Memory
    sessions: AgentSessions
    settings: EdgeSettings
    counters: Counter[str]
    began_at: float
    settled_at: float = 0.0
    started: bool = False
    over: bool = False
    ended: bool = False
    features: int = 0
    max_samples: int = 0
    _deadline: float = field(init=False)
    _distribution: Distribution | None = None
    _size: int = 0
    _asked: set[str] = field(default_factory=set)
    _awaited: dict[str, float] = field(default_factory=dict)
    _answers: dict[str, Opinion] = field(default_factory=dict)
    _invalid: set[str] = field(default_factory=set)
    _moments: dict[str, Moments] = field(default_factory=dict)
    _gone: set[str] = field(default_factory=set)
    _volunteers: dict[str, None] = field(default_factory=dict)
    _trained: frozenset[str] = frozenset()
    _up_at: float = math.inf
    _receipted: bool = False

    def __post_init__(self) -> None:
        """Take the time that is left."""
        self._deadline = self.began_at + self.ask.until_ms / 1000
        self._trained = frozenset(self.ask.trained)

    @property
    def round(self) -> int:
        """Round of the model; 0 for the one that the run begins with."""
        return self.ask.round

    def was_called(self, agent: str) -> bool:
        """Whether an agent was called."""
        return agent in self._asked

    @property
    def reports(self) -> bool:
        """Whether what agents answer goes up."""
        return self.ask.mode is not OpinionMode.PEERS

    def is_same(self, ask: OpinionOpen) -> bool:
        """Whether this is the same call."""
        mine = (self.ask.round, self.ask.model, self.ask.mode)
        if ask.mode is OpinionMode.MOMENTS and ask.slot != self.ask.slot:
            return False  # nobody had samples: they are asked anew
        return mine == (ask.round, ask.model, ask.mode)

    # -------------------------------------------------------- from coordinator

    def again(self, ask: OpinionOpen, now: float) -> list[Effect]:
        """Take in that the coordinator said it again: it has had no answer."""
        self.ask = ask
        # The earliest estimate is that of the message that was delayed least.
        self._deadline = min(self._deadline, now + ask.until_ms / 1000)
        self._receipted = False
        if self.over if self.reports else self.started:
            return self._send_answer(now)
        return []

    def receipt(self) -> None:
        """Take in that the opinions are booked."""
        self._receipted, self._up_at = True, math.inf

    def end(self, now: float) -> list[Effect]:
        """Take in that nothing is wanted any more."""
        told: list[Effect] = [] if self.over else [self._evaluated(now)]
        self.over = self.ended = True
        self._distribution, self._up_at = None, math.inf
        return told

    # ------------------------------------------------------------- from agents

    def opinion(self, agent: str, opinion: Opinion, now: float) -> list[Effect]:
        """Take an answer; one that does not fit is counted."""
        refused = self._refuse(agent, opinion)
        if refused:
            self.counters[refused] += 1
            return []
        if not 0 <= opinion.score <= 1:
            self.counters["opinion_invalid"] += 1
            self._invalid.add(agent)
        self._answers[agent] = opinion
        self._awaited.pop(agent, None)
        problem = self._add_up(agent, opinion)
        more = self._distribution.answered(agent, now) if self._distribution else []
        return [*more, Warn(agent, problem)] if problem else more

    def _add_up(self, agent: str, opinion: Opinion) -> str:
        """Take in what an agent's samples add up to; return what is wrong, if anything."""
        if self.ask.mode is not OpinionMode.MOMENTS:
            return ""
        if not opinion.samples:
            return f"tells no statistics: {opinion.reason or 'no samples'}"
        try:
            found = Moments.decode(opinion.moments, features=self.features, most=self.max_samples)
            why = "" if found.count == opinion.samples else "count"
        except MomentsError as error:
            why = str(error)
        if why:
            self.counters[f"moments_{why}"] += 1
            self._invalid.add(agent)
            return f"its statistics cannot be: {why}"
        self._moments[agent] = found
        return ""

    def _refuse(self, agent: str, opinion: Opinion) -> str:
        if not self.reports or agent not in self._asked:
            return "opinion_unasked"
        if opinion.model != self.ask.model:
            return "opinion_of_another_model"
        if agent in self._answers:
            return "opinion_twice"
        return "opinion_late" if self.over else ""

    def volunteer(self, agent: str, now: float) -> list[Effect]:
        """Take the word of one that volunteers."""
        if self.reports or agent not in self._asked:
            self.counters["volunteer_unasked"] += 1
        elif agent in self._volunteers:
            # It says so until its order comes.
            return []
        elif self.over:
            self.counters["volunteer_late"] += 1
        else:
            self._volunteers[agent] = None
            self._awaited.pop(agent, None)
            self._up_at = min(self._up_at, now + COALESCE_S)
        return []

    def serves(self, agent: str, digest: str) -> bool:
        """Whether an agent may have this model from here now."""
        return (
            digest == self.ask.model
            and self._is_held
            and self._distribution is not None
            and agent in self._asked
        )

    def need(self, agent: str, need: Need, now: float, *, link_idle: bool) -> list[Effect]:
        """Send the model to one for whom `serves` is true."""
        assert self._distribution is not None
        return self._distribution.need(agent, need.ranges, now, link_idle=link_idle)

    def here(self, agent: str, now: float) -> list[Effect]:
        """Call an agent that came, or came back, unless it has answered."""
        self._gone.discard(agent)
        done = self._answers if self.reports else self._volunteers
        if not self.started or self.over or agent in done:
            return []
        return [self._call(agent, now)]

    def left(self, agent: str, now: float) -> list[Effect]:
        """Wait no more for an agent that left."""
        if agent not in self._asked:
            return []
        self._gone.add(agent)
        self._awaited.pop(agent, None)
        return self._distribution.answered(agent, now) if self._distribution else []

    # ------------------------------------------------------------------- time

    def look(self, now: float) -> list[Effect]:
        """Begin when the model is here, end when all have answered or the time is over."""
        if self.over:
            return []
        began = not self.started and now < self._deadline and self._is_held
        effects = self._begin(now) if began else []
        if not self._is_over(now):
            return effects
        self.over, self._distribution = True, None
        return [*effects, *self._send_answer(now), self._evaluated(now)]

    def tick(self, now: float) -> list[Effect]:
        """Do what is due, and repeat what was not answered."""
        effects = self.look(now)
        if self._distribution is not None and self._is_held:
            effects += self._distribution.pump(now)
        if not self.over:
            due = itertools.takewhile(lambda one: one[1] <= now, self._awaited.items())
            effects += [self._call(agent, now) for agent, _ in list(due)]
        if now >= self._up_at:
            effects += self._send_answer(now)
        return effects

    def next_due(self, now: float) -> float:
        """Return when `tick` is wanted."""
        if self.over:
            return self._up_at
        dues = [self._deadline, self._up_at]
        if self._awaited:
            dues.append(next(iter(self._awaited.values())))
        elif self.started and self.reports:
            dues.append(self.settled_at)
        if self._distribution is not None and self._is_held:
            due = self._distribution.next_due(now)
            dues += [] if due is None else [due]
        return min(dues)

    @property
    def _is_held(self) -> bool:
        """Whether the model is still the edge's: another may take its place on the disk."""
        return self.memory.model == self.ask.model

    def _begin(self, now: float) -> list[Effect]:
        self.started, self._size = True, self.memory.model_bytes
        agents = self.sessions.present_ids()
        self._distribution = Distribution(
            self.memory.run,
            self.ask.round,
            self.ask.model,
            Layout(self._size, self.settings.chunk_bytes),
            now + self.settings.need_wait_s,
            set(agents),
        )
        if not self.reports:
            self._up_at = now
        return [self._call(agent, now) for agent in agents]

    def _call(self, agent: str, now: float) -> Send:
        self._asked.add(agent)
        self._awaited.pop(agent, None)
        self._awaited[agent] = now + AGAIN_S
        call = OpinionCall(
            run=self.memory.run,
            round=self.ask.round,
            task=self.memory.task,
            model=self.ask.model,
            size=self._size,
            chunk_bytes=self.settings.chunk_bytes,
            until_ms=max(0, round((self._deadline - now) * 1000)),
            mode=self.ask.mode,
            slot=self.ask.slot,
            trained=agent in self._trained,
        )
        return Send(agent, call)

    def _is_over(self, now: float) -> bool:
        if now >= self._deadline:
            return True
        answered = self.reports and self.started and not self._awaited
        return answered and now >= self.settled_at

    def _send_answer(self, now: float) -> list[Effect]:
        """Send up what there is, and again until the receipt; volunteers until the end."""
        wanted = not self._receipted if self.reports else not self.over
        wanted = wanted and now < self._deadline + LAST_S
        self._up_at = now + AGAIN_S if wanted else math.inf
        asked = self._asked
        if not self.reports:
            return [
                Send(COORDINATOR, volunteers_of(self.ask, self.sessions, self._volunteers, asked))
            ]
        reasons = {} if self.started else {"not_asked": self.sessions.present}
        for agent in asked:
            why = self._missing_reason(agent)
            if why:
                reasons[why] = reasons.get(why, 0) + 1
        if self.ask.mode is OpinionMode.MOMENTS:
            found = list(self._moments.values())
            total = sum(found[1:], found[0]).encode() if found else b""
            told = moments_of(self.ask, self.sessions, total, len(found), reasons, asked)
            return [Send(COORDINATOR, told)]
        rows = {a: o for a, o in self._answers.items() if not self._missing_reason(a)}
        return [Send(COORDINATOR, opinions_of(self.ask, self.sessions, rows, reasons, asked))]

    def _evaluated(self, now: float) -> Emit:
        """Return what a person is told: counts, and no opinion."""
        valid = sum(not self._missing_reason(agent) for agent in self._answers)
        data: dict[str, object] = {
            "round": self.round,
            "mode": str(self.ask.mode),
            "asked": len(self._asked),
            "answered": valid if self.reports else len(self._volunteers),
            "seconds": round(now - self.began_at, 4),
        }
        return Emit("evaluated", data)

    def _missing_reason(self, agent: str) -> str:
        """Return why an agent has no row, or an empty string."""
        answer = self._answers.get(agent)
        if answer is None:
            return "gone" if agent in self._gone else "missing"
        if agent in self._invalid:
            return "invalid"
        return "" if answer.samples else "none"
