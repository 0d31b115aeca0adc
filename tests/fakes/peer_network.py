"""Nodes on a network that loses, delays, reorders and duplicates; time is simulated."""

import heapq
import math
import sqlite3
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import msgspec
import numpy as np

from fedagent_agent.books import FILE
from fedagent_agent.peers.core.channel import SlotSettings
from fedagent_agent.peers.core.node import BpUcbNode, SlotPhase
from fedagent_agent.peers.core.records import SlotRecord
from fedagent_coordinator.policies.base import FloatArray
from fedagent_coordinator.policies.sets.beliefs import Graph, k_nearest
from fedagent_protocol.peers import Envelope

Cut = Callable[[float, str, str], bool]
Distances = dict[str, dict[str, float]]
RUN = "ab" * 16
EXACT = SlotSettings(
    tolerance=1e-12,
    max_sweeps=10_000,
    beliefs_s=100.0,
    gossip_s=100.0,
    max_envelopes=60_000,
    life_s=1e3,
)


@dataclass
class Faults:
    """Chances that an envelope is lost and comes twice, its delay, and whether nothing passes."""

    loss: float = 0.0
    twice: float = 0.0
    min_s: float = 0.002
    max_s: float = 0.01
    cut: Cut = lambda now, sender, receiver: False


@dataclass
class PeerNetwork:
    """Nodes by id, and the envelopes between them: `sent` by sender, `watch` sees each."""

    nodes: dict[str, BpUcbNode]
    seed: int = 1
    faults: Faults = field(default_factory=Faults)
    dead: set[str] = field(default_factory=set)
    now: float = 0.0
    sent: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    watch: Callable[[str, Envelope], None] = lambda sender, envelope: None
    _bag: list[tuple[float, int, str, str, Envelope]] = field(default_factory=list)
    _number: "count[int]" = field(default_factory=count)
    _due: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)

    @property
    def alive(self) -> list[str]:
        return [name for name in self.nodes if name not in self.dead]

    @property
    def living(self) -> list[BpUcbNode]:
        return [self.nodes[name] for name in self.alive]

    def begin(self, slot: int, opinions: FloatArray) -> None:
        """Begin a slot at everybody alive; NaN: no opinion. Who was chosen trained."""
        for (name, node), r in zip(self.nodes.items(), opinions.tolist(), strict=True):
            if name not in self.dead:
                opinion = None if math.isnan(r) else r
                node.begin(slot, opinion, self.now, trained=bool(node.chosen))

    def begin_in_turn(self, slot: int, opinions: FloatArray, starts: FloatArray) -> None:
        """Begin a slot at each node after `starts` seconds, float64[N], in any order."""
        trained = {name: bool(node.chosen) for name, node in self.nodes.items()}
        began, names_ = self.now, list(self.nodes)
        for n in np.argsort(starts, kind="stable").tolist():
            self.run(max(0.0, began + float(starts[n]) - self.now))
            node = self.nodes[names_[n]]
            node.begin(slot, float(opinions[n]), self.now, trained=trained[node.me])
            self._tick({node.me})

    def decide(self, limit_s: float = 20.0) -> set[str]:
        assert self.run(limit_s, lambda: all(n.phase is SlotPhase.DECIDED for n in self.living))
        return {node.me for node in self.living if node.chosen}

    def play(self, slot: int, opinions: FloatArray, limit_s: float = 20.0) -> set[str]:
        self.begin(slot, opinions)
        return self.decide(limit_s)

    def run(self, limit_s: float, until: Callable[[], bool] = lambda: False) -> bool:
        """Let time pass until `until` holds, or for `limit_s`; return whether it does."""
        end = self.now + limit_s
        awake = set(self.alive)
        while True:
            self._tick(awake)
            if until():
                return True
            at = min([self._bag[0][0]] if self._bag else [], default=math.inf)
            at = min(at, *(due for name, due in self._due.items() if name not in self.dead))
            if at > end:
                self.now = end
                self._tick(set(self.alive))
                return until()
            self.now = max(self.now, at)
            awake = self._deliver()
            awake |= {name for name, due in self._due.items() if due <= self.now}

    def _tick(self, awake: set[str]) -> None:
        for name in sorted(awake - self.dead):
            node = self.nodes[name]
            for peer, envelope in node.tick(self.now, self.rng):
                self._send(name, peer, envelope)
            self._due[name] = node.due

    def _send(self, sender: str, receiver: str, envelope: Envelope) -> None:
        self.sent[sender] += 1
        self.watch(sender, envelope)
        faults = self.faults
        if faults.cut(self.now, sender, receiver) or self.rng.random() < faults.loss:
            return
        for _ in range(2 if self.rng.random() < faults.twice else 1):
            at = self.now + self.rng.uniform(faults.min_s, faults.max_s)
            heapq.heappush(self._bag, (at, next(self._number), sender, receiver, envelope))

    def _deliver(self) -> set[str]:
        woken = set()
        while self._bag and self._bag[0][0] <= self.now:
            _, _, sender, receiver, envelope = heapq.heappop(self._bag)
            if receiver not in self.dead:
                self.nodes[receiver].receive(sender, envelope, self.now)
                woken.add(receiver)
        return woken


def nodes_of(
    around: Distances, settings: SlotSettings | None = None, *, of: type[BpUcbNode] = BpUcbNode
) -> dict[str, BpUcbNode]:
    bounds = settings or SlotSettings()
    return {name: of(name, near, bounds, run=RUN) for name, near in around.items()}


def names(total: int) -> list[str]:
    return [f"{n:032x}" for n in range(total)]


def near_graph(rng: np.random.Generator, total: int, k: int = 3) -> Graph:
    """Random places, joined with the k nearest, and in one piece: pieces are chained."""
    graph = k_nearest("test", rng.random((total, 2)), k)
    piece = np.arange(total)
    left, right, distance = graph.left.tolist(), graph.right.tolist(), graph.distance.tolist()
    for a, b in zip(left, right, strict=True):
        piece[piece == piece[b]] = piece[a]
    for n in range(1, total):
        if piece[n] != piece[0]:
            left, right, distance = [*left, 0], [*right, n], [*distance, float(rng.random())]
            piece[piece == piece[n]] = piece[0]
    return Graph(
        total, np.array(left, dtype=np.int64), np.array(right, dtype=np.int64), np.array(distance)
    )


def distances(graph: Graph) -> Distances:
    ids = names(graph.nodes)
    found: Distances = {name: {} for name in ids}
    for a, b, d in zip(graph.left, graph.right, graph.distance, strict=True):
        found[ids[a]][ids[b]] = found[ids[b]][ids[a]] = float(d)
    return found


def pieces(around: Distances, among: Iterable[str]) -> list[set[str]]:
    left, found = set(among), []
    while left:
        part, edge = set(), [min(left)]
        while edge:
            name = edge.pop()
            if name in left:
                left.discard(name)
                part.add(name)
                edge.extend(around[name])
        found.append(part)
    return found


def read_slots(directory: Path) -> list[SlotRecord]:
    """Return the slots that a device keeps, oldest first."""
    with closing(sqlite3.connect(f"file:{directory / FILE}?mode=ro", uri=True)) as db:
        rows = db.execute("SELECT record FROM slots ORDER BY rowid").fetchall()
    return [msgspec.json.decode(record, type=SlotRecord) for (record,) in rows]
