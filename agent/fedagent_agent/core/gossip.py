"""Agree on the K best among neighbours of neighbours, with nobody in the middle (GDA section V).

Three sets spread in a slot, each of which only grows towards one result whatever the order,
so that losses, repeats and detours do no harm:

- `best`: the K best (index, agent), larger index first, ties to the smaller id; of two
  indices of one agent the larger counts. What is not among one's own K best is not passed
  on: K better ones are.
- `heard`: who takes part, as the 64 smallest hashes of ids. An agent enters itself and its
  neighbours, unless they were silent in the slot before.
- `spoken`: who has named its index (or has none), likewise.

An agent enters its hash in `spoken` together with its index, and neighbours pass on both in
the same note or know K better ones: whoever has a hash in `spoken` has the index too, or K
better ones. As everyone enters its neighbours in `heard`, the sets are equal only once all
that can be reached have spoken (of more than 64, the 64 with the smallest hashes, a random
sample). Then the K best are the same everywhere, and an agent need not wait any longer; if
somebody never speaks, it waits until its time is up.

With `heard` comes the number of agents: exact below 64, from the 64th smallest hash above
(standard error 1 / sqrt(62), 13 percent), which is all that an index needs it for.
"""

import hashlib
import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from fedagent_protocol.peers import MAX_SKETCH, GossipNote

from .peer_channel import PER_INCARNATION, Jitter, PeerChannel
from .peer_settings import GossipSettings, Pace

Entry = tuple[float, str]
"""(index, agent)."""
_HASHES = 2.0**32


@dataclass(frozen=True, slots=True)
class GossipState:
    """Parts of the three sets."""

    best: frozenset[Entry] = frozenset()
    heard: frozenset[int] = frozenset()
    spoken: frozenset[int] = frozenset()

    def __or__(self, other: "GossipState") -> "GossipState":
        return GossipState(
            self.best | other.best, self.heard | other.heard, self.spoken | other.spoken
        )

    def __and__(self, other: "GossipState") -> "GossipState":
        return GossipState(
            self.best & other.best, self.heard & other.heard, self.spoken & other.spoken
        )

    def __sub__(self, other: "GossipState") -> "GossipState":
        return GossipState(
            self.best - other.best, self.heard - other.heard, self.spoken - other.spoken
        )

    def __bool__(self) -> bool:
        return bool(self.best or self.heard or self.spoken)


NOTHING = GossipState()


@dataclass(slots=True)
class _Neighbour:
    """What a neighbour may lack.

    Attributes:
        line: Of this slot.
        pending: News that it has not acknowledged.
        flight: What the newest content to it held.
        early: Its newest note about a later slot.
    """

    line: PeerChannel
    pending: GossipState = NOTHING
    flight: GossipState = NOTHING
    early: GossipNote | None = None


@dataclass(slots=True)
class Gossip:
    """One agent's part of the agreement, slot by slot.

    Args:
        me: This agent's id.
        neighbours: Their ids.
        settings: K and bounds.
        starts: How often this agent has started; grows.

    Attributes:
        slot: The slot in which news are taken; 0 before the first.
        counters: Notes and entries that were not used, by reason.
    """

    me: str
    neighbours: frozenset[str]
    settings: GossipSettings = field(default_factory=GossipSettings)
    starts: int = 1
    slot: int = 0
    counters: dict[str, int] = field(default_factory=dict)
    _around: dict[str, _Neighbour] = field(init=False)
    _known: GossipState = NOTHING
    _ceiling: float = math.inf
    _spoken_at: float | None = None
    _changed_at: float = 0.0

    def __post_init__(self) -> None:
        """Know the neighbours and no news."""
        self._around = {
            peer: _Neighbour(PeerChannel(self._pace(peer), 0.0, self.starts * PER_INCARNATION))
            for peer in sorted(self.neighbours)
        }

    def begin(self, slot: int, now: float, *, ceiling: float = math.inf) -> None:
        """Start a slot; no honest index is above `ceiling`."""
        silent = self.silent
        self.slot, self._ceiling = slot, ceiling
        self._known, self._spoken_at, self._changed_at = NOTHING, None, now
        for peer, around in self._around.items():
            around.line = around.line.next(now, self.starts * PER_INCARNATION, self._pace(peer))
            around.pending = around.flight = NOTHING
        here = {self.me, *self.neighbours} - silent
        self._learn(GossipState(heard=frozenset(hash_of(slot, agent) for agent in here)), "", now)
        for peer, around in self._around.items():
            early, around.early = around.early, None
            if early is not None and early.slot == slot:
                self._take(peer, early, now)

    def speak(self, index: float | None, now: float) -> None:
        """Name this agent's index; None: it has none and does not stand for election."""
        self._spoken_at = now
        best = frozenset() if index is None else frozenset({(index, self.me)})
        self._learn(GossipState(best, spoken=frozenset({hash_of(self.slot, self.me)})), "", now)

    def receive(self, peer: str, note: GossipNote, now: float) -> None:
        """Take a neighbour's news of this slot; those of another slot have expired."""
        around = self._around.get(peer)
        if around is None:
            self._count("stranger")
        elif note.slot > self.slot:
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

    def wants(self, now: float) -> set[str]:
        """Return the neighbours that are to get a note now; drop those that fell silent."""
        fell = sum(around.line.silent(now) for around in self._around.values())
        if fell:
            self._changed_at = now
            self._count("dropped", fell)
        return {peer for peer, around in self._around.items() if around.line.wants(now)}

    def note(self, peer: str, now: float, rng: Jitter) -> GossipNote | None:
        """Return what `peer` should be told now; None if there is nothing."""
        around = self._around[peer]
        content = around.line.content(now)
        if content is None or not self.slot:
            return None
        if not content:
            seq, ack = around.line.stamp(now, rng, content=False)
            return GossipNote(slot=self.slot, seq=seq, ack=ack)
        if around.line.unsent:
            around.flight = around.pending = around.pending & self._known
        seq, ack = around.line.stamp(now, rng, content=True)
        said = around.flight
        return GossipNote(
            slot=self.slot,
            seq=seq,
            ack=ack,
            best=tuple(sorted(said.best, key=_rank)),
            heard=tuple(sorted(said.heard)),
            spoken=tuple(sorted(said.spoken)),
        )

    def tick(self, now: float, rng: Jitter) -> list[tuple[str, GossipNote]]:
        """Return the notes that are due, (neighbour, note)."""
        notes = ((peer, self.note(peer, now, rng)) for peer in sorted(self.wants(now)))
        return [(peer, note) for peer, note in notes if note is not None]

    @property
    def due(self) -> float:
        """When `tick` is wanted although nothing came; inf: never."""
        return min((a.line.due for a in self._around.values()), default=math.inf)

    @property
    def done_at(self) -> float:
        """When the K best count as agreed if nothing comes before; inf before `speak`."""
        if self._spoken_at is None:
            return math.inf
        limit = self._spoken_at + self.settings.max_s
        return min(limit, self._changed_at + self.settings.quiet_s) if self.agreed else limit

    def done(self, now: float) -> bool:
        """Return whether the K best may be used: all have spoken, or time is up."""
        return now >= self.done_at

    @property
    def agreed(self) -> bool:
        """Everyone that was heard of has spoken, and every live neighbour knows it."""
        lines = (around.line for around in self._around.values())
        return self._known.heard == self._known.spoken and all(
            line.complete or line.dropped for line in lines
        )

    @property
    def best(self) -> list[Entry]:
        """The K best of this slot as far as is known, best first."""
        return sorted(self._known.best, key=_rank)

    @property
    def exchanges(self) -> int:
        """Most contents sent to one neighbour in this slot."""
        return max((a.line.contents for a in self._around.values()), default=0)

    @property
    def agents(self) -> int:
        """About how many agents take part, this one included."""
        heard = sorted(self._known.heard)
        if len(heard) < MAX_SKETCH:
            return max(1, len(heard))
        return round((MAX_SKETCH - 1) / (heard[-1] / _HASHES))

    @property
    def silent(self) -> frozenset[str]:
        """Neighbours that were left out in this slot."""
        return frozenset(peer for peer, a in self._around.items() if a.line.dropped)

    def _take(self, peer: str, note: GossipNote, now: float) -> None:
        around = self._around[peer]
        said = GossipState(self._believed(note.best), frozenset(note.heard), frozenset(note.spoken))
        around.line.hear(note.seq, note.ack, now)
        if around.line.forgot:
            around.pending = self._known
        elif around.line.acked >= around.line.seq:
            around.pending, around.flight = around.pending - around.flight, NOTHING
        around.pending -= said
        self._learn(said, peer, now)
        if not around.pending and around.line.contents:
            around.line.unsent = False

    def _believed(self, best: Iterable[Entry]) -> frozenset[Entry]:
        """Return what is possible: nobody else says whether this agent stands for election."""
        found = set()
        for entry in best:
            if entry[0] > self._ceiling:
                self._count("too_good")
            elif entry[1] == self.me and entry not in self._known.best:
                self._count("of_me")
            else:
                found.add(entry)
        return frozenset(found)

    def _learn(self, said: GossipState, source: str, now: float) -> None:
        """Merge what was said; pass on to the others what is new and counts."""
        before, union = self._known, self._known | said
        self._known = GossipState(
            _best_of(union.best, self.settings.keep),
            _smallest(union.heard, MAX_SKETCH),
            _smallest(union.spoken, MAX_SKETCH),
        )
        new = self._known - before
        if not new:
            return
        self._changed_at = now
        for peer, around in self._around.items():
            if peer != source:
                around.pending = around.pending | new
                around.line.change(now)

    def _pace(self, peer: str) -> Pace:
        # One of two speaks first, so that the other need not repeat what both have heard.
        pace = self.settings.pace
        return replace(pace, hold_s=0.5 * pace.hold_s) if self.me < peer else pace

    def _count(self, reason: str, times: int = 1) -> None:
        self.counters[reason] = self.counters.get(reason, 0) + times


def hash_of(slot: int, agent: str) -> int:
    """Return an agent's hash of a slot, 32 bits; another slot samples other agents."""
    digest = hashlib.blake2b(f"{slot}/{agent}".encode(), digest_size=4).digest()
    return int.from_bytes(digest)


def _rank(entry: Entry) -> tuple[float, str]:
    """Sort key: larger index first, ties to the smaller id."""
    return -entry[0], entry[1]


def _best_of(entries: Iterable[Entry], keep: int) -> frozenset[Entry]:
    """Return the K best entries, one per agent."""
    chosen: dict[str, Entry] = {}
    for entry in sorted(entries, key=_rank):
        if len(chosen) == keep:
            break
        chosen.setdefault(entry[1], entry)
    return frozenset(chosen.values())


def _smallest(hashes: Iterable[int], keep: int) -> frozenset[int]:
    """Return the smallest hashes."""
    return frozenset(sorted(hashes)[:keep])
