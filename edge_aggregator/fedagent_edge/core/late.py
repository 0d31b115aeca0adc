"""Work that a round's end interrupted, with which its agent may go on in later rounds (ADR 33)."""

from dataclasses import dataclass, field

from fedagent_node.effects import Effect
from fedagent_protocol.messages import Chunk, UpdateOffer
from fedagent_protocol.transfer import Layout

from .effects import DropSpool, KeepWork, Key, WriteSpool

KEPT_BYTES = 256 << 20
"""Bound on the files of unfinished updates; the oldest go first."""


@dataclass(slots=True)
class LateWork:
    """What one agent has begun, from the model `base`, in `round`.

    Attributes:
        layout: How the base is cut.
        key: Names the file with the chunks that are here; None without any.
    """

    agent: str
    run: str
    round: int
    base: str
    layout: Layout
    key: Key | None = None
    offer: UpdateOffer | None = None
    have: set[int] = field(default_factory=set)

    def is_of(self, offer: UpdateOffer) -> bool:
        """Whether an update is the one of which chunks are here."""
        return self.offer is not None and same_content(self.offer, offer)


class LateWorks:
    """At most one for each agent, for as many rounds as the orders allow."""

    def __init__(self, *, most_bytes: int = KEPT_BYTES) -> None:
        self.by_agent: dict[str, LateWork] = {}
        self._most_bytes = most_bytes

    def keep(self, work: LateWork) -> None:
        """Keep it in place of what was kept for its agent."""
        self.by_agent.pop(work.agent, None)
        self.by_agent[work.agent] = work
        nbytes = sum(one.offer.size for one in self.by_agent.values() if one.offer)
        for one in list(self.by_agent.values()):
            if nbytes <= self._most_bytes:
                break
            if one.offer is not None:
                nbytes -= one.offer.size
                del self.by_agent[one.agent]

    def forget(self, agent: str) -> LateWork | None:
        """Keep nothing for an agent any more."""
        return self.by_agent.pop(agent, None)

    def forget_base(self, base: str) -> None:
        """Ask for nothing of a model that is lost."""
        for agent in [one.agent for one in self.by_agent.values() if one.base == base]:
            del self.by_agent[agent]

    def begin(self, run: str, number: int, rounds: int) -> None:
        """Forget what is too old for a round, or of another run."""
        for agent, one in list(self.by_agent.items()):
            if one.run != run or not 0 < number - one.round <= rounds:
                del self.by_agent[agent]

    def waits_for(self, agent: str, offer: UpdateOffer) -> bool:
        """Whether an update that comes between rounds is wanted in a later one."""
        work = self.by_agent.get(agent)
        return work is not None and (work.run, work.base) == (offer.run, offer.base)

    def chunk(self, agent: str, chunk: Chunk) -> list[Effect]:
        """Take a chunk that was under way when its round ended.

        Raises:
            ChunkError: It does not fit; nothing changed.
        """
        work = self.by_agent.get(agent)
        if work is None or work.key is None or work.offer is None:
            return []
        if work.offer.digest != chunk.digest or chunk.index in work.have:
            return []
        Layout(work.offer.size, work.offer.chunk_bytes).check(chunk.index, len(chunk.data))
        work.have.add(chunk.index)
        return [WriteSpool(work.key, chunk.index, chunk.data)]

    def saved(self) -> KeepWork:
        """Return what the disk must not drop with its round."""
        works = self.by_agent.values()
        keys = frozenset(one.key for one in works if one.key is not None)
        return KeepWork(keys, frozenset(one.base for one in works))


def dropped(work: LateWork | None) -> list[Effect]:
    """Return what removes the chunks of work that nobody goes on with."""
    if work is None or work.key is None:
        return []
    key, work.key, work.offer, work.have = work.key, None, None, set()
    return [DropSpool(key)]


def same_content(stored: UpdateOffer, offer: UpdateOffer) -> bool:
    """Whether two offers are of the same bytes, cut alike."""
    return (stored.digest, stored.size, stored.chunk_bytes) == (
        offer.digest,
        offer.size,
        offer.chunk_bytes,
    )
