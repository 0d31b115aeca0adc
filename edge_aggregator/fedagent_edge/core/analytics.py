"""Federated and democratized analytics at the edge: the call at work, and the relay.

docs/protocol.md tells the order of things. In mode ``peers`` no opinion comes here; one
that a device sends nevertheless is dropped unread.
"""

from collections import Counter
from dataclasses import dataclass, field

import msgspec
from msgspec import Struct

from fedagent_node.effects import Effect
from fedagent_protocol.messages import (
    Need,
    Opinion,
    OpinionClose,
    OpinionMode,
    OpinionOpen,
    OpinionsReceipt,
    PeerSend,
    Volunteer,
)
from fedagent_task.spec import LimitsSpec, OpinionsSpec, PeersSpec

from .evaluation import EdgeEvaluation
from .relay import Relay
from .sessions import AgentSessions
from .settings import EdgeSettings, Memory

RETURN_S = 2.0
"""How long agents that were here before a restart of the edge may take to be back."""


class _Model(Struct, frozen=True):
    features: int = 0


class _Task(Struct, frozen=True):
    """What the edge reads of a task; it carries the rest as bytes."""

    model: _Model = _Model()
    limits: LimitsSpec = LimitsSpec()
    opinions: OpinionsSpec = OpinionsSpec()
    peers: PeersSpec = PeersSpec()


_tasks = msgspec.msgpack.Decoder(_Task)


@dataclass(slots=True)
class Analytics:
    """Calls for opinions, one at a time, and what agents tell each other meanwhile.

    Attributes:
        call: The call at work, or the last one of this run.
    """

    settings: EdgeSettings
    sessions: AgentSessions
    counters: Counter[str]
    memory: Memory
    call: EdgeEvaluation | None = None
    relay: Relay = field(init=False)
    _returned_at: float = 0.0
    _peers: bool = False
    _task: _Task = field(default_factory=_Task)

    def __post_init__(self) -> None:
        """Begin with the run that the edge remembers."""
        self.relay = Relay(self.sessions, self.counters)
        self.adopt()

    def adopt(self) -> None:
        """Begin with another run or task."""
        self.call = None
        body = self.memory.body
        try:
            task = _tasks.decode(body) if body else _Task()
        except msgspec.DecodeError:
            # Made for a newer edge; its agents may understand it.
            self.counters["task_unread"] += 1
            task = _Task()
        self._task = task
        self._peers = task.opinions.mode == "peers"
        self.relay.begin(self.memory.run, task.peers, open_=self._peers)

    def welcomed(self) -> None:
        """Take in that the coordinator is there, maybe again after it had ended the run."""
        self.relay.open = self.relay.open or self._peers

    def lan_up(self, now: float) -> None:
        """Take in that agents can come from now on."""
        self._returned_at = now + RETURN_S

    # -------------------------------------------------------- from coordinator

    def open(self, ask: OpinionOpen, now: float) -> list[Effect]:
        """Begin a call, or say again what has become of it."""
        call = self.call
        past = ask.round < self.memory.last_round or (call is not None and ask.round < call.round)
        if past or (call is not None and call.ended and ask.round == call.round):
            self.counters["opinion_open_old"] += 1
            return []
        if call is not None and call.is_same(ask):
            return call.again(ask, now)
        effects = call.end(now) if call is not None else []
        self.call = EdgeEvaluation(
            ask,
            memory=self.memory,
            sessions=self.sessions,
            settings=self.settings,
            counters=self.counters,
            began_at=now,
            settled_at=self._returned_at,
            features=self._task.model.features,
            max_samples=self._task.limits.max_samples,
        )
        if ask.mode is OpinionMode.PEERS:
            self.relay.open = True
            self.relay.refresh()
            effects += [
                e for agent in self.sessions.present_ids() for e in self.relay.neighbours_of(agent)
            ]
        return effects + self.call.tick(now)

    def close(self, word: OpinionClose, now: float) -> list[Effect]:
        """End the call of this round."""
        call = self.call
        return call.end(now) if call is not None and call.round == word.round else []

    def receipt(self, word: OpinionsReceipt) -> None:
        """Take in that the opinions of this round are booked."""
        if self.call is not None and self.call.round == word.round:
            self.call.receipt()

    def ordered(self, number: int, now: float) -> list[Effect]:
        """End the call of a round before the one that begins."""
        call = self.call
        return call.end(now) if call is not None and call.round < number else []

    def end_run(self, now: float) -> list[Effect]:
        """End the call and the relay; the run is over."""
        self.relay.begin(self.memory.run, self.relay.spec, open_=False)
        return self.call.end(now) if self.call is not None else []

    # ------------------------------------------------------------- from agents

    def handle(self, agent: str, word: Opinion | Volunteer | PeerSend, now: float) -> list[Effect]:
        """Take in what an agent thinks, or has to say to another."""
        if isinstance(word, PeerSend):
            return self.relay.send(agent, word, now)
        call = self.call
        name = "opinion" if isinstance(word, Opinion) else "volunteer"
        if call is None or (word.run, word.round) != (self.memory.run, call.round):
            self.counters[f"{name}_late"] += 1
            return []
        if isinstance(word, Opinion):
            return call.opinion(agent, word, now)
        return call.volunteer(agent, now)

    def serves(self, agent: str, need: Need) -> bool:
        """Whether an agent that was called may have this model."""
        return self.call is not None and self.call.serves(agent, need.digest)

    def need(self, agent: str, need: Need, now: float, *, link_idle: bool) -> list[Effect]:
        """Send chunks to one for whom `serves` is true."""
        assert self.call is not None
        return self.call.need(agent, need, now, link_idle=link_idle)

    def here(self, agent: str, now: float) -> list[Effect]:
        """Take in that an agent came, or came back."""
        self.relay.changed(now)
        told: list[Effect] = [*self.relay.neighbours_of(agent)] if self.relay.open else []
        call = self.call
        if call is None or (not told and not call.reports):
            # Alone it would find itself the best: it is called with its neighbours, soon.
            return told
        return [*told, *call.here(agent, now)]

    def left(self, agent: str, now: float) -> list[Effect]:
        """Take in that an agent left."""
        self.relay.changed(now)
        return self.call.left(agent, now) if self.call is not None else []

    # ------------------------------------------------------------------- time

    def look(self, now: float) -> list[Effect]:
        """Take in that something happened."""
        return self.call.look(now) if self.call is not None else []

    def tick(self, now: float) -> list[Effect]:
        """Do what is due."""
        effects: list[Effect] = []
        call = self.call
        for told in self.relay.tick(now):
            effects.append(told)
            if call is not None and not call.reports and not call.was_called(told.to):
                effects += call.here(told.to, now)
        return effects + (call.tick(now) if call is not None else [])

    def next_due(self, now: float) -> float:
        """Return when `tick` is wanted."""
        dues = [self.relay.next_due()]
        if self.call is not None:
            dues.append(self.call.next_due(now))
        return min((due for due in dues if due is not None), default=float("inf"))
