"""`density`: greedy by value per cost, then bounded local search (ALGORITHMS section 2).

The search visits one edge at a time. For every set of at most two of its pairs
that could leave, it finds the one or two pairs that could come in instead, taken
from idle clients or away from other edges, and makes the best such exchange while
the value rises. Each visit is a few array operations over a bounded number of
candidates, so that large instances stay near linear.
"""

from dataclasses import dataclass
from itertools import combinations

import numpy as np

from ..errors import ParameterError
from ..policies.base import FloatArray, IntArray
from .base import Assignment, Solution

_GAIN = 1e-9
"""Smallest rise worth a move: rounding errors must not make the search go in circles."""
_CANDIDATES = 64
_LEAVERS = 12
"""Per edge: how many pairs may come in or go out in one visit, the most promising."""


@dataclass(frozen=True, slots=True)
class _Exchange:
    """Pairs that leave an edge and pairs that come to it."""

    gain: float
    leave: tuple[int, ...]
    enter: tuple[int, ...]


class DensitySolver:
    """Greedy by density with local search.

    Args:
        max_moves: Moves per pair that may be chosen; bounds the search.
    """

    def __init__(self, *, max_moves: int = 4) -> None:
        if max_moves < 0:
            raise ParameterError("density", "max_moves", f"is {max_moves}, must be >= 0")
        self._max_moves = max_moves

    def solve(self, problem: Assignment) -> Solution:
        """Return a feasible solution: at least the greedy one and the best pair per edge."""
        fits = (problem.value > 0) & (problem.cost <= problem.budget[problem.edge])
        rows = np.flatnonzero(fits)
        cost = np.maximum(problem.cost[rows], 1)
        density = problem.value[rows] / cost
        rows = rows[np.lexsort((-problem.value[rows], -density))]
        search = _Search(problem, rows)
        search.fill(rows)
        search.improve(self._max_moves * max(len(search.at), 1))
        singles = _Search(problem, rows)
        singles.fill(_best_per_edge(problem, rows))
        best = max(search, singles, key=_Search.total)
        return Solution(pairs=np.sort(best.pairs()), value=best.total())


class _Search:
    """A feasible solution under change."""

    def __init__(self, problem: Assignment, rows: IntArray) -> None:
        self._value = problem.value
        self._cost = problem.cost
        self._client = problem.client
        self._edge = problem.edge
        self._left: list[int] = problem.budget.tolist()
        self._rows = rows
        self._by_edge: dict[int, IntArray] = {}
        self._loss = np.zeros(int(problem.client.max(initial=-1)) + 1)
        self._member = np.zeros(len(problem.value), dtype=np.bool_)
        self.at: dict[int, int] = {}
        self._at_edge: dict[int, list[int]] = {}

    def total(self) -> float:
        """Return the value of the solution."""
        return float(self._value[self.pairs()].sum())

    def pairs(self) -> IntArray:
        """Return the chosen rows, unordered."""
        return np.fromiter(self.at.values(), dtype=np.int64, count=len(self.at))

    def fill(self, order: IntArray) -> None:
        """Take rows in this order while they fit."""
        rows = zip(
            order.tolist(),
            self._client[order].tolist(),
            self._edge[order].tolist(),
            self._cost[order].tolist(),
            strict=True,
        )
        for row, client, edge, cost in rows:
            if cost <= self._left[edge] and client not in self.at:
                self._add(row)

    def improve(self, moves: int) -> None:
        """Exchange pairs edge by edge until no edge gains, `moves` times at most."""
        edge_of = self._edge[self._rows]
        ordered = self._rows[np.argsort(edge_of, kind="stable")]
        edges, counts = np.unique(edge_of, return_counts=True)
        pools = np.split(ordered, np.cumsum(counts)[:-1]) if len(edges) else []
        self._by_edge = dict(zip(edges.tolist(), pools, strict=True))
        waiting = dict.fromkeys(self._by_edge)
        while waiting and moves > 0:
            edge = next(iter(waiting))
            move = self._best_exchange(edge)
            if move is None:
                del waiting[edge]
                continue
            moves -= 1
            waiting.update(dict.fromkeys(self._apply(move)))

    def _best_exchange(self, edge: int) -> _Exchange | None:
        """Return the exchange at `edge` that raises the value most, if any does."""
        pool = self._by_edge[edge]
        pool = pool[~self._member[pool]]
        net = self._value[pool] - self._loss[self._client[pool]]
        keep = np.flatnonzero(net > _GAIN)[:_CANDIDATES]
        if not len(keep):
            return None
        keep = keep[np.argsort(self._cost[pool[keep]], kind="stable")]
        pool, net = pool[keep], net[keep]
        cost = self._cost[pool]
        best: _Exchange | None = None
        for leave in self._leavers(edge):
            freed = self._left[edge] + int(self._cost[list(leave)].sum())
            lost = float(self._value[list(leave)].sum())
            gain, enter = _best_entry(cost, net, freed)
            if gain - lost > (best.gain if best else _GAIN):
                best = _Exchange(gain - lost, leave, tuple(int(pool[i]) for i in enter))
        return best

    def _leavers(self, edge: int) -> list[tuple[int, ...]]:
        """Return the sets of at most two pairs that may leave `edge`."""
        members = self._at_edge.get(edge, [])
        if len(members) > _LEAVERS:
            members = sorted(members, key=lambda r: self._value[r] / max(self._cost[r], 1))
            members = members[:_LEAVERS]
        return [(), *((m,) for m in members), *combinations(members, 2)]

    def _apply(self, move: _Exchange) -> list[int]:
        """Make the exchange; return the edges that may gain from it."""
        touched: list[int] = []
        for row in move.leave:
            self._remove(row)
        for row in move.enter:
            elsewhere = self.at.get(int(self._client[row]))
            if elsewhere is not None:
                touched.append(int(self._edge[elsewhere]))
                self._remove(elsewhere)
            self._add(row)
            touched.append(int(self._edge[row]))
        idle = {int(self._client[row]) for row in move.leave}
        if idle:  # whoever left may fit elsewhere
            touched.extend(self._by_edge)
        return touched

    def _add(self, row: int) -> None:
        client, edge = int(self._client[row]), int(self._edge[row])
        self._left[edge] -= int(self._cost[row])
        self._member[row] = True
        self._loss[client] = self._value[row]
        self.at[client] = row
        self._at_edge.setdefault(edge, []).append(row)

    def _remove(self, row: int) -> None:
        client, edge = int(self._client[row]), int(self._edge[row])
        self._left[edge] += int(self._cost[row])
        self._member[row] = False
        self._loss[client] = 0.0
        del self.at[client]
        self._at_edge[edge].remove(row)


def _best_entry(cost: IntArray, net: FloatArray, room: int) -> tuple[float, tuple[int, ...]]:
    """Return the best one or two candidates that fit into `room` together.

    Args:
        cost: int64[K], ascending.
        net: float64[K], positive.
        room: Micro-credits.
    """
    k = int(np.searchsorted(cost, room, side="right"))
    if k == 0:
        return 0.0, ()
    cost, net = cost[:k], net[:k]
    top = np.maximum.accumulate(net)
    partners = np.minimum(np.searchsorted(cost, room - cost, side="right"), np.arange(k))
    second = np.where(partners > 0, top[partners - 1], 0.0)
    first = int(np.argmax(net + second))
    if partners[first] == 0:
        return float(net[first]), (first,)
    other = int(np.argmax(net[: partners[first]]))
    return float(net[first] + net[other]), (first, other)


def _best_per_edge(problem: Assignment, rows: IntArray) -> IntArray:
    """Return the most valuable row of each edge, best first."""
    order = rows[np.argsort(-problem.value[rows], kind="stable")]
    _, first = np.unique(problem.edge[order], return_index=True)
    return order[np.sort(first)]
