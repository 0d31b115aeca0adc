"""Updates on their way in: credit out of one pool, chunks into spools, re-requests."""

from dataclasses import dataclass, field

from fedagent_protocol.messages import Need, UpdateOffer
from fedagent_protocol.transfer import CreditPool, Layout, Receiver

from .effects import Effect, Key, ToAgent, WriteSpool
from .round import EdgeRound, Part, Stage

WINDOW = 4
FIRST_CREDIT = 1


@dataclass(slots=True)
class Uploads:
    """All transfers of one round; the pool caps what they have authorised together."""

    pool: CreditPool
    _queue: dict[str, None] = field(default_factory=dict)

    def first_credit(self, part: Part, chunk_bytes: int) -> int:
        """Return the chunks an order may grant in advance."""
        if self.pool.chunks(chunk_bytes) < FIRST_CREDIT:
            return 0
        part.credit_bytes = chunk_bytes
        self.pool.take(chunk_bytes)
        return FIRST_CREDIT

    def begin(self, part: Part, offer: UpdateOffer, have: set[int]) -> None:
        """Take an admissible offer; `have` are the chunks in the spool already."""
        self._release(part)
        part.offer, part.stage = offer, Stage.SENDING
        layout = Layout(offer.size, offer.chunk_bytes)
        part.receiver = Receiver(layout, window=WINDOW, have=have)
        self._queue[part.assignment.agent] = None

    def accept(
        self, rnd: EdgeRound, part: Part, index: int, data: bytes, now: float
    ) -> list[Effect]:
        """Take a chunk into the spool.

        Raises:
            ChunkError: It does not fit; nothing changed.
        """
        assert part.receiver is not None
        agent = part.assignment.agent
        before = part.receiver.outstanding
        fresh = part.receiver.accept(index, len(data), now)
        self._settle(part, before)
        key: Key = (rnd.run, rnd.round, agent)
        effects: list[Effect] = [WriteSpool(key, index, data)] if fresh else []
        if part.receiver.complete:
            self.end(part)
        return effects

    def grant(self, rnd: EdgeRound, now: float) -> list[Effect]:
        """Give what the pool allows, first come first served, and ask again after silence."""
        effects: list[Effect] = []
        for agent in list(self._queue):
            part = rnd.parts[agent]
            receiver = part.receiver
            if receiver is None or part.offer is None:
                continue
            if receiver.due is not None and now >= receiver.due and receiver.repeats:
                # Silent twice: others may use its credit meanwhile; it goes to the end.
                before = receiver.outstanding
                receiver.forget_credit()
                receiver.repeats = 0
                self._settle(part, before)
                del self._queue[agent]
                self._queue[agent] = None
                continue
            before = receiver.outstanding
            allowance = self.pool.chunks(part.offer.chunk_bytes)
            ranges = receiver.ask(now, allowance=allowance)
            self._settle(part, before)
            if ranges:
                digest = part.offer.digest
                need = Need(run=rnd.run, round=rnd.round, digest=digest, ranges=ranges)
                effects.append(ToAgent(agent, need))
        return effects

    def end(self, part: Part) -> None:
        """A transfer is complete or over."""
        self._queue.pop(part.assignment.agent, None)
        if part.receiver is not None:
            before = part.receiver.outstanding
            part.receiver.forget_credit()
            self._settle(part, before)
        self._release(part)

    def renew(self, part: Part) -> None:
        """Take back credit that may have been lost with a connection."""
        if part.receiver is not None:
            before = part.receiver.outstanding
            part.receiver.forget_credit()
            self._settle(part, before)

    def next_due(self, rnd: EdgeRound) -> float | None:
        """Return when `grant` is wanted although nothing came."""
        times = []
        for agent in self._queue:
            receiver = rnd.parts[agent].receiver
            if receiver is not None and receiver.due is not None:
                times.append(receiver.due)
        return min(times, default=None)

    def _settle(self, part: Part, before: int) -> None:
        assert part.receiver is not None
        assert part.offer is not None
        change = part.receiver.outstanding - before
        if change > 0:
            self.pool.take(change * part.offer.chunk_bytes)
        else:
            self.pool.give_back(-change * part.offer.chunk_bytes)

    def _release(self, part: Part) -> None:
        self.pool.give_back(part.credit_bytes)
        part.credit_bytes = 0
