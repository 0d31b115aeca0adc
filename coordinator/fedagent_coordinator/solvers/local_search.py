"""A feasible assignment under change: fill in an order, then exchange pairs.

An *entry*: at most two pairs leave an edge, one or two enter it, of clients that are idle or
taken away from another edge. A *crossing*: a client goes over to another edge, alone or in
exchange for one that comes back, and an idle client takes the room that this makes.
"""

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from fedagent_coordinator.policies.base import FloatArray, IndexArray, IntArray

from .base import AssignmentProblem

_GAIN = 1e-9
"""Smallest rise worth a move: rounding errors must not make the search go in circles."""
_CANDIDATES = 64
_POOL = 256
_LEAVERS = 8
"""Per edge and visit: how many pairs may come in, are looked at, or may go out; the most
promising."""
_BLOCK = 16_384


@dataclass(frozen=True, slots=True)
class _Move:
    """Rows that leave and rows that enter; a row's client frees its other row itself."""

    gain: float
    leave: tuple[int, ...]
    enter: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class _Pool:
    """The rows of an edge that are looked at, and what the problem says of them."""

    rows: IntArray
    client: IndexArray
    value: FloatArray
    cost: IntArray


@dataclass(frozen=True, slots=True)
class _Entrants:
    """Who could enter an edge, by rising cost; lists, which for so few are faster than arrays.

    `top[k]` is the greatest net value of the k + 1 cheapest, `most[k]` that of any two of them,
    `best_idle[k]` the most valuable idle row among the k cheapest idle ones.
    """

    rows: list[int]
    cost: list[int]
    net: list[float]
    top: list[float]
    most: list[float]
    idle_cost: list[int]
    best_idle: list[int]

    def idle(self, room: int) -> int:
        """Return the best idle row that costs at most `room`, or -1."""
        return self.best_idle[bisect_right(self.idle_cost, room)]


class LocalSearch:
    """One feasible solution."""

    def __init__(self, problem: AssignmentProblem) -> None:
        clients = int(problem.client.max(initial=-1)) + 1
        self._value = problem.value
        self._cost = problem.cost
        self._client = problem.client
        self._edge = problem.edge
        self._left = problem.budget.copy()
        self._at = np.full(clients, -1, dtype=np.int64)
        self._worth = np.zeros(clients)
        self._members: dict[int, list[int]] = {}
        self._pools: dict[int, _Pool] = {}
        self._found: dict[int, _Entrants] = {}

    def total(self) -> float:
        """Return the value of the solution."""
        return float(self._value[self.pairs()].sum())

    def pairs(self) -> IntArray:
        """Return the chosen rows, int64[S] ascending."""
        return np.sort(self._at[self._at >= 0])

    def fill(self, order: IntArray) -> None:
        """Take rows in this order while they fit; arrays sort out the others, block by block."""
        for start in range(0, len(order), _BLOCK):
            block = self.fitting(order[start : start + _BLOCK])
            columns = block, self._cost[block], self._edge[block], self._client[block]
            left, taken = self._left.tolist(), dict[int, int]()
            for row, cost, edge, client in zip(*(c.tolist() for c in columns), strict=True):
                if cost <= left[edge] and client not in taken:
                    left[edge] -= cost
                    taken[client] = row
                    self._members.setdefault(edge, []).append(row)
            self._left[:] = left
            clients, rows = (
                np.fromiter(ids, np.int64, len(taken)) for ids in (taken, taken.values())
            )
            self._at[clients], self._worth[clients] = rows, self._value[rows]

    def fitting(self, rows: IntArray) -> IntArray:
        """Return those of the rows whose client is idle, and whose edge can still pay for it."""
        rows = rows[self._cost[rows] <= self._left.max(initial=0)]  # mostly leaves few to look up
        rows = rows[self._cost[rows] <= self._left[self._edge[rows]]]
        return rows[self._at[self._client[rows]] < 0]

    def improve(self, rows: IntArray, visits: int) -> None:
        """Make the best move at one edge after the other until none gains, `visits` at most.

        `rows` have a positive value and fit their edge's budget, best candidates first.
        """
        edge_of = self._edge[rows]
        ordered = rows[np.argsort(edge_of, kind="stable")]
        counts = np.bincount(edge_of)
        ends = np.cumsum(counts).tolist()
        for edge in np.flatnonzero(counts).tolist():
            its = ordered[ends[edge] - counts[edge] : ends[edge]][:_POOL]
            self._pools[edge] = _Pool(its, self._client[its], self._value[its], self._cost[its])
        # Of single rows lists are read several times as fast as arrays.
        self._values, self._costs = self._value.tolist(), self._cost.tolist()
        self._clients, self._edges = self._client.tolist(), self._edge.tolist()
        client_of = self._client[rows]
        self._by_client: list[int] = rows[np.argsort(client_of, kind="stable")].tolist()
        counted = np.bincount(client_of, minlength=len(self._at))
        self._bounds = [0, *np.cumsum(counted).tolist()]
        waiting = dict.fromkeys(self._pools)
        for _ in range(visits):
            if not waiting:
                return
            edge = next(iter(waiting))
            move = self._best_entry(edge) or self._best_crossing(edge)
            if move is None:
                del waiting[edge]
            else:
                waiting.update(dict.fromkeys(self._apply(move)))

    def _entrants(self, edge: int) -> _Entrants:
        found = self._found.get(edge)
        if found is None:
            found = self._found[edge] = self._look(edge)
        return found

    def _look(self, edge: int) -> _Entrants:
        pool = self._pools[edge]
        at = self._at[pool.client]
        gains = pool.value - self._worth[pool.client]
        keep = ((at != pool.rows) & (gains > _GAIN)).nonzero()[0][:_CANDIDATES]
        keep = keep[pool.cost[keep].argsort(kind="stable")]
        rows, cost, net = pool.rows[keep].tolist(), pool.cost[keep].tolist(), gains[keep]
        # Of an idle client nothing is lost: its net value is its value.
        idle = (at[keep] < 0).nonzero()[0]
        before = np.concatenate(([0.0], np.maximum.accumulate(net[idle])[:-1]))[: len(idle)]
        better = np.where(net[idle] > before, np.arange(len(idle)), 0)
        best_idle = pool.rows[keep[idle[np.maximum.accumulate(better)]]].tolist()
        return _Entrants(
            rows=rows,
            cost=cost,
            net=net.tolist(),
            top=np.maximum.accumulate(net).tolist(),
            most=_greatest_two(net.tolist()),
            idle_cost=pool.cost[keep[idle]].tolist(),
            best_idle=[-1, *best_idle],
        )

    def _best_entry(self, edge: int) -> _Move | None:
        entrants = self._entrants(edge)
        best: _Move | None = None
        least, left = _GAIN, int(self._left[edge])
        if not entrants.top:
            return None
        most = entrants.most[-1]
        for leave, freed, lost in self._leaves(edge):
            if most - lost <= least:
                continue
            k = bisect_right(entrants.cost, left + freed)
            if k == 0 or entrants.most[k - 1] - lost <= least:
                continue
            gain, enter = _best_two(entrants.cost, entrants.net, entrants.top, left + freed)
            if gain - lost > least:
                least = gain - lost
                best = _Move(least, leave, tuple(entrants.rows[i] for i in enter))
        return best

    def _leaves(self, edge: int) -> Iterator[tuple[tuple[int, ...], int, float]]:
        """Yield nobody, each member and each two, with what that frees and loses."""
        yield (), 0, 0.0
        each = [(row, self._costs[row], self._values[row]) for row in self._leavers(edge)]
        for member, freed, lost in each:
            yield (member,), freed, lost
        for (one, freed, lost), (two, more, worse) in combinations(each, 2):
            yield (one, two), freed + more, lost + worse

    def _best_crossing(self, edge: int) -> _Move | None:
        here = self._entrants(edge)
        best: _Move | None = None
        for member in self._leavers(edge):
            for row in self._rows_of(self._clients[member]):
                other = self._edges[row]
                if other == edge:
                    continue
                there = self._entrants(other)
                for back in (None, *self._leavers(other)):
                    move = self._crossing(here, there, (member, row), back)
                    if move is not None and move.gain > (best.gain if best else _GAIN):
                        best = move
        return best

    def _crossing(
        self, here: _Entrants, there: _Entrants, over: tuple[int, int], back: int | None
    ) -> _Move | None:
        """Return what follows if `over[0]` becomes `over[1]` and `back`'s client returns."""
        member, row = over
        value, cost, client = self._values, self._costs, self._clients
        home, other = self._edges[member], self._edges[row]
        room_here = int(self._left[home]) + cost[member]
        room_there = int(self._left[other]) - cost[row]
        gain = value[row] - value[member]
        enter = [row]
        if back is not None:
            returned = self._row_at(client[back], home)
            if returned < 0:
                return None
            room_here -= cost[returned]
            room_there += cost[back]
            gain += value[returned] - value[back]
            enter.append(returned)
        if room_here < 0 or room_there < 0:
            return None
        extra, second = here.idle(room_here), there.idle(room_there)
        if extra >= 0 and second >= 0 and client[extra] == client[second]:
            if value[second] > value[extra]:
                extra, second = second, -1
            else:
                second = -1
        for idle in (extra, second):
            if idle >= 0:
                gain += value[idle]
                enter.append(idle)
        leave = (member,) if back is None else (member, back)
        return _Move(gain, leave, tuple(enter))

    def _leavers(self, edge: int) -> list[int]:
        members = self._members.get(edge, [])
        if len(members) <= _LEAVERS:
            return list(members)
        by_density = sorted(members, key=lambda r: self._values[r] / max(self._costs[r], 1))
        return by_density[:_LEAVERS]

    def _rows_of(self, client: int) -> list[int]:
        """Return the candidates of a client, best first."""
        return self._by_client[self._bounds[client] : self._bounds[client + 1]]

    def _row_at(self, client: int, edge: int) -> int:
        for row in self._rows_of(client):
            if self._edges[row] == edge:
                return row
        return -1

    def _apply(self, move: _Move) -> list[int]:
        """Make the move; return the edges that may gain from it."""
        touched: list[int] = []
        for row in move.leave:
            self._remove(row)
        for row in move.enter:
            elsewhere = int(self._at[self._clients[row]])
            if elsewhere >= 0:
                touched.append(self._edges[elsewhere])
                self._remove(elsewhere)
        for row in move.enter:
            self._add(row)
            touched.append(self._edges[row])
        for row in move.leave:  # a client that left may fit elsewhere
            touched.extend(self._edges[r] for r in self._rows_of(self._clients[row]))
        for row in (*move.leave, *move.enter):  # what others could enter for has changed
            for seen in self._rows_of(self._clients[row]):
                self._found.pop(self._edges[seen], None)
        return touched

    def _add(self, row: int) -> None:
        client, edge = self._clients[row], self._edges[row]
        self._left[edge] -= self._costs[row]
        self._worth[client] = self._values[row]
        self._at[client] = row
        self._members.setdefault(edge, []).append(row)

    def _remove(self, row: int) -> None:
        client, edge = self._clients[row], self._edges[row]
        self._left[edge] += self._costs[row]
        self._worth[client] = 0.0
        self._at[client] = -1
        self._members[edge].remove(row)


def _greatest_two(net: list[float]) -> list[float]:
    """Return of each beginning of the list the sum of its two greatest numbers, all positive."""
    sums, first, second = list[float](), 0.0, 0.0
    for value in net:
        if value > first:
            first, second = value, first
        elif value > second:
            second = value
        sums.append(first + second)
    return sums


def _best_two(
    cost: list[int], net: list[float], top: list[float], room: int
) -> tuple[float, tuple[int, ...]]:
    """Return net value and positions of the best one or two candidates that fit into `room`.

    `cost` ascends, `net` is positive, `top[k]` is the greatest of ``net[: k + 1]``; (0.0, ())
    when none fits.
    """
    partners = bisect_right(cost, room)
    best, first, among = 0.0, -1, 0
    for i in range(partners):
        left = room - cost[i]
        while partners > 0 and cost[partners - 1] > left:
            partners -= 1  # costs ascend, so what is left only shrinks
        before = min(partners, i)
        value = net[i] + top[before - 1] if before else net[i]
        if value > best:
            best, first, among = value, i, before
    if first < 0:
        return 0.0, ()
    if among == 0:
        return best, (first,)
    return best, (first, net.index(top[among - 1]))
