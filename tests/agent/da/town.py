"""Agents in a town whose post loses, delays, reorders and duplicates; time is simulated."""

import heapq
import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import count
from typing import Generic, Protocol, TypeVar

import numpy as np

from fedagent_coordinator.policies.neighbours import Graph, k_nearest

N = TypeVar("N")
Cut = Callable[[float, str, str], bool]


class Node(Protocol[N]):
    """What the town needs of an agent's part."""

    def receive(self, peer: str, note: N, now: float) -> None: ...

    def tick(self, now: float, rng: np.random.Generator) -> list[tuple[str, N]]: ...

    @property
    def due(self) -> float: ...


@dataclass
class Post:
    """What happens to a note under way.

    Attributes:
        loss, twice: Chances that a note is lost, and that it comes twice.
        min_s, max_s: Delay, uniform; notes overtake each other.
        cut: (now, sender, receiver) -> whether nothing passes.
    """

    loss: float = 0.0
    twice: float = 0.0
    min_s: float = 0.002
    max_s: float = 0.01
    cut: Cut = lambda now, sender, receiver: False


@dataclass
class Town(Generic[N]):
    """Nodes by id, and the notes between them."""

    nodes: dict[str, Node[N]]
    rng: np.random.Generator
    post: Post = field(default_factory=Post)
    dead: set[str] = field(default_factory=set)
    now: float = 0.0
    sent: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    watch: Callable[[str, str, N], None] | None = None
    _bag: list[tuple[float, int, str, str, N]] = field(default_factory=list)
    _number: "count[int]" = field(default_factory=count)
    _due: dict[str, float] = field(default_factory=dict)

    def run(self, until: Callable[[], bool], limit_s: float) -> bool:
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

    @property
    def alive(self) -> list[str]:
        return [name for name in self.nodes if name not in self.dead]

    def _tick(self, awake: set[str]) -> None:
        for name in sorted(awake - self.dead):
            node = self.nodes[name]
            for peer, note in node.tick(self.now, self.rng):
                self._send(name, peer, note)
            alarm: float = getattr(node, "done_at", math.inf)
            self._due[name] = min(node.due, alarm if alarm > self.now else math.inf)

    def _send(self, sender: str, receiver: str, note: N) -> None:
        self.sent[sender] += 1
        if self.watch is not None:
            self.watch(sender, receiver, note)
        if self.post.cut(self.now, sender, receiver) or self.rng.random() < self.post.loss:
            return
        for _ in range(2 if self.rng.random() < self.post.twice else 1):
            at = self.now + self.rng.uniform(self.post.min_s, self.post.max_s)
            heapq.heappush(self._bag, (at, next(self._number), sender, receiver, note))

    def _deliver(self) -> set[str]:
        """Hand out what has arrived; return to whom."""
        woken = set()
        while self._bag and self._bag[0][0] <= self.now:
            _, _, sender, receiver, note = heapq.heappop(self._bag)
            if receiver not in self.dead:
                self.nodes[receiver].receive(sender, note, self.now)
                woken.add(receiver)
        return woken


def names(total: int) -> list[str]:
    """Ids of agents; sorted like their numbers."""
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


def distances(graph: Graph) -> dict[str, dict[str, float]]:
    """Neighbours and how far they are, by agent."""
    ids = names(graph.nodes)
    found: dict[str, dict[str, float]] = {name: {} for name in ids}
    for a, b, d in zip(graph.left, graph.right, graph.distance, strict=True):
        found[ids[a]][ids[b]] = found[ids[b]][ids[a]] = float(d)
    return found


def pieces(around: dict[str, dict[str, float]], alive: Iterable[str]) -> list[set[str]]:
    """Connected parts of the living."""
    left, found = set(alive), []
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


def diameter(around: dict[str, dict[str, float]]) -> int:
    """Longest shortest path."""
    longest = 0
    for start in around:
        seen, ring, steps = {start}, {start}, 0
        while ring := {b for a in ring for b in around[a]} - seen:
            seen |= ring
            steps += 1
        longest = max(longest, steps)
    return longest
