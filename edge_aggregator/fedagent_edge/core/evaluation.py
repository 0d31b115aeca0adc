"""The evaluation of models by clients, and the neighbours of each.

docs/protocol.md has the order of messages. Opinions are in memory alone: after a restart
the coordinator's repeated `OpinionOpen` asks anew.
"""

import itertools
import math
from dataclasses import dataclass, field

import msgspec
from msgspec import Struct

from fedagent_node.effects import Effect, Emit, Received, Send, Warn
from fedagent_protocol.messages import (
    MAX_ROUNDS_AHEAD,
    Need,
    Opinion,
    OpinionCall,
    OpinionClose,
    OpinionMode,
    OpinionOpen,
    OpinionsReceipt,
    PeerSend,
    Volunteer,
    kind,
)
from fedagent_task.recipe.spec import LimitsSpec, PeersSpec

from .answers import Answers, Scores, answers_to, is_theirs
from .effects import COORDINATOR
from .relay import Relay
from .rounds import AHEAD
from .state import EdgeState
from .transfers import Distribution

RETURN_S = 2.0
"""How long agents that were here before a restart of the edge may take to be back."""
AGAIN_S = 1.0
"""How long a call waits for an answer, and an answer for its receipt."""
LAST_S = 30.0
"""After this nothing is repeated unasked: the coordinator repeats `OpinionOpen` if it wants it."""
COALESCE_S = 0.02
"""How long a volunteer waits for others, so that they go up together."""


@dataclass(slots=True)
class Evaluation:
    """One model under evaluation: every agent is called, and answers are collected.

    Attributes:
        ask: The coordinator's newest message about it.
        settled_at: Until then agents may come that were here before the edge's start, and
            it is not over although all have answered.
        over: Its time is over or all have answered.
        ended: Nothing of it is wanted any more.
        _awaited: When each that has not answered is called again; the first is the next.
    """

    ask: OpinionOpen
    answers: Answers
    state: EdgeState
    began_at: float
    settled_at: float
    started: bool = False
    over: bool = False
    ended: bool = False
    asked: set[str] = field(default_factory=set)
    _deadline: float = field(init=False)
    _distribution: Distribution | None = None
    _size: int = 0
    _awaited: dict[str, float] = field(default_factory=dict)
    _gone: set[str] = field(default_factory=set)
    _trained: frozenset[str] = frozenset()
    _up_at: float = math.inf
    _receipted: bool = False

    def __post_init__(self) -> None:
        self._deadline = self.began_at + self.ask.until_ms / 1000
        self._trained = frozenset(self.ask.trained)

    def is_same(self, ask: OpinionOpen) -> bool:
        """Whether this is the evaluation that the coordinator asks for."""
        mine = (self.ask.round, self.ask.model, self.ask.mode)
        if ask.mode is OpinionMode.MOMENTS and ask.slot != self.ask.slot:
            return False  # none had samples: they are asked anew
        return mine == (ask.round, ask.model, ask.mode)

    def again(self, ask: OpinionOpen, now: float) -> list[Effect]:
        """Answer a coordinator that repeats itself: it has had no answer."""
        self.ask = ask
        # The earliest estimate is that of the message that was delayed least.
        self._deadline = min(self._deadline, now + ask.until_ms / 1000)
        self._receipted = False
        ready = self.over if self.answers.final else self.started
        return self._send_answers(now) if ready else []

    def receipt(self) -> None:
        """Stop repeating: the opinions are booked."""
        self._receipted, self._up_at = True, math.inf

    def end(self, now: float) -> list[Effect]:
        """End it: nothing is wanted any more."""
        events: list[Effect] = [] if self.over else [self._event(now)]
        self.over = self.ended = True
        self._distribution, self._up_at = None, math.inf
        return events

    # ------------------------------------------------------------- from agents

    def receive(self, event: Received, now: float) -> list[Effect]:
        """Take an answer, or send the model to an agent that `serves` is true for."""
        agent, message = event.sender, event.message
        if isinstance(message, Need):
            return self._distribution.need(event, message, now) if self._distribution else []
        assert isinstance(message, Opinion | Volunteer)
        refused = self.answers.refuse(agent, message, asked=agent in self.asked)
        if refused is None and self.over:
            refused = "opinion_late" if isinstance(message, Opinion) else "volunteer_late"
        if refused is None and not is_theirs(self.state, self.ask, agent, message):
            refused = f"{kind(message)}_unsigned"
        if refused is not None:
            if refused:
                self.state.counters[refused] += 1
            return []
        problem = self.answers.take(agent, message, self.state.counters)
        self._awaited.pop(agent, None)
        if not self.answers.final:
            self._up_at = min(self._up_at, now + COALESCE_S)
            return []
        effects = self._distribution.answered(agent, now) if self._distribution else []
        return [*effects, Warn(agent, problem)] if problem else effects

    def serves(self, agent: str, digest: str) -> bool:
        """Whether an agent may have this model from here now."""
        started = self._distribution is not None and agent in self.asked
        return started and digest == self.ask.model and self._is_held

    def here(self, agent: str, now: float) -> list[Effect]:
        """Call an agent that came, or came back, unless it has answered."""
        self._gone.discard(agent)
        if not self.started or self.over or agent in self.answers:
            return []
        return [self._call(agent, now)]

    def left(self, agent: str, now: float) -> list[Effect]:
        """Wait no more for an agent that left."""
        if agent not in self.asked:
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
        return [*effects, *self._send_answers(now), self._event(now)]

    def tick(self, now: float) -> list[Effect]:
        """Do what is due, and repeat what was not answered."""
        effects = self.look(now)
        if self._distribution is not None and self._is_held:
            effects += self._distribution.pump(now)
        if not self.over:
            due = itertools.takewhile(lambda one: one[1] <= now, self._awaited.items())
            effects += [self._call(agent, now) for agent, _ in list(due)]
        if now >= self._up_at:
            effects += self._send_answers(now)
        return effects

    def next_due(self, now: float) -> float:
        """Return when `tick` is wanted."""
        if self.over:
            return self._up_at
        dues = [self._deadline, self._up_at]
        if self._awaited:
            dues.append(next(iter(self._awaited.values())))
        elif self.started and self.answers.final:
            dues.append(self.settled_at)
        if self._distribution is not None and self._is_held:
            dues.append(self._distribution.next_due(now))
        return min(dues)

    @property
    def _is_held(self) -> bool:
        """Whether the model is still the edge's: another may take its place on the disk."""
        return self.state.memory.model == self.ask.model

    def _begin(self, now: float) -> list[Effect]:
        state = self.state
        self.started, self._size = True, state.memory.model_bytes
        agents = state.sessions.present_ids()
        self._distribution = Distribution(
            state.memory.run,
            self.ask.round,
            self.ask.model,
            state.layout,
            now + state.patience_s,
            set(agents),
        )
        if not self.answers.final:
            self._up_at = now
        return [self._call(agent, now) for agent in agents]

    def _call(self, agent: str, now: float) -> Send:
        self.asked.add(agent)
        self._awaited.pop(agent, None)
        self._awaited[agent] = now + AGAIN_S
        call = OpinionCall(
            run=self.state.memory.run,
            round=self.ask.round,
            task=self.state.memory.task,
            model=self.ask.model,
            size=self._size,
            chunk_bytes=self.state.config.chunk_bytes,
            until_ms=max(0, round((self._deadline - now) * 1000)),
            mode=self.ask.mode,
            slot=self.ask.slot,
            trained=agent in self._trained,
            signed=self.ask.signed,
        )
        return Send(agent, call)

    def _is_over(self, now: float) -> bool:
        if now >= self._deadline:
            return True
        answered = self.answers.final and self.started and not self._awaited
        return answered and now >= self.settled_at

    def _send_answers(self, now: float) -> list[Effect]:
        """Send up what there is, and again: final answers until the receipt, others to the end."""
        wanted = not self._receipted if self.answers.final else not self.over
        wanted = wanted and now < self._deadline + LAST_S
        self._up_at = now + AGAIN_S if wanted else math.inf
        sessions = self.state.sessions
        reasons = {} if self.started else {"not_asked": sessions.present}
        for agent in self.asked:
            if agent in self.answers:
                reason = self.answers.unused(agent)
            else:
                reason = "gone" if agent in self._gone else "missing"
            if reason:
                reasons[reason] = reasons.get(reason, 0) + 1
        message = self.answers.message(self.ask, sessions, self.asked, reasons)
        return [Send(COORDINATOR, message)]

    def _event(self, now: float) -> Emit:
        data: dict[str, object] = {
            "round": self.ask.round,
            "mode": str(self.ask.mode),
            "asked": len(self.asked),
            "answered": self.answers.used,
            "seconds": round(now - self.began_at, 4),
        }
        return Emit("evaluated", data)


class _Model(Struct, frozen=True):
    features: int = 0


class _Task(Struct, frozen=True):
    """What the edge reads of a task; it carries the rest as bytes."""

    model: _Model = _Model()
    limits: LimitsSpec = LimitsSpec()
    peers: PeersSpec = PeersSpec()


_tasks = msgspec.msgpack.Decoder(_Task)


@dataclass(slots=True)
class Evaluations:
    """The evaluations of an edge, one after the other, and the relay between its agents."""

    state: EdgeState
    current: Evaluation = field(init=False)
    relay: Relay = field(init=False)
    _returned_at: float = 0.0
    _round: int = 0
    _task: _Task = field(default_factory=_Task)

    def __post_init__(self) -> None:
        self.relay = Relay(self.state.sessions, self.state.counters)
        self.adopt()

    def adopt(self) -> None:
        """Begin with another run or task."""
        nothing = OpinionOpen(round=-1, model="", until_ms=0)
        self.current = Evaluation(nothing, Scores(""), self.state, 0.0, 0.0, over=True, ended=True)
        body = self.state.memory.body
        try:
            self._task = _tasks.decode(body) if body else _Task()
        except msgspec.DecodeError:
            # Made for a newer edge; its agents may understand it.
            self.state.counters["task_unread"] += 1
            self._task = _Task()
        self.relay.begin(self.state.memory.run, self._task.peers)

    def welcomed(self, round_: int) -> None:
        """Go on: the coordinator is at a round, maybe again after it had ended the run.

        A call of a later round was damaged.
        """
        self._round = round_
        if 0 < round_ < self.current.ask.round:
            self.state.counters["opinion_open_went_back"] += 1
            self.adopt()

    def lan_up(self, now: float) -> None:
        """Give agents time to come: they can from now on."""
        self._returned_at = now + RETURN_S

    # -------------------------------------------------------- from coordinator

    def open(self, ask: OpinionOpen, now: float) -> list[Effect]:
        """Begin an evaluation, or answer again what became of it."""
        last = self.current
        newest = max(self.state.memory.last_round, last.ask.round)
        if ask.round > max(newest, self._round) + MAX_ROUNDS_AHEAD:
            self.state.counters["opinion_open_too_far"] += 1
            return [Warn("", f"the call for opinions of round {ask.round} is refused: {AHEAD}")]
        if ask.round < newest or (last.ended and ask.round == last.ask.round):
            self.state.counters["opinion_open_old"] += 1
            return []
        if last.is_same(ask):
            return last.again(ask, now)
        effects = self._end(now)
        task = self._task
        answers = answers_to(ask, task.model.features, task.limits.max_samples)
        self.current = Evaluation(ask, answers, self.state, now, self._returned_at)
        if not answers.final:
            self.relay.call(now + ask.until_ms / 1000)
            for agent in self.state.sessions.present_ids():
                effects += self.relay.neighbours_of(agent)
        return effects + self.current.tick(now)

    def close(self, close: OpinionClose, now: float) -> list[Effect]:
        """End the evaluation of this round."""
        return self._end(now) if self.current.ask.round == close.round else []

    def _end(self, now: float) -> list[Effect]:
        self.relay.call_ended(now)
        return self.current.end(now)

    def receipt(self, receipt: OpinionsReceipt) -> None:
        """Take in that the opinions of this round are booked."""
        if self.current.ask.round == receipt.round:
            self.current.receipt()

    def end_run(self, now: float) -> list[Effect]:
        """End the evaluation and the relay; the run is over."""
        self.relay.begin(self.state.memory.run, self.relay.spec)
        return self.current.end(now)

    # ------------------------------------------------------------- from agents

    def receive(self, event: Received, now: float) -> list[Effect]:
        """Take in an answer, a need that `serves` is true for, or an envelope for another agent."""
        message, current = event.message, self.current
        if isinstance(message, PeerSend):
            return self.relay.send(event.sender, message, now)
        asked = (self.state.memory.run, current.ask.round)
        if isinstance(message, Opinion | Volunteer) and (message.run, message.round) != asked:
            name = "opinion" if isinstance(message, Opinion) else "volunteer"
            self.state.counters[f"{name}_late"] += 1
            return []
        return current.receive(event, now)

    def here(self, agent: str, now: float) -> list[Effect]:
        """Call an agent that came, or came back, and send it its neighbours."""
        self.relay.changed(now)
        neighbours = self.relay.neighbours_of(agent) if self.relay.is_open(now) else []
        current = self.current
        if not neighbours and not current.answers.final:
            # Alone it would find itself the best: it is called with its neighbours, soon.
            return [*neighbours]
        return [*neighbours, *current.here(agent, now)]

    def left(self, agent: str, now: float) -> list[Effect]:
        """Wait no more for an agent that left."""
        self.relay.changed(now)
        return self.current.left(agent, now)

    # ------------------------------------------------------------------- time

    def look(self, now: float) -> list[Effect]:
        """Begin or end what may begin or end now; a round that was ordered ends the one before."""
        current = self.current
        if current.ask.round < self.state.memory.last_round and not current.ended:
            return self._end(now)
        return current.look(now)

    def tick(self, now: float) -> list[Effect]:
        """Do what is due."""
        effects: list[Effect] = []
        current = self.current
        for neighbours in self.relay.tick(now):
            agent = neighbours.to
            effects.append(neighbours)
            if not current.answers.final and agent not in current.asked:
                effects += current.here(agent, now)
        return effects + current.tick(now)

    def next_due(self, now: float) -> float:
        """Return when `tick` is wanted."""
        return min(self.current.next_due(now), self.relay.next_due())
