"""Hand the base model to the ordered agents: each chunk once, then what somebody misses."""

from dataclasses import dataclass, field

from fedagent_protocol.transfer import Broadcast, Layout, RangeList, Sender, to_ranges

from .effects import Effect, Publish, SendChunk

PACE_S = 0.1


@dataclass(slots=True)
class Distribution:
    """One model on its way to the agents of one round.

    Attributes:
        digest: The model.
        start_at: When the broadcast begins although not everybody answered.
        waiting: Ordered agents that have not answered yet.
    """

    digest: str
    layout: Layout
    start_at: float
    waiting: set[str]
    started: bool = False
    _broadcast: Broadcast = field(init=False)
    _alone: dict[str, Sender] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Begin at chunk 0."""
        self._broadcast = Broadcast(self.layout)

    def need(self, agent: str, ranges: RangeList, now: float, *, link_idle: bool) -> list[Effect]:
        """Take an agent's credit."""
        self.waiting.discard(agent)
        behind = self._broadcast.authorise(agent, ranges, now)
        if behind:
            sender = self._alone.setdefault(agent, Sender(self.layout))
            sender.authorise(to_ranges(sorted(behind)), link_idle=link_idle)
        return self.pump(now)

    def answered(self, agent: str, now: float) -> list[Effect]:
        """Note that an agent needs nothing (any more)."""
        self.waiting.discard(agent)
        self._broadcast.leave(agent)
        self._alone.pop(agent, None)
        return self.pump(now)

    def pump(self, now: float) -> list[Effect]:
        """Send what may be sent now."""
        effects: list[Effect] = []
        if not self.started:
            if self.waiting and now < self.start_at:
                return effects
            self.started = True
        while (index := self._broadcast.next(now)) is not None:
            effects.append(Publish(self.digest, index))
        for agent, sender in self._alone.items():
            while (index := sender.next()) is not None:
                effects.append(SendChunk(self.digest, index, agent))
        return effects

    def next_due(self, now: float) -> float | None:
        """Return when `pump` is wanted."""
        if not self.started:
            return self.start_at
        return now + PACE_S if self._broadcast.position < self.layout.count else None
