"""Agree on the K best among neighbours of neighbours, with nobody in the middle (GDA section V).

Two sets of facts spread in a slot; each only grows towards one result, so that losses, repeats
and detours do no harm: the K best ranks, and how far each agent is (those with the 64 smallest
hashes). Every envelope carries all that its reader may lack, so that what an agent knows is a
consistent cut of the slot: docs/democratized.md (Gossip) has what follows from that.
"""

import hashlib
import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import NamedTuple

from fedagent_protocol.peers import MAX_SKETCH, MAX_TURN, GossipMessage

from .channel import SlotSettings

_HASHES = 2.0**32
SPOKEN = MAX_TURN + 1


class Rank(NamedTuple):
    """An agent's index: larger first, ties to the smaller id."""

    psi: float
    agent: str


class Participant(NamedTuple):
    """How far an agent is; a larger turn is newer.

    Turn 0: it takes part. Odd: its beliefs stand still. Even: they have moved again. `SPOKEN`: it
    has named its index, or has none.
    """

    hash: int
    turn: int


class RunnerUp(NamedTuple):
    """The largest index known that is not among the K best."""

    psi: float


Facts = frozenset[Rank | RunnerUp | Participant]
NOTHING: Facts = frozenset()


@dataclass(slots=True)
class _Neighbour:
    """What a neighbour has."""

    has: Facts = NOTHING  # facts that it has sent or acknowledged
    flight: Facts = NOTHING  # facts in the newest state to it, which is number `seq`
    seq: int = 0
    silent: bool = False
    child: bool = False  # this agent is its parent


class Gossip:
    """One agent's part of the agreement, slot by slot; `rests` while its beliefs stand still.

    `stage` counts how often all name their index anew, because the K best were in doubt.
    """

    def __init__(self, me: str, neighbours: Iterable[str], settings: SlotSettings) -> None:
        self.settings = settings
        self._me = me
        self._around = {peer: _Neighbour() for peer in sorted(neighbours)}
        self._facts: Facts = NOTHING
        self._turns: dict[int, int] = {}
        self.rests, self.stage = False, 0
        self._parent = ""
        self._own = self._slot = 0
        self._ceiling = math.inf
        self._spoken_at: float | None = None

    def begin(self, slot: int, *, ceiling: float = math.inf) -> None:
        """Start a slot; no honest index is above `ceiling`."""
        self._slot, self._ceiling = slot, ceiling
        self._facts, self._spoken_at = NOTHING, None
        self._turns, self._own, self.rests = {}, hash_of(slot, self._me), False
        self.stage = 0
        here = {self._me}
        for peer, around in self._around.items():
            if not around.silent:
                here.add(peer)
            self._around[peer] = _Neighbour(silent=around.silent)
        self._learn(Facts(Participant(hash_of(slot, agent), 0) for agent in here))
        self._parent = min(here, key=partial(hash_of, slot))

    def go_on(self, stage: int) -> None:
        """Begin a stage in which everybody that is known names its index anew."""
        self.stage, self.rests, self._spoken_at = stage, False, None
        self._facts, turns, self._turns = NOTHING, self._turns, {}
        self._learn(Facts(Participant(number, 0) for number in turns))
        for peer, around in self._around.items():
            around.has = Facts(Participant(fact.hash, 0) for fact in _participants(around.has))
            around.flight = NOTHING
            number = hash_of(self._slot, peer)
            if around.silent and number in self._turns:
                self._learn(Facts({Participant(number, 1)}))

    def rest(self, *, still: bool) -> None:
        """Say whether this agent's beliefs stand still; nothing after `speak`."""
        self.rests = still
        turn = self._turns.get(self._own, 0)
        # After a restart in the slot others may know a larger turn of this agent: go beyond.
        if self._spoken_at is None and still is not bool(turn % 2) and turn < MAX_TURN:
            self._learn(Facts({Participant(self._own, turn + 1)}))

    def speak(self, index: float | None, now: float) -> None:
        """Name this agent's index; None: it has none and does not stand for election."""
        self._spoken_at = now
        facts = Facts({Participant(self._own, SPOKEN)})
        self._learn(facts if index is None else facts | {Rank(index, self._me)})

    def receive(self, peer: str, message: GossipMessage, stage: int = 0) -> None:
        """Join a neighbour's news of this slot; of an earlier stage only who takes part."""
        if stage < self.stage:
            numbers = {*message.known, *message.spoken, *(number for number, _ in message.turns)}
            self._learn(Facts(Participant(number, 0) for number in numbers))
            return
        facts = Facts(
            {rank for index, agent in message.best if self._is_possible(rank := Rank(index, agent))}
            | {Participant(number, 0) for number in message.known}
            | {Participant(number, SPOKEN) for number in message.spoken}
            | {Participant(number, turn) for number, turn in message.turns}
            | {RunnerUp(psi) for psi in (message.next,) if psi is not None and psi <= self._ceiling}
        )
        root = min(self._turns)
        self._learn(facts)
        if min(self._turns) < root:
            self._parent = peer
        around = self._around[peer]
        around.child = message.parent
        around.has = (around.has | facts) & self._facts  # whatever it sends, no more than we keep

    def confirm(self, peer: str, ack: int) -> None:
        """Note that a neighbour has the states up to a number."""
        around = self._around[peer]
        if around.flight and ack >= around.seq:
            around.has, around.flight = around.has | around.flight, NOTHING

    def forget(self, peer: str) -> None:
        """Note that a neighbour has lost what it had."""
        around = self._around[peer]
        around.has = around.flight = NOTHING

    def silence(self, peer: str, *, silent: bool) -> None:
        """Leave a neighbour out, or take it back."""
        around = self._around[peer]
        if around.silent is not silent:
            around.silent = silent
            number = hash_of(self._slot, peer)
            turn = self._turns.get(number, 1)
            if silent and not turn % 2 and turn < MAX_TURN:
                # Nobody waits for its beliefs; where it lives it says otherwise.
                self._learn(Facts({Participant(number, turn + 1)}))

    def unsent(self, peer: str) -> bool:
        """Return whether a neighbour is to be sent facts that it has not."""
        # Nobody can act on the others' facts before it has this agent's: they go together. That
        # beliefs move again only has to go along.
        if not (self.rests or self._spoken_at is not None):
            return False
        around = self._around[peer]
        lacks = self._facts - around.has - around.flight
        if not lacks:
            return False
        ranked = any(isinstance(fact, Rank) for fact in lacks)
        return ranked or any(turn % 2 or turn == SPOKEN for _, turn in _participants(lacks))

    def hold_s(self, peer: str) -> float:
        """Return how long news for a neighbour wait for more.

        What all have to say goes along a tree, to the agent with the smallest hash and back once
        it is complete; between others it is for what the tree has lost.
        """
        settings, turns = self.settings, self._turns
        complete = self._all_spoken or (
            turns.get(hash_of(self._slot, peer)) != SPOKEN
            and all(turn % 2 or turn == SPOKEN for turn in turns.values())
        )
        if peer == self._parent or (self._around[peer].child and complete):
            return settings.hold_s
        return settings.spare_s if self._me < peer else 2 * settings.spare_s

    def message(self, peer: str, seq: int) -> GossipMessage | None:
        """Return the news that go into state number `seq`; None: the neighbour has everything."""
        around = self._around[peer]
        if seq > around.seq:
            # A repeat may carry more than what the acknowledgement of its number is about.
            around.flight, around.seq = self._facts - around.has, seq
        return self.news(peer)

    def news(self, peer: str) -> GossipMessage | None:
        """Return what a neighbour may lack, also for an envelope that is not acknowledged."""
        news = self._facts - self._around[peer].has
        if not news:
            return None
        turns = sorted(_participants(news))
        return GossipMessage(
            best=tuple(_ranks(news)),
            known=tuple(number for number, turn in turns if turn == 0),
            spoken=tuple(number for number, turn in turns if turn == SPOKEN),
            turns=tuple((number, turn) for number, turn in turns if 0 < turn < SPOKEN),
            parent=peer == self._parent,
            next=max((fact.psi for fact in news if isinstance(fact, RunnerUp)), default=None),
        )

    @property
    def done_at(self) -> float:
        """When the K best count as agreed if nothing comes before; inf before `speak`."""
        if self._spoken_at is None:
            return math.inf
        return self._spoken_at + (0.0 if self._all_spoken else self.settings.gossip_s)

    @property
    def _all_spoken(self) -> bool:
        return all(turn == SPOKEN for turn in self._turns.values())

    @property
    def all_rest(self) -> bool:
        """The beliefs of everyone stand still, and so does the number of agents."""
        return self.rests and all(turn % 2 or turn == SPOKEN for turn in self._turns.values())

    @property
    def best(self) -> list[Rank]:
        """The K best of this slot as far as is known, best first."""
        return _ranks(self._facts)

    def in_doubt(self, tolerance: float) -> bool:
        """Return whether other beliefs within a tolerance could make other agents the K best.

        Only where everybody has spoken: all that know as much answer the same. Equal indices are
        no doubt, as more exact beliefs of the same are equal too.
        """
        if not self._all_spoken or self._runner_up is None:
            return False
        best = self.best
        if len(best) < self.settings.keep:
            return False  # who names one that came after them has not named them: it lies
        gap = best[-1].psi - self._runner_up.psi
        return 0 < gap <= self.settings.close * tolerance / self.agents

    @property
    def agents(self) -> int:
        """About how many agents take part, this one included."""
        if len(self._turns) < MAX_SKETCH:
            return max(1, len(self._turns))
        return round((MAX_SKETCH - 1) / (max(self._turns) / _HASHES))

    @property
    def _runner_up(self) -> RunnerUp | None:
        return next((fact for fact in self._facts if isinstance(fact, RunnerUp)), None)

    def _is_possible(self, rank: Rank) -> bool:
        """Return whether a rank is believed: only an agent itself says that it stands."""
        return rank.psi <= self._ceiling and (rank.agent != self._me or rank in self._facts)

    def _learn(self, facts: Facts) -> None:
        if facts <= self._facts:
            return
        union = self._facts | facts
        best: dict[str, Rank] = {}
        left = [fact.psi for fact in union if isinstance(fact, RunnerUp)]
        for rank in _ranks(union):
            if len(best) < self.settings.keep:
                best.setdefault(rank.agent, rank)
            elif rank.agent not in best:
                left.append(rank.psi)
        turns: dict[int, int] = {}
        for number, turn in _participants(union):
            turns[number] = max(turns.get(number, 0), turn)
        self._turns = {number: turns[number] for number in sorted(turns)[:MAX_SKETCH]}
        runner_up = [RunnerUp(max(left))] if left else []
        self._facts = Facts(
            [*best.values(), *runner_up, *map(Participant._make, self._turns.items())]
        )


@lru_cache(maxsize=256)
def hash_of(slot: int, agent: str) -> int:
    """Return an agent's hash of a slot, 32 bits; another slot samples other agents."""
    digest = hashlib.blake2b(f"{slot}/{agent}".encode(), digest_size=4).digest()
    return int.from_bytes(digest)


def _ranks(facts: Facts) -> list[Rank]:
    ranks = (fact for fact in facts if isinstance(fact, Rank))
    return sorted(ranks, key=lambda rank: (-rank.psi, rank.agent))


def _participants(facts: Facts) -> list[Participant]:
    return [fact for fact in facts if isinstance(fact, Participant)]
