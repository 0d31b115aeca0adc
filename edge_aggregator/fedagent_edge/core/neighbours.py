"""Who talks with whom in democratized analytics, and what passes between them through the edge.

ALGORITHMS section 5. The edge draws a graph of its agents: the same agents and places give the same
one. It carries sealed envelopes while a call is open, and between neighbours: those that it has
named, or, where devices know theirs, who writes to each other. It cannot read them, bounds how much
each agent sends, and is sent, and keeps nothing.
"""

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from fedagent_node.effects import Effect, Received, Send
from fedagent_protocol import messages as m
from fedagent_task.recipe.spec import PeersSpec

from .effects import Ignored
from .sessions import FARTHEST, AgentSessions

Place = tuple[float, float]
Graph = dict[str, dict[str, float]]
"""Neighbours of each agent, and how far they are."""

USUAL = 1.0
"""Distance where no place is known: all are alike, and only ratios count."""
BLOCK = 512
"""More agents than this are halved by place first: distances of all pairs cost too much."""

INBOX_S = 8.0
INBOX_BYTES = 4 * 1024 * 1024
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
PER_AGENT_S = 5e-4
"""How long a change of the graph waits for others; longer where many have to be compared."""


@dataclass(slots=True)
class Neighbourhood:
    """In a call, names each agent its neighbours, and carries envelopes between them."""

    sessions: AgentSessions
    counters: Counter[str]
    spec: PeersSpec = field(default_factory=PeersSpec)
    run: str = ""
    _had: Counter[tuple[str, str]] = field(default_factory=Counter)
    """What each receiver had of each sender until the next time it is counted from nothing."""
    _had_until: float = -math.inf
    _called_until: float = -math.inf
    _met: dict[str, dict[str, None]] = field(default_factory=dict)
    """Whom each was named in this call: a slot that has begun may go on with its neighbours.

    Where devices know their neighbours: whom each has written to in this run.
    """
    _graph: Graph = field(default_factory=dict)

    def begin(self, run: str, spec: PeersSpec) -> None:
        """Begin with another run or task, and without anybody's neighbours."""
        self.run, self.spec = run, spec
        self._graph, self._met, self._called_until = {}, {}, -math.inf

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

    def send(self, event: Received, envelope: m.PeerSend, now: float) -> list[Effect]:
        """Hand on what one agent says to another."""
        if now >= self._had_until:
            self._had, self._had_until = Counter(), now + INBOX_S
        self._check(event.sender, envelope, now)
        self.counters["relayed"] += 1
        return [Send(envelope.to, m.PeerDeliver(sender=event.sender, body=envelope.body))]

    def _check(self, sender: str, envelope: m.PeerSend, now: float) -> None:
        """Note what is sent, or raise `Ignored` where it is too much, or for nobody."""
        to, size = envelope.to, len(envelope.body) + OVERHEAD_BYTES
        if not self.is_open(now):
            raise Ignored("relay_closed")
        if to == sender or not self.sessions.is_present(to):
            raise Ignored("relay_absent")
        if self.spec.graph == "declared" and to not in self._met.get(sender, ()):
            self._met[sender] = self._met_by(sender, (to,))
        theirs = self._met.get(to, {})
        had = self._had[to, sender] + size
        if sender in theirs:
            if had > max(m.MAX_PEER_BYTES + OVERHEAD_BYTES, INBOX_BYTES // len(theirs)):
                raise Ignored("relay_crowded")
        elif self.spec.graph != "declared" or had > CARD_BYTES:
            raise Ignored("relay_stranger")
        else:
            if self._had[to, ""] + size > CARDS_BYTES:
                raise Ignored("relay_stranger")
            self._had[to, ""] += size
        self._had[to, sender] = had

    # -------------------------------------------------------------- neighbours

    @property
    def wait_s(self) -> float:
        """How long a change of the graph waits for others: agents come in crowds."""
        return SOON_S + PER_AGENT_S * len(self._graph)

    def refresh(self) -> list[Send]:
        """Draw the graph again; return what goes to those whose neighbours changed.

        An agent that moves keeps its neighbours until then, since beliefs converge on
        a graph that stays.
        """
        old, self._graph = self._graph, self._drawn()
        # Who is gone may be back in this call, and its neighbours go on writing to it.
        gone = {a: met for a, met in self._met.items() if a in self.sessions.by_id}
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
        return dict(itertools.islice(met.items(), 2 * m.MAX_NEIGHBOURS))

    def _drawn(self) -> Graph:
        places = {agent: self.sessions.place(agent) for agent in self.sessions.present_ids()}
        match self.spec.graph:
            case "near":
                return near(places, self.spec.neighbours)
            case "radius":
                return within(places, self.spec.radius_km)
        # The devices know.
        return {agent: {} for agent in places}

    def neighbours_of(self, agent: str) -> list[Send]:
        """Return the neighbours of an agent, as far as the graph has it."""
        peers = self._graph.get(agent)
        return [] if peers is None else [Send(agent, m.Neighbours(run=self.run, peers=peers))]


_Pair = tuple[float, int, int]
"""(distance, a, b) with a < b, by row."""
Rows = npt.NDArray[np.intp]
Points = npt.NDArray[np.float64]
"""float64[N, 2]"""


def near(places: Mapping[str, Place | None], neighbours: int) -> Graph:
    """Return a connected graph of the nearest.

    It holds a tree of short edges, and joins two agents if one is among the `neighbours` nearest
    of the other, the shortest first, up to 2 x `neighbours` each. Agents without a place are on a
    ring in the order of ids, far from all others.

    Args:
        places: x and y of each agent, in any unit; None if it is not known.
        neighbours: k, at least 1.
    """
    ids, at = _table(places)
    web = _Web(len(ids), cap=2 * neighbours)
    drawn = _ring(at)
    blocks = _blocks(drawn, np.arange(len(ids)))
    leaf: list[int] = []
    nearest: list[set[_Pair]] = []
    for block in blocks:
        # It has a neighbour from the block before, and room for one of this.
        joined = np.sort(np.concatenate((np.array(leaf, np.intp), block)))
        nearest.append(_nearest_pairs(drawn, joined, joined, neighbours))
        leaf = [web.join(nearest[-1], drawn, joined)]
    for pairs in nearest:
        web.add(pairs)
    return web.named(ids, at)


def within(places: Mapping[str, Place | None], radius: float) -> Graph:
    """Return who is within a radius, the nearest first up to `MAX_NEIGHBOURS` each.

    An agent without a place has no neighbours, and the graph may be in pieces.
    """
    ids, at = _table(places)
    web = _Web(len(ids), cap=m.MAX_NEIGHBOURS)
    placed = np.flatnonzero(~np.isnan(at[:, 0]))
    pairs: set[_Pair] = set()
    for start in range(0, len(placed), BLOCK):
        some = placed[start : start + BLOCK]
        pairs |= _nearest_pairs(at, some, placed, m.MAX_NEIGHBOURS, radius)
    web.add(pairs)
    return web.named(ids, at)


class _Web:
    """A graph in the making over rows, with at most `cap` neighbours for each."""

    def __init__(self, count: int, cap: int) -> None:
        self._cap = cap
        self._edges: list[set[int]] = [set() for _ in range(count)]

    def add(self, pairs: Iterable[_Pair]) -> None:
        """Add edges from the shortest on while both ends have room."""
        for _, a, b in sorted(pairs):
            if len(self._edges[a]) < self._cap and len(self._edges[b]) < self._cap:
                self._edges[a].add(b)
                self._edges[b].add(a)

    def join(self, nearest: set[_Pair], at: Points, members: Rows) -> int:
        """Join all members by a tree, the nearest first; return one of its leaves.

        Any two pieces can be joined while each edge joins two: a tree has leaves, with room.
        """
        piece = {row: [row] for row in members.tolist()}
        for far, a, b in itertools.chain(sorted(nearest), _all_pairs(at, members)):
            if len(piece[a]) == len(members):
                break
            if piece[a] is not piece[b]:
                before = len(self._edges[a])
                self.add([(far, a, b)])
                if len(self._edges[a]) > before:
                    piece[a] += piece[b]
                    piece.update(dict.fromkeys(piece[b], piece[a]))
        return int(min(members.tolist(), key=lambda row: len(self._edges[row])))

    def named(self, ids: list[str], at: Points) -> Graph:
        """Return the graph by ids; distances where no place is known are the usual one."""
        far = [
            {b: float(np.hypot(*(at[a] - at[b]))) for b in sorted(edges)}
            for a, edges in enumerate(self._edges)
        ]
        known = [one for row in far for one in row.values() if math.isfinite(one)]
        usual = float(np.median(known)) if known else USUAL
        return {
            ids[a]: {ids[b]: one if math.isfinite(one) else usual for b, one in row.items()}
            for a, row in enumerate(far)
        }


def _table(places: Mapping[str, Place | None]) -> tuple[list[str], Points]:
    ids = sorted(places)
    at = np.array([places[one] or (math.nan, math.nan) for one in ids], np.float64)
    return ids, at.reshape(-1, 2)


def _ring(at: Points) -> Points:
    """Return the places with those that are not known on a ring beyond all others."""
    unknown = np.flatnonzero(np.isnan(at[:, 0]))
    angles = np.linspace(0, 2 * np.pi, len(unknown), endpoint=False)
    drawn = at.copy()
    drawn[unknown, 0] = FARTHEST * (4 + np.cos(angles))
    drawn[unknown, 1] = FARTHEST * np.sin(angles)
    return drawn


def _nearest_pairs(
    at: Points, ones: Rows, others: Rows, count: int, radius: float = math.inf
) -> set[_Pair]:
    """Return the nearest others of each; ties by position."""
    far = _distances(at, ones, others)
    pairs: set[_Pair] = set()
    for row, order in enumerate(np.argsort(far, axis=1, kind="stable")[:, : count + 1]):
        one = int(ones[row])
        nearest = [column for column in order.tolist() if others[column] != one][:count]
        for column in nearest:
            if far[row, column] <= radius:
                other = int(others[column])
                pairs.add((float(far[row, column]), min(one, other), max(one, other)))
    return pairs


def _all_pairs(at: Points, members: Rows) -> Iterator[_Pair]:
    ones, others = np.triu_indices(len(members), 1)
    far = _distances(at, members, members)[ones, others]
    for pair in np.argsort(far, kind="stable"):
        yield float(far[pair]), int(members[ones[pair]]), int(members[others[pair]])


def _blocks(at: Points, members: Rows) -> list[Rows]:
    """Return the members in blocks of at most `BLOCK`, halved along the longer side."""
    if len(members) <= BLOCK:
        return [members] if len(members) else []
    spread = np.ptp(at[members], axis=0)
    order = members[np.argsort(at[members, int(np.argmax(spread))], kind="stable")]
    half = len(order) // 2
    return _blocks(at, np.sort(order[:half])) + _blocks(at, np.sort(order[half:]))


def _distances(at: Points, ones: Rows, others: Rows) -> npt.NDArray[np.float64]:
    """Return float64[len(ones), len(others)]; the same in both directions."""
    away = at[ones, None, :] - at[None, others, :]
    return np.asarray(np.hypot(away[..., 0], away[..., 1]))
