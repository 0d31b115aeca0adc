"""Hand the base model to the ordered agents: each chunk once, then what somebody misses."""

from dataclasses import dataclass, field

from fedagent_node.effects import EVERYBODY, Effect, Send
from fedagent_protocol.messages import Chunk
from fedagent_protocol.transfer import Broadcast, Layout, RangeList, Sender, to_ranges

PACE_S = 0.1
STALL_S = 0.5
STALL_PER_AGENT_S = 0.02
"""How long a silent receiver holds the others up: longer where many share a broker."""
ALONE_AT_ONCE = 4
"""How many agents get chunks of their own in `ALONE_S`: bounds the broker's queues."""
ALONE_S = 0.5


@dataclass(slots=True)
class Distribution:
    """One model on its way to the agents of one round.

    Attributes:
        start_at: When the broadcast begins although not everybody answered.
        waiting: Ordered agents that have not answered yet.
    """

    run: str
    round: int
    digest: str
    layout: Layout
    start_at: float
    waiting: set[str]
    started: bool = False
    _broadcast: Broadcast = field(init=False)
    _wanted: dict[str, int] = field(default_factory=dict)
    _alone: dict[str, Sender] = field(default_factory=dict)
    _served_at: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Begin at chunk 0."""
        stall_s = max(STALL_S, STALL_PER_AGENT_S * len(self.waiting))
        self._broadcast = Broadcast(self.layout, stall_s=stall_s)

    def need(self, agent: str, ranges: RangeList, now: float, *, link_idle: bool) -> list[Effect]:
        """Take an agent's credit."""
        self.waiting.discard(agent)
        behind = self._broadcast.authorise(agent, ranges, now)
        self._wanted[agent] = max((stop for _, stop in ranges), default=0)
        if behind:
            sender = self._alone.setdefault(agent, Sender(self.layout))
            sender.authorise(to_ranges(sorted(behind)), link_idle=link_idle)
        return self.pump(now)

    def answered(self, agent: str, now: float) -> list[Effect]:
        """Note that an agent needs nothing (any more)."""
        self.waiting.discard(agent)
        self._broadcast.leave(agent)
        for table in (self._alone, self._wanted, self._served_at):
            table.pop(agent, None)
        return self.pump(now)

    def pump(self, now: float) -> list[Effect]:
        """Send what may be sent now."""
        effects: list[Effect] = []
        if not self.started:
            if self.waiting and now < self.start_at:
                return effects
            self.started = True
        while (index := self._broadcast.next(now)) is not None:
            effects.append(self._chunk(EVERYBODY, index))
        return effects + self._serve_alone(now)

    def _serve_alone(self, now: float) -> list[Effect]:
        """Send misses to few agents at a time, in turn."""
        effects: list[Effect] = []
        busy = {a for a, at in self._served_at.items() if now - at < ALONE_S}
        for agent, sender in self._alone.items():
            if not sender.pending or (agent not in busy and len(busy) >= ALONE_AT_ONCE):
                continue
            busy.add(agent)
            self._served_at[agent] = now
            while (index := sender.next()) is not None:
                effects.append(self._chunk(agent, index))
        return effects

    def _chunk(self, agent: str, index: int) -> Send:
        chunk = Chunk(run=self.run, round=self.round, digest=self.digest, index=index, data=b"")
        return Send(agent, chunk, stored=True)

    def next_due(self, now: float) -> float | None:
        """Return when `pump` is wanted although nothing came."""
        if not self.started:
            return self.start_at
        position = self._broadcast.position
        held_up = any(stop > position for stop in self._wanted.values())
        queued = any(sender.pending for sender in self._alone.values())
        return now + PACE_S if held_up or queued else None
