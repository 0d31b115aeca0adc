"""Agree on the K best among neighbours of neighbours, with nobody in the middle (GDA section V).

Three sets of facts spread in a slot; each only grows towards one result, so that losses, repeats
and detours do no harm: the K best ranks, the smallest hashes of those who take part, and of those
who have spoken. docs/democratized.md (Gossip) has why equal sets of hashes mean that all agree.
"""

import hashlib
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from fedagent_protocol.peers import MAX_SKETCH, GossipMessage

from .settings import SlotSettings

_HASHES = 2.0**32


class Rank(NamedTuple):
    """An agent's index: larger first, ties to the smaller id."""

    psi: float
    agent: str


class Participant(NamedTuple):
    """The hash of an agent that takes part, or that has spoken."""

    hash: int
    spoken: bool


Facts = frozenset[Rank | Participant]
NOTHING: Facts = frozenset()


@dataclass(slots=True)
class _Neighbour:
    """What a neighbour has."""

    has: Facts = NOTHING  # facts that it has sent or acknowledged
    flight: Facts = NOTHING  # facts in the newest state to it, which is number `seq`
    seq: int = 0
    states: int = 0  # how many new states it was sent
    heard: bool = False
    silent: bool = False


class Gossip:
    """One agent's part of the agreement, slot by slot; `ignored` counts ranks not believed."""

    def __init__(self, me: str, neighbours: Iterable[str], settings: SlotSettings) -> None:
        self.settings = settings
        self.ignored = {"too_good": 0, "of_me": 0}
        self._me = me
        self._around = {peer: _Neighbour() for peer in sorted(neighbours)}
        self._facts: Facts = NOTHING
        self._all_spoken = False
        self._slot = 0
        self._ceiling = math.inf
        self._spoken_at: float | None = None
        self._changed_at = 0.0

    def begin(self, slot: int, now: float, *, ceiling: float = math.inf) -> None:
        """Start a slot; no honest index is above `ceiling`."""
        self._slot, self._ceiling = slot, ceiling
        self._facts, self._spoken_at, self._changed_at = NOTHING, None, now
        here = {self._me}
        for peer, around in self._around.items():
            if not around.silent:
                here.add(peer)
            self._around[peer] = _Neighbour(silent=around.silent)
        self._learn(Facts(Participant(hash_of(slot, agent), spoken=False) for agent in here), now)

    def speak(self, index: float | None, now: float) -> None:
        """Name this agent's index; None: it has none and does not stand for election."""
        self._spoken_at = now
        facts = Facts({Participant(hash_of(self._slot, self._me), spoken=True)})
        self._learn(facts if index is None else facts | {Rank(index, self._me)}, now)

    def receive(self, peer: str, message: GossipMessage, now: float) -> None:
        """Join a neighbour's news of this slot."""
        facts = Facts(
            {rank for index, agent in message.best if self._is_possible(rank := Rank(index, agent))}
            | {Participant(number, spoken=False) for number in message.known}
            | {Participant(number, spoken=True) for number in message.spoken}
        )
        self._learn(facts, now)
        around = self._around[peer]
        around.has = (around.has | facts) & self._facts  # whatever it sends, no more than we keep

    def hear(self, peer: str) -> None:
        """Note that a neighbour takes part in this slot."""
        self._around[peer].heard = True

    def confirm(self, peer: str, ack: int) -> None:
        """Note that a neighbour has the states up to a number."""
        around = self._around[peer]
        if around.flight and ack >= around.seq:
            around.has, around.flight = around.has | around.flight, NOTHING

    def forget(self, peer: str) -> None:
        """Note that a neighbour has lost what it had."""
        around = self._around[peer]
        around.has = around.flight = NOTHING

    def silence(self, peer: str, now: float, *, silent: bool) -> None:
        """Leave a neighbour out, or take it back."""
        around = self._around[peer]
        if around.silent is not silent:
            around.silent = silent
            self._changed_at = now

    def unsent(self, peer: str) -> bool:
        """Return whether there are facts that a neighbour was not sent and has not."""
        around = self._around[peer]
        return not self._facts <= around.has | around.flight

    def message(self, peer: str, seq: int) -> GossipMessage | None:
        """Return the news that go into state number `seq`; None: the neighbour has everything."""
        around = self._around[peer]
        news = self._facts - around.has
        around.states += self.unsent(peer)
        around.flight, around.seq = news, seq
        if not news:
            return None
        return GossipMessage(
            best=tuple(_ranks(news)),
            known=tuple(sorted(_hashes(news, spoken=False))),
            spoken=tuple(sorted(_hashes(news, spoken=True))),
        )

    @property
    def done_at(self) -> float:
        """When the K best count as agreed if nothing comes before; inf before `speak`."""
        if self._spoken_at is None:
            return math.inf
        limit = self._spoken_at + self.settings.gossip_s
        return min(limit, self._changed_at + self.settings.agreed_s) if self.agreed else limit

    @property
    def agreed(self) -> bool:
        """Everyone that is known has spoken, and every neighbour that answers knows it."""
        return self._all_spoken and all(
            around.silent or (around.heard and self._facts <= around.has)
            for around in self._around.values()
        )

    @property
    def best(self) -> list[Rank]:
        """The K best of this slot as far as is known, best first."""
        return _ranks(self._facts)

    @property
    def exchanges(self) -> int:
        """Most new states sent to one neighbour in this slot."""
        return max((around.states for around in self._around.values()), default=0)

    @property
    def agents(self) -> int:
        """About how many agents take part, this one included."""
        known = _hashes(self._facts, spoken=False)
        if len(known) < MAX_SKETCH:
            return max(1, len(known))
        return round((MAX_SKETCH - 1) / (max(known) / _HASHES))

    def _is_possible(self, rank: Rank) -> bool:
        """Return whether a rank is believed: only an agent itself says that it stands."""
        if rank.psi > self._ceiling:
            self.ignored["too_good"] += 1
        elif rank.agent == self._me and rank not in self._facts:
            self.ignored["of_me"] += 1
        else:
            return True
        return False

    def _learn(self, facts: Facts, now: float) -> None:
        if facts <= self._facts:
            return
        union = self._facts | facts
        best: dict[str, Rank] = {}
        for rank in _ranks(union):
            if len(best) < self.settings.keep:
                best.setdefault(rank.agent, rank)
        known, has_spoken = (
            sorted(_hashes(union, spoken=spoken))[:MAX_SKETCH] for spoken in (False, True)
        )
        joined = Facts(
            [
                *best.values(),
                *(Participant(number, spoken=False) for number in known),
                *(Participant(number, spoken=True) for number in has_spoken),
            ]
        )
        if joined != self._facts:
            self._changed_at = now
        self._facts, self._all_spoken = joined, known == has_spoken


def hash_of(slot: int, agent: str) -> int:
    """Return an agent's hash of a slot, 32 bits; another slot samples other agents."""
    digest = hashlib.blake2b(f"{slot}/{agent}".encode(), digest_size=4).digest()
    return int.from_bytes(digest)


def _ranks(facts: Facts) -> list[Rank]:
    ranks = (fact for fact in facts if isinstance(fact, Rank))
    return sorted(ranks, key=lambda rank: (-rank.psi, rank.agent))


def _hashes(facts: Facts, *, spoken: bool) -> set[int]:
    return {fact.hash for fact in facts if isinstance(fact, Participant) and fact.spoken is spoken}
