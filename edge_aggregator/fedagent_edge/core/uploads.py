"""Updates on their way in: credit out of one pool, chunks into spools, re-requests."""

from dataclasses import dataclass, field

from fedagent_node.effects import Effect, Send
from fedagent_protocol.messages import Need, UpdateOffer
from fedagent_protocol.transfer import CreditPool, Layout, RangeList, Receiver

from .effects import WriteSpool
from .round import EdgeRound, Part

WINDOW = 4
LONGEST_REST_S = 15.0


@dataclass(slots=True)
class IncomingUpdates:
    """All transfers of one round; the pool caps what they have authorised together.

    Attributes:
        hungry: Agents that wait for credit of the pool, in the order of asking.
        resting: Agents whose transfer is silent, and when they are asked again.
    """

    rnd: EdgeRound
    pool: CreditPool
    hungry: dict[str, None] = field(default_factory=dict)
    resting: dict[str, float] = field(default_factory=dict)
    _active: dict[str, Part] = field(default_factory=dict)

    def first_credit(self, part: Part, nbytes: int) -> int:
        """Return the chunks an order may grant in advance: one of `nbytes`, or none.

        Half of the pool stays for transfers under way: agents that died with an
        order must not bring the others to a stop.
        """
        self._release(part)
        if self.pool.used_bytes + nbytes > self.pool.limit_bytes // 2:
            return 0
        part.credit_bytes = nbytes
        self.pool.take(nbytes)
        return 1

    def begin(self, part: Part, offer: UpdateOffer, have: set[int]) -> None:
        """Take an admissible offer; `have` are the chunks in the spool already."""
        self._release(part)
        part.offer, part.stalls = offer, 0
        layout = Layout(offer.size, offer.chunk_bytes)
        part.receiver = Receiver(layout, window=WINDOW, have=have)
        self._active[part.assignment.agent] = part

    def accept(self, part: Part, index: int, data: bytes, now: float) -> list[Effect]:
        """Take a chunk into the spool.

        Raises:
            ChunkError: It does not fit; nothing changed.
        """
        receiver = part.receiver
        assert receiver is not None
        agent = part.assignment.agent
        before = receiver.outstanding
        fresh = receiver.accept(index, len(data), now)
        self._settle(part, before)
        if not fresh:
            return []
        part.stalls, receiver.window = 0, WINDOW
        self.resting.pop(agent, None)
        if receiver.complete:
            self.end(part)
        return [WriteSpool((self.rnd.run, self.rnd.round, agent), index, data)]

    def grant(self, agent: str, now: float) -> list[Effect]:
        """Give this agent credit as far as the pool has some, then those who wait."""
        effects = self._ask(agent, now)
        for other in list(self.hungry):
            if not self._room(self._active[other]):
                break
            effects += self._ask(other, now)
        return effects

    def tick(self, now: float) -> list[Effect]:
        """Ask again after silence, ever more patiently."""
        effects: list[Effect] = []
        for agent, part in list(self._active.items()):
            receiver = part.receiver
            if receiver is None or receiver.due is None or now < receiver.due:
                continue
            part.stalls += 1
            if part.stalls % 2:
                effects += self._ask(agent, now)
                continue
            # Silent twice: others may use its credit. It gets one chunk when it wakes.
            before = receiver.outstanding
            receiver.forget_credit()
            receiver.window = 1
            self._settle(part, before)
            self.resting[agent] = now + min(LONGEST_REST_S, 0.5 * 2**part.stalls)
        for agent in [agent for agent, at in self.resting.items() if now >= at]:
            del self.resting[agent]
            self.hungry[agent] = None
        for agent in list(self.hungry):
            effects += self._ask(agent, now)
        return effects

    def next_due(self) -> float | None:
        """Return when `tick` is wanted although nothing came."""
        dues = (part.receiver.due for part in self._active.values() if part.receiver is not None)
        return min(
            (*self.resting.values(), *(due for due in dues if due is not None)), default=None
        )

    def renew(self, part: Part) -> None:
        """Take back credit that may have been lost with a connection."""
        if part.receiver is not None and part.assignment.agent in self._active:
            before = part.receiver.outstanding
            part.receiver.forget_credit()
            self._settle(part, before)
            self.resting.pop(part.assignment.agent, None)

    def end(self, part: Part) -> None:
        """A transfer is complete or over; its credit goes back."""
        agent = part.assignment.agent
        self.renew(part)
        self._active.pop(agent, None)
        self.hungry.pop(agent, None)
        self.resting.pop(agent, None)
        self._release(part)

    def _ask(self, agent: str, now: float) -> list[Effect]:
        part = self._active.get(agent)
        if part is None or part.receiver is None or agent in self.resting:
            self.hungry.pop(agent, None)
            return []
        receiver = part.receiver
        room = self._room(part)
        before = receiver.outstanding
        ranges = receiver.ask(now, allowance=room)
        self._settle(part, before)
        if not receiver.outstanding and not room:
            self.hungry[agent] = None
        else:
            self.hungry.pop(agent, None)
        return [Send(agent, self._need(part, ranges))] if ranges else []

    def _need(self, part: Part, ranges: RangeList) -> Need:
        assert part.offer is not None
        rnd = self.rnd
        return Need(run=rnd.run, round=rnd.round, digest=part.offer.digest, ranges=ranges)

    def _room(self, part: Part) -> int:
        return self.pool.chunks(_chunk_bytes(part))

    def _settle(self, part: Part, before: int) -> None:
        assert part.receiver is not None
        change = part.receiver.outstanding - before
        if change > 0:
            self.pool.take(change * _chunk_bytes(part))
        else:
            self.pool.give_back(-change * _chunk_bytes(part))

    def _release(self, part: Part) -> None:
        self.pool.give_back(part.credit_bytes)
        part.credit_bytes = 0


def _chunk_bytes(part: Part) -> int:
    assert part.offer is not None
    return min(part.offer.chunk_bytes, part.offer.size)
