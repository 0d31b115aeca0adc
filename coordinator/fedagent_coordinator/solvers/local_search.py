"""A feasible assignment under change: fill in an order, then exchange pairs.

An *entry*: at most two pairs leave an edge, one or two enter it, of clients that are idle or
taken away from another edge. A *crossing*: a client goes over to another edge, alone or in
exchange for one that comes back, and an idle client takes the room that this makes.
"""

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import cast

import numpy as np

from fedagent_coordinator.policies.base import BoolArray, FloatArray, IndexArray, IntArray

from .base import AssignmentProblem

_GAIN = 1e-9
"""Smallest rise worth a move: rounding errors must not make the search go in circles."""
_CANDIDATES = 64
_POOL = 256
_LEAVERS = 8
"""Per edge and visit: how many pairs may come in, are looked at, or may go out; the most
promising."""
_FIRST_BLOCK, _BLOCK = 64, 16_384
"""Rows that are taken one by one before those are looked for again that still fit."""


@dataclass(frozen=True, slots=True)
class _Move:
    """Rows that leave and rows that enter; a row's client frees its other row itself."""

    gain: float
    leave: tuple[int, ...]
    enter: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class _Pool:
    """Who could enter an edge at best: columns by falling density, and their order by cost."""

    rows: IntArray
    client: IndexArray
    value: FloatArray
    cost: IntArray
    by_cost: IntArray


class _Ranked:
    """Rows by rising cost, and what they gain; lists, of which single ones are read faster."""

    __slots__ = ("_columns", "_idle", "_top", "cost", "net", "rows", "top")

    def __init__(self, cost: IntArray, net: FloatArray, rows: IntArray, idle: BoolArray) -> None:
        self.cost, self.net, self.rows = cost.tolist(), net.tolist(), rows.tolist()
        self._top = np.zeros(len(net) + 1)
        np.maximum.accumulate(net, out=self._top[1:])
        self.top = self._top.tolist()  # of the k cheapest
        self._columns, self._idle = (cost, net, rows, idle), self if idle.all() else None

    @property
    def idle(self) -> "_Ranked":
        """Those of clients that are idle, of whom nothing is lost elsewhere."""
        if self._idle is None:
            cost, net, rows, some = self._columns
            self._idle = _Ranked(cost[some], net[some], rows[some], some[some])
        return self._idle

    def best(self, room: int) -> int:
        """Return the best row that costs at most `room`, or -1."""
        k = bisect_right(self.cost, room)
        return self.rows[self.net.index(self.top[k])] if k else -1

    def within(self, room: int) -> float:
        """Return what the best row gains that costs at most `room`, or 0."""
        return self.top[bisect_right(self.cost, room)]

    def most(self, room: int) -> float:
        """Return at least what any one or two gain that fit: one costs half of it at most."""
        return self.within(room) + self.within(room // 2)

    def best_two(self, room: int) -> tuple[float, tuple[int, ...]]:
        """Return gain and rows of the best one or two that fit; (0.0, ()) when none does."""
        cost, net = (column[: bisect_right(self.cost, room)] for column in self._columns[:2])
        if not len(cost):
            return 0.0, ()
        # The best partner is among those that cost no more, and no more than what is left.
        before = np.minimum(cost.searchsorted(room - cost, side="right"), np.arange(len(cost)))
        together = net + self._top[before]
        first = int(together.argmax())
        best, among = float(together[first]), int(before[first])
        if among == 0:
            return best, (self.rows[first],)
        return best, (self.rows[first], self.rows[self.net.index(self.top[among])])


class LocalSearch:
    """One feasible solution."""

    def __init__(self, problem: AssignmentProblem) -> None:
        clients = int(problem.client.max(initial=-1)) + 1
        self._value = np.ascontiguousarray(problem.value)
        self._cost = np.ascontiguousarray(problem.cost)
        self._client = np.ascontiguousarray(problem.client)
        self._edge = np.ascontiguousarray(problem.edge)
        self._left = problem.budget.copy()
        self._at = np.full(clients, -1, dtype=np.int64)
        self._worth = np.zeros(clients)
        self._members: dict[int, list[int]] = {}
        self._pools: dict[int, _Pool] = {}
        self._found: dict[int, _Ranked] = {}

    def total(self) -> float:
        """Return the value of the solution."""
        return float(self._value[self.pairs()].sum())

    def pairs(self) -> IntArray:
        """Return the chosen rows, int64[S] ascending."""
        return np.sort(self._at[self._at >= 0])

    def fill(self, order: IntArray) -> None:
        """Take rows in this order while they fit; arrays sort out the others, block by block."""
        size = _FIRST_BLOCK
        while len(order):
            block, order = order[:size], order[size:]
            size = min(4 * size, _BLOCK)
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
            order = self.fitting(order)

    def most_left(self) -> int:
        """Return what the richest edge can still pay."""
        return int(self._left.max(initial=0))

    def fitting(self, rows: IntArray) -> IntArray:
        """Return those of the rows whose client is idle, and whose edge can still pay for it."""
        rows = rows[self._cost[rows] <= self.most_left()]  # mostly leaves few to look up
        rows = rows[self._cost[rows] <= self._left[self._edge[rows]]]
        return rows[self._at[self._client[rows]] < 0]

    def improve(self, rows: IntArray, visits: int) -> None:
        """Make the best move at one edge after the other until none gains, `visits` at most.

        `rows` have a positive value and fit their edge's budget, best candidates first.
        """
        edge_of, client_of = self._edge[rows], self._client[rows]
        ordered = rows[_grouped(edge_of)]
        counts = np.bincount(edge_of)
        ends = np.cumsum(counts).tolist()
        for edge in np.flatnonzero(counts).tolist():
            its = ordered[ends[edge] - counts[edge] : ends[edge]][:_POOL]
            cost = self._cost[its]
            self._pools[edge] = _Pool(
                its, self._client[its], self._value[its], cost, cost.argsort(kind="stable")
            )
        # Of single rows these are read and written faster than arrays.
        self._values, self._costs = _floats(self._value), self._cost.data
        self._clients, self._edges = self._client.data, self._edge.data
        self._row_of, self._gained = self._at.data, _floats(self._worth)
        self._by_client = rows[_grouped(client_of)].data
        counted = np.bincount(client_of, minlength=len(self._at))
        self._bounds = np.concatenate(([0], np.cumsum(counted))).data
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

    def _entrants(self, edge: int) -> _Ranked:
        """Return who could enter an edge."""
        if (known := self._found.get(edge)) is not None:
            return known
        pool = self._pools[edge]
        at, net = self._at[pool.client], pool.value - self._worth[pool.client]
        gains = (net > _GAIN) & (at != pool.rows)
        gains &= gains.cumsum() <= _CANDIDATES
        some = pool.by_cost[gains[pool.by_cost]]
        ranked = _Ranked(pool.cost[some], net[some], pool.rows[some], at[some] < 0)
        self._found[edge] = ranked
        return ranked

    def _best_entry(self, edge: int) -> _Move | None:
        entrants = self._entrants(edge)
        best: _Move | None = None
        least, left = _GAIN, int(self._left[edge])
        for leave, freed, lost in self._leaves(edge):
            room = left + freed
            if entrants.most(room) - lost <= least:
                continue
            gain, enter = entrants.best_two(room)
            if gain - lost > least:
                least = gain - lost
                best = _Move(least, leave, enter)
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
        """Let a member go over to another edge, and perhaps one of that edge's come back."""
        value, cost, client = self._values, self._costs, self._clients
        here, left = self._entrants(edge).idle, int(self._left[edge])
        best, least = None, _GAIN
        backs = dict[int, list[tuple[int, int, int, int, float]]]()
        for member in self._leavers(edge):
            for row in self._rows_of(client[member]):
                other = self._edges[row]
                if other == edge:
                    continue
                if other not in backs:
                    backs[other] = self._backs(other, edge)
                there, room = self._entrants(other).idle, int(self._left[other]) - cost[row]
                for back, returned, freed, taken, rise in backs[other]:
                    room_here, room_there = left + cost[member] - taken, room + freed
                    if room_here < 0 or room_there < 0:
                        continue
                    gain = value[row] - value[member] + rise
                    if gain + here.within(room_here) + there.within(room_there) <= least:
                        continue
                    enter = [row] if back < 0 else [row, returned]
                    extra, second = here.best(room_here), there.best(room_there)
                    if extra >= 0 and second >= 0 and client[extra] == client[second]:
                        if value[second] > value[extra]:
                            extra, second = second, -1
                        else:
                            second = -1
                    for idle in (extra, second):
                        if idle >= 0:
                            gain += value[idle]
                            enter.append(idle)
                    if gain > least:
                        leave = (member,) if back < 0 else (member, back)
                        best, least = _Move(gain, leave, tuple(enter)), gain
        return best

    def _backs(self, other: int, edge: int) -> list[tuple[int, int, int, int, float]]:
        """Return nobody, and who of another edge may come: rows, costs, and what that gains."""
        found = [(-1, -1, 0, 0, 0.0)]
        for back in self._leavers(other):
            for row in self._rows_of(self._clients[back]):
                if self._edges[row] == edge:
                    rise = self._values[row] - self._values[back]
                    found.append((back, row, self._costs[back], self._costs[row], rise))
                    break
        return found

    def _leavers(self, edge: int) -> list[int]:
        members = self._members.get(edge, [])
        if len(members) <= _LEAVERS:
            return list(members)
        by_density = sorted(members, key=lambda r: self._values[r] / max(self._costs[r], 1))
        return by_density[:_LEAVERS]

    def _rows_of(self, client: int) -> "memoryview[int]":
        """Return the candidates of a client, best first."""
        return self._by_client[self._bounds[client] : self._bounds[client + 1]]

    def _apply(self, move: _Move) -> list[int]:
        """Make the move; return the edges that may gain from it."""
        touched: list[int] = []
        for row in move.leave:
            self._remove(row)
        for row in move.enter:
            elsewhere = self._row_of[self._clients[row]]
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
        self._gained[client] = self._values[row]
        self._row_of[client] = row
        self._members.setdefault(edge, []).append(row)

    def _remove(self, row: int) -> None:
        client, edge = self._clients[row], self._edges[row]
        self._left[edge] += self._costs[row]
        self._gained[client] = 0.0
        self._row_of[client] = -1
        self._members[edge].remove(row)


def _grouped(ids: IndexArray) -> IntArray:
    """Return the order that brings equal ids together; short ones are sorted without comparing."""
    if ids.max(initial=0) < 1 << 16:
        return ids.astype(np.uint16).argsort(kind="stable")
    return ids.argsort(kind="stable")


def _floats(column: FloatArray) -> "memoryview[float]":
    return cast("memoryview[float]", column.data)
