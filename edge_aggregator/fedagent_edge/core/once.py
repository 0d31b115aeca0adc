"""What a task's devices get once, from the coordinator to the agents: fetched, kept, handed on."""

from dataclasses import dataclass, field

from fedagent_node.effects import ContentLost, Effect, Emit, ModelFinished, Received, Warn
from fedagent_protocol.messages import Chunk, GlobalModel, Need
from fedagent_protocol.transfer import Layout

from .state import EdgeState
from .transfers import Distribution, ModelExchange

AGAIN_S = 5.0
"""How long after one that could not be used it is asked for again."""


@dataclass(slots=True)
class OnceFile:
    """At most one such file; agents that ask before it is here wait for it."""

    state: EdgeState
    held: str  # digest of the one that is whole on disk
    _incoming: ModelExchange = field(init=False)
    _distribution: Distribution | None = None
    _early: dict[str, tuple[Received, Need]] = field(default_factory=dict)
    _again_at: float = float("inf")

    def __post_init__(self) -> None:
        self._incoming = ModelExchange(self.state)

    def welcomed(self, now: float) -> list[Effect]:
        """Go and get what the task names, or go on with that on a new link."""
        memory = self.state.memory
        if memory.once != self.held:
            self.held = ""  # another run's is removed with the next save
        if not memory.once or self.held:
            self._incoming.forget()
            return []
        self._again_at = float("inf")
        if self._incoming.expects(memory.once):
            self._incoming.renew()
        offer = GlobalModel(run=memory.run, digest=memory.once, size=memory.once_bytes)
        return self._incoming.offered(offer, now)

    def expects(self, digest: str) -> bool:
        """Whether this file is on its way in."""
        return self._incoming.expects(digest)

    def chunk(self, chunk: Chunk, now: float) -> list[Effect]:
        """Take a piece of it; `ChunkError` if it does not fit."""
        return self._incoming.chunk(chunk, now)

    def finished(self, result: ModelFinished, now: float) -> list[Effect]:
        """Hand it on, now that it is whole; get it again if it is not what it is called."""
        self._incoming.forget()
        if result.refused:
            self.state.counters["once_unusable"] += 1
            self._again_at = now + AGAIN_S
            return [Warn("", f"the tensors that devices get once cannot be used: {result.refused}")]
        self.held = result.digest
        fields: dict[str, object] = {"digest": result.digest, "bytes": result.size}
        effects: list[Effect] = [Emit("once_held", fields)]
        early, self._early = self._early, {}
        for event, need in early.values():
            effects += self.need(event, need, now)
        return effects

    def lost(self, lost: ContentLost, now: float) -> list[Effect]:
        """Get it again: the file is gone, or damaged."""
        if not self.held:
            return []
        self.held, self._distribution = "", None
        self.state.counters["once_lost"] += 1
        warning = Warn(
            "",
            "the edge lost the tensors that devices get once and fetches them again: "
            f"{lost.detail}",
        )
        return [warning, *self.welcomed(now)]

    def serves(self, digest: str) -> bool:
        """Whether agents of this run get this file."""
        return bool(digest) and digest == self.state.memory.once

    def need(self, event: Received, need: Need, now: float) -> list[Effect]:
        """Send an agent what it authorises, as soon as it is here."""
        memory = self.state.memory
        if self.held != memory.once:
            self._early[event.sender] = (event, need)
            return []
        serving = self._distribution
        if serving is None or (serving.run, serving.digest) != (memory.run, memory.once):
            layout = Layout(memory.once_bytes, self.state.config.chunk_bytes)
            present = set(self.state.sessions.present_ids())
            serving = self._distribution = Distribution(
                memory.run, 0, memory.once, layout, now + self.state.patience_s, present
            )
        return serving.need(event, need, now)

    def left(self, agent: str, now: float) -> list[Effect]:
        """Wait no more for an agent that left."""
        self._early.pop(agent, None)
        serving = self._serving
        return serving.answered(agent, now) if serving is not None else []

    @property
    def _serving(self) -> Distribution | None:
        """What is under way of a file that is on the disk yet."""
        serving = self._distribution
        return serving if serving is not None and serving.digest == self.held else None

    def tick(self, now: float) -> list[Effect]:
        """Do what is due."""
        effects = self._incoming.tick(now)
        if now >= self._again_at:
            effects += self.welcomed(now)
        if (serving := self._serving) is not None:
            effects += serving.pump(now)
        return effects

    def next_due(self, now: float) -> float:
        """Return when `tick` is wanted."""
        due = min(self._incoming.next_due(), self._again_at)
        serving = self._serving
        return due if serving is None else min(due, serving.next_due(now))
