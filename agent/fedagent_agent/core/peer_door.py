"""The door to `Peering`, which costs an agent nothing until neighbours are to be talked with."""

import math
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING

from fedagent_protocol.messages import (
    Neighbours,
    OpinionCall,
    OpinionMode,
    PeerDeliver,
    TrainOrder,
)
from fedagent_task.spec import PeersSpec

from .effects import Effect, Event

if TYPE_CHECKING:
    from .peering import Peering

Make = Callable[[Counter[str]], "Peering | str"]
"""Makes the real thing, or says why it cannot be."""
_TASKS = 8


def _nobody(_: Counter[str]) -> str:
    return "this agent has no neighbours"


class PeerDoor:
    """What the core asks of `Peering`, made when it is first needed.

    Args:
        make: Makes it; keys and the disk are outside the core.
        counters: Of the agent.
    """

    def __init__(self, counters: Counter[str], make: Make = _nobody) -> None:
        self._make: Make | None = make
        self._counters = counters
        self._inside: Peering | None = None
        self._tasks: OrderedDict[str, PeersSpec] = OrderedDict()
        self._available = True

    def task(self, digest: str, rules: PeersSpec) -> None:
        """Take in what a task says of peers."""
        self._tasks[digest] = rules
        while len(self._tasks) > _TASKS:
            self._tasks.popitem(last=False)
        if self._inside is not None:
            self._inside.task(digest, rules)

    def allow(self, *, work: bool) -> None:
        """Take in whether the owner's rules allow work."""
        self._available = work
        if self._inside is not None:
            self._inside.available = work

    def called(self, edge: str, call: OpinionCall, now: float) -> list[Effect]:
        """Take in that an edge has called; from here its time runs."""
        if call.mode is not OpinionMode.PEERS:
            return []
        effects = self._enter()
        if self._inside is None:
            return effects
        return effects + self._inside.called(call, edge, now)

    def begin(
        self, call: OpinionCall, edge: str, opinion: float | None, now: float
    ) -> list[Effect]:
        """Begin the slot of a call with this agent's opinion; None: it has none."""
        effects = self._enter()
        if self._inside is None:
            self._counters["peers_unsupported"] += 1
            return effects
        return effects + self._inside.begin(call, edge, opinion, now)

    def message(self, edge: str, message: Neighbours | PeerDeliver, now: float) -> list[Effect]:
        """Take in whom an edge names, or what it carries.

        Raises:
            ProtocolError: It carries no envelope.
        """
        effects = self._enter()
        if self._inside is None:
            return effects
        if isinstance(message, Neighbours):
            return effects + self._inside.neighbours(edge, message, now)
        return effects + self._inside.deliver(edge, message, now)

    def ordered(self, order: TrainOrder) -> None:
        """Take in an order: it may show that the word was heard."""
        if self._inside is not None:
            self._inside.ordered(order)

    def tick(self, now: float) -> list[Effect]:
        """Let time pass."""
        return self._inside.tick(now) if self._inside is not None else []

    @property
    def due(self) -> float:
        """When `tick` is wanted although nothing came; inf: never."""
        return self._inside.due if self._inside is not None else math.inf

    def leave(self, now: float) -> list[Effect]:
        """End what runs; what is known of it is kept."""
        return self._inside.leave(now) if self._inside is not None else []

    def _enter(self) -> list[Effect]:
        """Make the real thing at the first need; a second attempt would end as the first."""
        make, self._make = self._make, None
        if make is None:
            return []
        made = make(self._counters)
        if isinstance(made, str):
            return [Event("peers_off", {"reason": made})]
        self._inside = made
        made.available = self._available
        for digest, rules in self._tasks.items():
            made.task(digest, rules)
        return []
