"""What the coordinator of the site has signed: a device does nothing else for an edge of it.

An edge hands the coordinator's word on with the task, and a signature with each order. Until the
word is here, and is good, an order and a call are held, and nothing that they name is opened. On
links without certificates nothing is asked for.
"""

import math
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from fedagent_node.effects import Effect, Send, Warn
from fedagent_protocol.messages import (
    Digest,
    OpinionCall,
    RunId,
    TaskBody,
    TaskClaim,
    TaskNeed,
    TrainOrder,
)
from fedagent_protocol.signed import Assigning, Calling

from .effects import Key
from .voucher import UNASSIGNED, TaskRefusal, Vouched, Voucher

REMEMBERED = 64
AGAIN_S = 1.0
REFUSED_S = 10.0
"""An edge that had no good word for a task is asked again after this long."""


class _Named(NamedTuple):
    run: RunId
    task: Digest


@dataclass(slots=True)
class _Edge:
    """What one edge named last that nobody has vouched for."""

    named: _Named
    key: Key
    asked_at: float = -math.inf
    refusal: TaskRefusal | None = None
    refused_at: float = -math.inf
    told: bool = False
    held: TrainOrder | OpinionCall | None = None
    held_at: float = 0.0

    @property
    def over_at(self) -> float:
        """When nobody waits any more for an answer to what is held."""
        match self.held:
            case TrainOrder() as order:
                return self.held_at + order.give_up_ms / 1000
            case OpinionCall() as call:
                return self.held_at + call.until_ms / 1000
        return -math.inf

    @property
    def due(self) -> float:
        """When the edge is to be asked again, unless nothing is held by then."""
        again = self.asked_at + AGAIN_S
        return again if self.refusal is None and again < self.over_at else math.inf


class Vouching:
    """Asks edges for the coordinator's word, and knows what it holds for.

    Args:
        me: The agent's id.
        link_of: Gives the link on which an edge is heard.
    """

    def __init__(
        self, me: str, voucher: Voucher, link_of: Callable[[str], str], counters: Counter[str]
    ) -> None:
        self._me = me
        self._voucher = voucher
        self._link_of = link_of
        self._counters = counters
        self._good: OrderedDict[_Named, tuple[bytes, float]] = OrderedDict()
        """By whose key, and until when."""
        self._edges: OrderedDict[str, _Edge] = OrderedDict()
        self._told: OrderedDict[str, None] = OrderedDict()
        """Edges of which it was said that they order or call for what is not signed."""

    def stands(self, key: Key, task: Digest, now: float) -> bool:
        """Whether a task may be computed for the edge and the run of an order or a call."""
        if not self._voucher.asked(self._link_of(key.edge)):
            return True
        return now < self._good.get(_Named(key.run, task), (b"", -math.inf))[1]

    def is_assigned(self, key: Key, task: Digest, signature: bytes) -> bool:
        """Whether the coordinator gave an edge this agent for a round of a task that stands."""
        return self._is_made(key, Assigning(*key.rank, key.edge, self._me, task), signature)

    def is_called(self, key: Key, call: OpinionCall) -> bool:
        """Whether the coordinator made a call of a task that stands."""
        made = Calling(*key.rank, call.task, call.model, call.mode, call.slot)
        return self._is_made(key, made, call.signed)

    def _is_made(self, key: Key, made: Assigning | Calling, signature: bytes) -> bool:
        if not self._voucher.asked(self._link_of(key.edge)):
            return True
        public, _ = self._good[_Named(key.run, made.task)]
        return self._voucher.made(public, made, signature)

    def unmade(self, key: Key, what: str) -> list[Effect]:
        """Count an order or a call that the coordinator did not make; say it once of an edge."""
        self._counters[f"{what}_unsigned"] += 1
        if key.edge in self._told:
            return []
        self._told[key.edge] = None
        while len(self._told) > REMEMBERED:
            self._told.popitem(last=False)
        return [Warn(key.edge, f"{what} of round {key.round} refused: {UNASSIGNED}")]

    def ask(self, key: Key, task: Digest, now: float) -> list[Effect]:
        """Ask an edge for a task with the coordinator's word, not too often."""
        edge = self._edge(key, task)
        if now < edge.asked_at + AGAIN_S or self.refusal(key, task, now) is not None:
            return []
        edge.asked_at, edge.refusal = now, None
        return [Send(key.edge, TaskNeed(run=key.run, round=key.round, digest=task))]

    def hold(self, key: Key, message: TrainOrder | OpinionCall, now: float) -> list[Effect]:
        """Keep an order or a call until it is known whether it may be followed."""
        edge = self._edge(key, message.task)
        edge.held, edge.held_at = message, now
        return self.ask(key, message.task, now)

    def release(self, edge: str, body: TaskBody, now: float) -> TrainOrder | OpinionCall | None:
        """Return what was held of an edge until this task came, once, if it is waited for."""
        asked = self._edges.get(edge)
        if asked is None or asked.named != (body.run, body.digest):
            return None
        if asked.refusal is None:
            del self._edges[edge]
        held = asked.held if now < asked.over_at else None
        asked.held = None
        return held

    def is_asked(self, key: Key, task: Digest) -> bool:
        """Whether an edge was asked for the word on a task, and has not answered yet."""
        asked = self._edges.get(key.edge)
        return asked is not None and asked.named == (key.run, task) and asked.refusal is None

    def refusal(self, key: Key, task: Digest, now: float) -> TaskRefusal | None:
        """Return why an edge's task was refused, as long as it is not asked again."""
        asked = self._edges.get(key.edge)
        if asked is None or asked.named != (key.run, task):
            return None
        return asked.refusal if now < asked.refused_at + REFUSED_S else None

    def take(self, edge: str, message: TaskBody, now: float) -> list[Effect]:
        """Judge the word that came with a task that an edge was asked for."""
        asked = self._edges[edge]
        judged = self._judged(asked.named, message.claim)
        if isinstance(judged, Vouched):
            self._good[asked.named] = judged.public, now + judged.for_s
            while len(self._good) > REMEMBERED:
                self._good.popitem(last=False)
            return []
        asked.refusal, asked.refused_at = judged, now
        self._counters[f"task_refused_{judged}"] += 1
        if asked.told:
            return []
        asked.told = True
        task, run = asked.named.task[:12], asked.named.run[:8]
        return [Warn(edge, f"task {task} of run {run} refused: {judged}: {judged.hint}")]

    def _judged(self, named: _Named, claim: TaskClaim | None) -> Vouched | TaskRefusal:
        if claim is None:
            return TaskRefusal.UNSIGNED
        return self._voucher.judge(named.run, named.task, claim)

    def _edge(self, key: Key, task: Digest) -> _Edge:
        named = _Named(key.run, task)
        asked = self._edges.get(key.edge)
        if asked is None or asked.named != named:
            asked = self._edges[key.edge] = _Edge(named, key)
            while len(self._edges) > REMEMBERED:
                self._edges.popitem(last=False)
        asked.key = key
        return asked

    # ------------------------------------------------------------------- time

    def tick(self, now: float) -> list[Effect]:
        """Ask again for what did not come, while something is held for it."""
        effects: list[Effect] = []
        for edge in list(self._edges.values()):
            if now >= edge.due:
                effects += self.ask(edge.key, edge.named.task, now)
        return effects

    def dues(self) -> list[float]:
        """Return when `tick` is wanted."""
        return [edge.due for edge in self._edges.values() if edge.due < math.inf]
