"""Who talks with whom in democratized analytics, and what passes between them through the edge.

ALGORITHMS section 5. The edge draws a graph of its agents: the same agents and places give the same
one. It carries sealed envelopes while a call is open, and between neighbours: those that it has
named, or, where devices know theirs, who writes to each other. It cannot read them, bounds how much
each agent sends, and is sent, and keeps nothing.
"""

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from fedagent_node.effects import Effect, Send
from fedagent_protocol.messages import (
    MAX_NEIGHBOURS,
    MAX_PEER_BYTES,
    Neighbours,
    PeerDeliver,
    PeerSend,
)
from fedagent_task.recipe.spec import PeersSpec

from .effects import Ignored
from .sessions import AgentSessions

Place = tuple[float, float]
Graph = dict[str, dict[str, float]]
"""Neighbours of each agent, and how far they are."""

USUAL = 1.0
"""Distance where no place is known: all are alike, and only ratios count."""
BLOCK = 512
"""More agents than this are halved by place first: distances of all pairs cost too much."""

RATE_BYTES = 256 * 1024
BURST_BYTES = 1024 * 1024
BURST_S = BURST_BYTES / RATE_BYTES
"""Of one agent, per second and at once: several times what an honest one sends."""
INBOX_S = 8.0
INBOX_BYTES = 4 * BURST_BYTES
"""What the neighbours of one agent together may send it in this time, each as much."""
OVERHEAD_BYTES = 256
"""What an envelope costs beside its bytes."""
CARD_BYTES = 1024
CARDS_BYTES = 64 * CARD_BYTES
"""What one, and all together, may send in this time to an agent that has not written to them yet:
where devices know their neighbours, one of two has to write first."""
LINGER_S = 5.0
"""How long after a call what is under way may arrive: who is not answered takes it for silence."""
SOON_S = 0.2
"""How long a change of the graph waits for others: agents come in crowds."""
PER_AGENT_S = 5e-4
"""And longer where many have to be compared."""


@dataclass(slots=True)
class Neighbourhood:
    """In a call, names each agent its neighbours, and carries envelopes between them."""

    sessions: AgentSessions
    counters: Counter[str]
    spec: PeersSpec = field(default_factory=PeersSpec)
    run: str = ""
    _paid: dict[str, float] = field(default_factory=dict)
    """Until when each sender has used up its rate; in the past by what it may send at once."""
    _had: Counter[tuple[str, str]] = field(default_factory=Counter)
    """What each receiver had of each sender until the next time it is counted from nothing."""
    _had_until: float = -math.inf
    _called_until: float = -math.inf
    _met: dict[str, dict[str, None]] = field(default_factory=dict)
    """Whom each was named in this call: a slot that has begun may go on with its neighbours.

    Where devices know their neighbours: whom each has written to in this run.
    """
    _graph: Graph = field(default_factory=dict)
    _places: dict[str, Place | None] = field(default_factory=dict)
    due: float = math.inf
    """When the graph is drawn again."""

    def begin(self, run: str, spec: PeersSpec) -> None:
        """Begin with another run or task, and without anybody's neighbours."""
        self.run, self.spec = run, spec
        self._graph, self._places, self.due = {}, {}, math.inf
        self._met, self._called_until = {}, -math.inf

    def call(self, until: float) -> None:
        """Draw everybody's neighbours for a call, and carry envelopes until it is over."""
        self._called_until = until + LINGER_S
        if self.spec.graph != "declared":
            self._met = {}
        self.refresh()

    def call_ended(self, now: float) -> None:
        """Carry no more than what is under way."""
        self._called_until = min(self._called_until, now + LINGER_S)

    def is_open(self, now: float) -> bool:
        """Whether there is a call, or one is just over."""
        return now < self._called_until

    # ----------------------------------------------------------------- envelopes

    def send(self, sender: str, envelope: PeerSend, now: float) -> list[Effect]:
        """Hand an envelope on."""
        if now >= self._had_until:
            self._had, self._had_until = Counter(), now + INBOX_S
            self._paid = {a: until for a, until in self._paid.items() if until > now - BURST_S}
        self._check(sender, envelope, now)
        self.counters["relayed"] += 1
        return [Send(envelope.to, PeerDeliver(sender=sender, body=envelope.body))]

    def _check(self, sender: str, envelope: PeerSend, now: float) -> None:
        """Note what is sent, or raise `Ignored` where it is too much, or for nobody."""
        to, size = envelope.to, len(envelope.body)
        if not self.is_open(now):
            raise Ignored("relay_closed")
        size += OVERHEAD_BYTES
        paid = max(self._paid.get(sender, -math.inf), now - BURST_S) + size / RATE_BYTES
        if paid > now:
            raise Ignored("relay_too_much")
        self._paid[sender] = paid
        if to == sender or not self.sessions.is_present(to):
            raise Ignored("relay_absent")
        if self.spec.graph == "declared" and to not in self._met.get(sender, ()):
            self._met[sender] = self._met_by(sender, (to,))
        theirs = self._met.get(to, {})
        had = self._had[to, sender] + size
        if sender in theirs:
            if had > max(MAX_PEER_BYTES + OVERHEAD_BYTES, INBOX_BYTES // len(theirs)):
                raise Ignored("relay_crowded")
        elif self.spec.graph != "declared" or had > CARD_BYTES:
            raise Ignored("relay_stranger")
        else:
            if self._had[to, ""] + size > CARDS_BYTES:
                raise Ignored("relay_stranger")
            self._had[to, ""] += size
        self._had[to, sender] = had

    # -------------------------------------------------------------- neighbours

    def changed(self, now: float) -> None:
        """Note that somebody came or went."""
        if self.is_open(now) and self.due == math.inf:
            self.due = now + SOON_S + PER_AGENT_S * len(self._graph)

    def placed(self, agent: str, now: float) -> None:
        """Note that a context came: a place that is new, or gone, changes who is near.

        An agent that moves keeps its neighbours until the next call, since beliefs converge on
        a graph that stays.
        """
        if agent in self._places:
            placed = self.sessions.place(agent) is not None
            if placed != (self._places[agent] is not None):
                self.changed(now)

    def refresh(self) -> list[Send]:
        """Draw the graph again; return what goes to those whose neighbours changed."""
        self.due = math.inf
        self._places = {a: self.sessions.place(a) for a in self.sessions.present_ids()}
        old, self._graph = self._graph, self._drawn()
        # Who is gone may be back in this call, and its neighbours go on writing to it.
        gone = {a: met for a, met in self._met.items() if self.sessions.has_place(a)}
        self._met = gone | {a: self._met_by(a, peers) for a, peers in self._graph.items()}
        return [
            effect
            for agent, peers in self._graph.items()
            if peers != old.get(agent)
            for effect in self.neighbours_of(agent)
        ]

    def _met_by(self, agent: str, peers: Iterable[str]) -> dict[str, None]:
        """Return whom an agent has met, the newest first, and not all for ever."""
        met = dict.fromkeys(peers) | self._met.get(agent, {})
        return dict(itertools.islice(met.items(), 2 * MAX_NEIGHBOURS))

    def _drawn(self) -> Graph:
        match self.spec.graph:
            case "near":
                return near(self._places, self.spec.neighbours)
            case "radius":
                return within(self._places, self.spec.radius_km)
            case _:
                # The devices know.
                return {agent: {} for agent in self._places}

    def neighbours_of(self, agent: str) -> list[Send]:
        """Return the neighbours of an agent, as far as the graph has it."""
        peers = self._graph.get(agent)
        return [] if peers is None else [Send(agent, Neighbours(run=self.run, peers=peers))]


_Pair = tuple[float, int, int]


def near(places: Mapping[str, Place | None], neighbours: int) -> Graph:
    """Return a connected graph of the nearest.

    An edge joins two agents if one is among the `neighbours` nearest of the other, the
    shortest first, up to 2 x `neighbours` each. Agents without a place are next to
    `neighbours` / 2 on either side in the order of ids. What is in pieces then is joined
    where it is nearest.

    Args:
        places: x and y of each agent, in any unit; None if it is not known.
        neighbours: k, at least 1.
    """
    ids, at = _table(places)
    web = _Web(at, cap=2 * neighbours)
    placed, unplaced = np.flatnonzero(~np.isnan(at[:, 0])), np.flatnonzero(np.isnan(at[:, 0]))
    groups = _blocks(at, placed)
    for block in groups:
        web.add(_nearest_pairs(at, block, block, neighbours))
        web.join(block)
    if len(unplaced):
        web.add(_ring(unplaced, max(1, neighbours // 2)))
        groups.append(unplaced)
    for one, other in itertools.pairwise(groups):
        web.link(one, other)
    return web.named(ids)


def within(places: Mapping[str, Place | None], radius: float) -> Graph:
    """Return who is within a radius, the nearest first up to `MAX_NEIGHBOURS` each.

    An agent without a place has no neighbours, and the graph may be in pieces.
    """
    ids, at = _table(places)
    web = _Web(at, cap=MAX_NEIGHBOURS)
    placed = np.flatnonzero(~np.isnan(at[:, 0]))
    pairs: set[_Pair] = set()
    for start in range(0, len(placed), BLOCK):
        some = placed[start : start + BLOCK]
        pairs |= _nearest_pairs(at, some, placed, MAX_NEIGHBOURS, radius)
    web.add(pairs)
    return web.named(ids)


@dataclass(slots=True)
class _Web:
    """A graph in the making over the rows of `at`.

    Attributes:
        at: float64[N, 2], NaN where no place is known.
        cap: Most neighbours of one agent.
    """

    at: npt.NDArray[np.float64]
    cap: int
    _edges: list[dict[int, float]] = field(init=False)

    def __post_init__(self) -> None:
        self._edges = [{} for _ in self.at]

    def add(self, pairs: Iterable[_Pair]) -> None:
        """Add edges from the shortest on while both ends have room."""
        for far, a, b in sorted(pairs):
            if len(self._edges[a]) < self.cap and len(self._edges[b]) < self.cap:
                self._edges[a][b] = self._edges[b][a] = far

    def join(self, members: npt.NDArray[np.intp]) -> None:
        """Join the pieces of these agents where they are nearest, the smallest first.

        A piece of `_nearest_pairs` always has room for two edges more: its shortest edge
        is the choice of both ends. Two pieces that are joined keep that.
        """
        pieces = self._pieces(members)
        while len(pieces) > 1:
            pieces.sort(key=lambda piece: (len(piece), int(piece[0])))
            smallest = pieces.pop(0)
            met = self.link(smallest, np.concatenate(pieces))
            index = next(i for i, piece in enumerate(pieces) if met in piece)
            pieces[index] = np.sort(np.concatenate((pieces[index], smallest)))

    def link(self, ones: npt.NDArray[np.intp], others: npt.NDArray[np.intp]) -> int:
        """Join two groups where they are nearest; return the end among `others`."""
        mine, theirs = self._with_room(ones), self._with_room(others)
        far = _distances(self.at, mine, theirs)
        # Where no place is known any pair will do: the first.
        far = np.where(np.isnan(far), np.inf, far)
        a, b = np.unravel_index(int(np.argmin(far)), far.shape)
        one, other = int(mine[a]), int(theirs[b])
        self._edges[one][other] = self._edges[other][one] = float(far[a, b])
        return other

    def _with_room(self, group: npt.NDArray[np.intp]) -> npt.NDArray[np.intp]:
        """Return who may have one more neighbour; of a full ring of k = 1 everybody."""
        room = [one for one in group.tolist() if len(self._edges[one]) < self.cap]
        return np.array(room) if room else group

    def _pieces(self, members: npt.NDArray[np.intp]) -> list[npt.NDArray[np.intp]]:
        seen: set[int] = set()
        pieces: list[npt.NDArray[np.intp]] = []
        for first in members.tolist():
            if first in seen:
                continue
            piece, ahead = [], [first]
            seen.add(first)
            while ahead:
                one = ahead.pop()
                piece.append(one)
                fresh = [other for other in self._edges[one] if other not in seen]
                seen.update(fresh)
                ahead += fresh
            pieces.append(np.array(sorted(piece)))
        return pieces

    def named(self, ids: list[str]) -> Graph:
        """Return the graph by ids; unknown distances are the usual one."""
        known = [far for edges in self._edges for far in edges.values() if math.isfinite(far)]
        usual = float(np.median(known)) if known else USUAL
        return {
            ids[one]: {
                ids[other]: far if math.isfinite(far) else usual
                for other, far in sorted(edges.items())
            }
            for one, edges in enumerate(self._edges)
        }


def _table(places: Mapping[str, Place | None]) -> tuple[list[str], npt.NDArray[np.float64]]:
    """Return the ids in order and float64[N, 2], NaN where no place is known."""
    ids = sorted(places)
    at = np.array([places[one] or (math.nan, math.nan) for one in ids], np.float64)
    return ids, at.reshape(-1, 2)


def _nearest_pairs(
    at: npt.NDArray[np.float64],
    ones: npt.NDArray[np.intp],
    others: npt.NDArray[np.intp],
    count: int,
    radius: float = math.inf,
) -> set[_Pair]:
    """Return (distance, a, b) with a < b of the nearest others of each; ties by position."""
    far = _distances(at, ones, others)
    pairs: set[_Pair] = set()
    for row, order in enumerate(np.argsort(far, axis=1, kind="stable")[:, : count + 1]):
        one = int(ones[row])
        nearest = [column for column in order.tolist() if others[column] != one][:count]
        for column in nearest:
            if far[row, column] <= radius:
                pairs.add((float(far[row, column]), *_ordered(one, int(others[column]))))
    return pairs


def _ring(members: npt.NDArray[np.intp], side: int) -> set[_Pair]:
    """Return the pairs of each with the next `side` in order, the last with the first."""
    pairs: set[_Pair] = set()
    for position, one in enumerate(members):
        for step in range(1, min(side, len(members) - 1) + 1):
            other = members[(position + step) % len(members)]
            pairs.add((math.inf, *_ordered(int(one), int(other))))
    return pairs


def _ordered(one: int, other: int) -> tuple[int, int]:
    return (one, other) if one < other else (other, one)


def _blocks(
    at: npt.NDArray[np.float64], members: npt.NDArray[np.intp]
) -> list[npt.NDArray[np.intp]]:
    """Return the members in blocks of at most `BLOCK`, halved along the longer side."""
    if len(members) <= BLOCK:
        return [members] if len(members) else []
    spread = np.ptp(at[members], axis=0)
    order = members[np.argsort(at[members, int(np.argmax(spread))], kind="stable")]
    half = len(order) // 2
    return _blocks(at, np.sort(order[:half])) + _blocks(at, np.sort(order[half:]))


def _distances(
    at: npt.NDArray[np.float64], ones: npt.NDArray[np.intp], others: npt.NDArray[np.intp]
) -> npt.NDArray[np.float64]:
    """Return float64[len(ones), len(others)]; the same in both directions."""
    away = at[ones, None, :] - at[None, others, :]
    return np.asarray(np.hypot(away[..., 0], away[..., 1]))
