"""Belief propagation as one client of many: asynchronous, over links that lose (GDA section V).

The arithmetic is that of `coordinator/policies/beliefs.py` (ALGORITHMS section 5) with
weights that two neighbours agree on alone, each from its own and the other's degree,
median distance and distance:

    c_ij = 2 w_ij - 1 = 0.9 / max(1, max(degree_i, degree_j) - 1) * 2^-(d / d0)^3.7

with d the larger of both ends' distances and d0 the mean of both medians; every part is
symmetric, so both ends hold the same number. A message is l_ij = 2 atanh(c_ij tanh(h / 2)),
h the sum of own log ratio and the messages of i's neighbours but j.

Why that converges on any graph, however late and in whatever order messages come:

1. The slope of 2 atanh(c tanh(h / 2)) in h is c (1 - t^2) / (1 - c^2 t^2) <= c, t = tanh(h / 2).
2. So if no message into i is off by more than e, l_ij is off by at most
   c_ij (degree_i - 1) e <= 0.9 e, because c_ij <= 0.9 / max(1, degree_i - 1).
3. This is a contraction in the largest norm with factor 0.9; such iterations converge to
   the one fixed point under total asynchrony (Bertsekas and Tsitsiklis, Parallel and
   Distributed Computation, proposition 6.2.1): stale values only delay, no damping is
   needed. Losses end in repeats, and a client that dies is a message 0.
4. The same bound at l's end, c_il <= 0.9 / max(1, degree_l - 1), makes the sum of c_il over
   l's neighbours but one at most 0.9: the sum that `Wiring.contraction` reports.

Only step 2 needs i's own degree to be right; what neighbours claim can weaken a weight,
never strengthen it beyond the bound. And as |l_ij| <= 2 atanh(c_ij), whatever exceeds that
is cut: one liar moves a belief no further than an honest extreme opinion would.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median

from fedagent_protocol.peers import BeliefNote

from .peer_channel import PER_INCARNATION, Delivery, Jitter, PeerChannel
from .peer_settings import PAPER_C, BeliefSettings

COUPLING = 0.9
DECAY = 3.7
_MIN_OPINION = 1e-12
_LITERAL_LIMIT = 1e6


@dataclass(slots=True)
class _Neighbour:
    """What is known of a neighbour; all but the line and the message outlasts a slot.

    Attributes:
        distance: As this agent has it.
        line: Of this slot.
        heard: Its message to this agent, log ratio.
        told: This agent's newest message to it.
        message: The same as it should be now.
        coupling: 2 w - 1; 0 before its first note.
        early: Its newest note about a later slot.
    """

    distance: float
    line: PeerChannel
    heard: float = 0.0
    told: float = 0.0
    message: float = 0.0
    coupling: float = 0.0
    early: BeliefNote | None = None


@dataclass(slots=True)
class BeliefNode:
    """One client's part of belief propagation, slot by slot.

    Args:
        distances: Neighbours and how far they are (any unit, the same for all).
        settings: Bounds.
        starts: How often this agent has started; grows.

    Attributes:
        slot: The slot in which messages are taken; 0 before the first.
        counters: Notes that were not used, by reason.
    """

    distances: Mapping[str, float]
    settings: BeliefSettings = field(default_factory=BeliefSettings)
    starts: int = 1
    slot: int = 0
    counters: dict[str, int] = field(default_factory=dict)
    _around: dict[str, _Neighbour] = field(init=False)
    _own: float = 0.0
    _begun: float = 0.0
    _changed_at: float = 0.0

    def __post_init__(self) -> None:
        """Know the neighbours and nothing of them."""
        self._around = {
            peer: _Neighbour(
                distance, PeerChannel(self.settings.pace, 0.0, self.starts * PER_INCARNATION)
            )
            for peer, distance in sorted(self.distances.items())
        }

    def begin(self, slot: int, opinion: float | None, now: float) -> None:
        """Start a slot with this client's opinion in [0, 1]; None says nothing."""
        self.slot, self._begun, self._changed_at = slot, now, now
        self._own = self._potential(opinion)
        for peer, around in self._around.items():
            around.line = around.line.next(now, self.starts * PER_INCARNATION, self.settings.pace)
            around.heard = around.told = 0.0
            early, around.early = around.early, None
            if early is not None and early.slot == slot:
                self._take(peer, early, now)
        self._recompute(now)

    def receive(self, peer: str, note: BeliefNote, now: float) -> None:
        """Take a neighbour's note, if it is of this slot and newer than what is known."""
        around = self._around.get(peer)
        if around is None:
            self._count("stranger")
        elif note.slot > self.slot:
            # The neighbour is ahead; unanswered, it would repeat this until we are there.
            if around.early is None or (note.slot, note.seq) > (
                around.early.slot,
                around.early.seq,
            ):
                around.early = note
            self._count("early")
        elif note.slot < self.slot or not self.slot:
            self._count("stale")
        else:
            self._take(peer, note, now)
            self._recompute(now)

    def wants(self, now: float) -> set[str]:
        """Return the neighbours that are to get a note now; drop those that fell silent."""
        fell = [peer for peer, around in self._around.items() if around.line.silent(now)]
        if fell:
            self._count("dropped", len(fell))
            self._recompute(now)
        return {peer for peer, around in self._around.items() if around.line.wants(now)}

    def note(self, peer: str, now: float, rng: Jitter) -> BeliefNote | None:
        """Return what `peer` should be told now; None if there is nothing."""
        around = self._around[peer]
        content = around.line.content(now)
        if content is None or not self.slot:
            return None
        if content:
            if around.line.unsent:
                around.told = around.message
            seq, ack = around.line.stamp(now, rng, content=True)
        else:
            seq, ack = around.line.stamp(now, rng, content=False)
        return BeliefNote(
            slot=self.slot,
            seq=seq,
            ack=ack,
            degree=max(1, len(self._around)),
            ratio=around.told if content else 0.0,
            typical=self._typical,
            distance=around.distance,
        )

    def tick(self, now: float, rng: Jitter) -> list[tuple[str, BeliefNote]]:
        """Return the notes that are due, (neighbour, note)."""
        notes = ((peer, self.note(peer, now, rng)) for peer in sorted(self.wants(now)))
        return [(peer, note) for peer, note in notes if note is not None]

    @property
    def due(self) -> float:
        """When `tick` is wanted although nothing came; inf: never."""
        return min((a.line.due for a in self._around.values()), default=math.inf)

    @property
    def done_at(self) -> float:
        """When beliefs count as done if nothing comes before."""
        limit = self._begun + self.settings.max_s
        return min(limit, self._changed_at + self.settings.quiet_s) if self.converged else limit

    def done(self, now: float) -> bool:
        """Return whether the belief may be used: nothing changes any more, or time is up."""
        return self.slot > 0 and now >= self.done_at

    @property
    def converged(self) -> bool:
        """No message would change, and every neighbour that answers has the newest one."""
        return self.residual <= self.settings.tolerance and all(
            around.line.complete or around.line.dropped for around in self._around.values()
        )

    @property
    def residual(self) -> float:
        """The largest difference between a message as it should be and as it was told."""
        return max((abs(a.message - a.told) for a in self._around.values()), default=0.0)

    @property
    def sweeps(self) -> int:
        """Most contents sent to one neighbour in this slot."""
        return max((a.line.contents for a in self._around.values()), default=0)

    @property
    def log_belief(self) -> float:
        """Log odds of state 1; with `literal` the log of the unnormalised belief."""
        return self._own + sum(a.heard for a in self._around.values() if not a.line.dropped)

    @property
    def belief(self) -> float:
        """Marginal of state 1, in [0, 1]; means nothing with `literal`."""
        return 0.5 * (1 + math.tanh(0.5 * self.log_belief))

    @property
    def silent(self) -> frozenset[str]:
        """Neighbours that were left out in this slot."""
        return frozenset(peer for peer, a in self._around.items() if a.line.dropped)

    def _take(self, peer: str, note: BeliefNote, now: float) -> None:
        around, before = self._around[peer], self.log_belief
        around.coupling = self._coupling(around.distance, note)
        match around.line.hear(note.seq, note.ack, now):
            case Delivery.FRESH:
                limit = self._limit(around.coupling)
                around.heard = max(-limit, min(note.ratio, limit))
            case Delivery.OLD:
                self._count("old")
            case Delivery.ACK:
                pass
        after = self.log_belief
        if after != before and not abs(after - before) <= self.settings.tolerance:
            self._changed_at = now

    def _recompute(self, now: float) -> None:
        """Work out every message; mark those that have changed by more than the tolerance."""
        live = {peer: a.heard for peer, a in self._around.items() if not a.line.dropped}
        for peer, around in self._around.items():
            # A sum of the others, not the whole minus one: own may be infinite.
            inside = self._own + sum(heard for other, heard in live.items() if other != peer)
            around.message = self._message(inside, around)
            if abs(around.message - around.told) > self.settings.tolerance:
                self._changed_at = now
                if around.line.contents < self.settings.max_sweeps:
                    around.line.change(now)

    def _message(self, inside: float, around: _Neighbour) -> float:
        """Return the message, a log ratio, that follows from all but the neighbour's own."""
        if self.settings.literal:
            weight = -PAPER_C * math.pow(around.distance, DECAY)
            return max(-_LITERAL_LIMIT, min(math.log(2) + inside + weight, _LITERAL_LIMIT))
        return 2 * math.atanh(around.coupling * math.tanh(0.5 * inside))

    def _coupling(self, distance: float, note: BeliefNote) -> float:
        """Return 2 w - 1 of a neighbour by what both ends say of themselves."""
        far, usual = max(distance, note.distance), 0.5 * (self._typical + note.typical)
        if usual > 0:
            near = math.exp2(-math.pow(min(far / usual, 1e6), DECAY))
        else:
            near = 0.0 if far > 0 else 1.0
        return COUPLING / max(1, max(len(self._around), note.degree) - 1) * near

    def _limit(self, coupling: float) -> float:
        """Return the largest message that an honest neighbour can send."""
        return _LITERAL_LIMIT if self.settings.literal else 2 * math.atanh(coupling)

    def _potential(self, opinion: float | None) -> float:
        """Return ln(phi(1) / phi(0)); with `literal` ln r^2."""
        if self.settings.literal:
            return 2 * math.log(max(_MIN_OPINION, min(1.0 if opinion is None else opinion, 1.0)))
        if opinion is None or math.isnan(opinion):
            return 0.0
        square = max(0.0, min(opinion, 1.0)) ** 2
        if square == 0:
            return -math.inf
        return math.inf if square == 1 else math.log(square) - math.log1p(-square)

    @property
    def _typical(self) -> float:
        return median(self.distances.values()) if self.distances else 0.0

    def _count(self, reason: str, times: int = 1) -> None:
        self.counters[reason] = self.counters.get(reason, 0) + times
