"""The best K-subset that was never played, without enumerating C(N, K) of them.

Subsets come by decreasing sum of their members' scores, ties by their ascending
client indices as a tuple. Put the clients in a line by (-score, index): every subset
is then K places p_0 < ... < p_{K-1}, and moving one member one place to the right leads
further down the order. Give each subset one parent: with i the least index where p_i != i, the
parent has p_i - 1 there. This is a tree over all subsets in which parents come before
children and a node has at most two: p_i + 1, and p_{i-1} + 1.

Hence the best unplayed subset is the root or a child of a played one: were its parent
unplayed, the parent would be better. That takes O(t) children per round and nothing
to remember between rounds, whichever clients come and go.

All sums are exact integers on one common scale, because with sums of floats the massive
ties of section 5 would break by rounding.
"""

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedagent_coordinator.policies.base import BoolArray, IndexArray, IntArray

from .arms import keys_of

ExactArray = npt.NDArray[np.object_]
"""Python integers of any size."""

_CHUNK = 512


@dataclass(frozen=True, slots=True, eq=False)
class RankedClients:
    """The clients that can be chosen, best first.

    Attributes:
        gone: int64[N - n], ranks of absent clients, ascending; a client's rank is
            where it stands if everybody is there.
    """

    clients: IntArray  # int64[n], by (-exact score, index)
    gone: IntArray
    level: IntArray  # int64[N], which of `values` is each client's score
    values: ExactArray  # object[V], the distinct exact scores, decreasing

    @classmethod
    def of(
        cls, there: BoolArray, *, order: IntArray, level: IntArray, values: ExactArray
    ) -> "RankedClients":
        """Rank the clients that are there (bool[N]), given the order of all."""
        if there.all():
            return cls(order, np.empty(0, dtype=np.int64), level, values)
        inside = there[order]
        return cls(order[inside], np.flatnonzero(~inside).astype(np.int64), level, values)

    def places(self, ranks: IndexArray) -> npt.NDArray[np.integer]:
        """Return where the clients of these ranks stand, [...]; they must be there."""
        return ranks - np.searchsorted(self.gone, ranks) if len(self.gone) else ranks

    def scores(self, places: npt.NDArray[np.integer]) -> ExactArray:
        """Return the exact scores of the clients at these places, object[...]."""
        return np.asarray(self.values[self.level[self.clients[places]]], dtype=np.object_)


@dataclass(frozen=True, slots=True, eq=False)
class Played:
    """Subsets that were played, and their exact sums."""

    members: IndexArray  # int32[A, K], ascending clients of each subset
    ranks: IndexArray  # int32[A or more, K], ascending ranks of each subset's clients
    totals: ExactArray  # object[A], exact sum of their scores
    keys: Collection[bytes]  # key of each subset (`keys_of`)

    @classmethod
    def of(
        cls, members: IndexArray, rank: IntArray, totals: ExactArray, keys: Collection[bytes]
    ) -> "Played":
        """Return these subsets, given everybody's rank, int64[N]."""
        ranks = rank[members].astype(np.int32)
        ranks.sort(axis=1)
        return cls(members, ranks, totals, keys)

    def grown(self, members: IndexArray, rank: IntArray, total: ExactArray) -> "Played":
        """Return the same with one more: the last of `members`; total is object[1].

        It writes behind the rows that `self` counts, so grow only the newest.
        """
        ranks, at = self.ranks, len(self.totals)
        if at == len(ranks):
            more = np.zeros((max(16, at), members.shape[1]), dtype=np.int32)
            ranks = np.concatenate((ranks, more))
        ranks[at] = np.sort(rank[members[at]])
        return Played(members, ranks, np.concatenate((self.totals, total)), self.keys)


@dataclass(frozen=True, slots=True, eq=False)
class _Moves:
    """How subsets become their children: one member each steps one place to the right."""

    source: IntArray  # int64[C], rows of the parents
    leave: IntArray  # int64[C], from which place a member steps
    totals: ExactArray

    def take(self, rows: BoolArray) -> "_Moves":
        return _Moves(self.source[rows], self.leave[rows], self.totals[rows])


@dataclass(frozen=True, slots=True, eq=False)
class Subset:
    """A K-subset: ascending clients, int64[K], and the exact sum of their scores."""

    clients: IntArray
    total: int


def best_unplayed(line: RankedClients, size: int, played: Played, rows: IntArray) -> Subset | None:
    """Return the first subset of the order that was not played; None if all were.

    `line` has at least K clients; `rows` are the played subsets of its clients, by decreasing sum.
    """
    root = np.sort(line.clients[:size]).astype(np.int32)
    if keys_of(root[np.newaxis])[0] not in played.keys:
        return Subset(root.astype(np.int64), int(line.scores(np.arange(size)).sum()))
    best: tuple[int, bytes] | None = None
    for start in range(0, len(rows), _CHUNK):
        if best is not None and played.totals[rows[start]] < -best[0]:
            break  # children are no better than their parents
        moves = _moves(line, played, rows[start : start + _CHUNK])
        found = _first_unplayed(line, played, moves, None if best is None else -best[0])
        if found is not None:
            best = found if best is None else min(best, found)
    if best is None:
        return None
    return Subset(np.frombuffer(best[1], dtype=">i4").astype(np.int64), -best[0])


def _first_unplayed(
    line: RankedClients, played: Played, moves: _Moves, least: int | None
) -> tuple[int, bytes] | None:
    """Return (-sum, key) of the first child, of at least this sum, that was not played, if any."""
    if not len(moves.totals):
        return None
    top = moves.totals.max()
    if least is not None and top < least:
        return None
    # Building children is what takes time, and mostly one of the largest sum is new.
    largest = np.asarray(moves.totals == top, dtype=np.bool_)
    rest = ~largest if least is None else ~largest & (moves.totals >= least)
    for few in (moves.take(largest), moves.take(rest)):
        keys = keys_of(_children(line, played, few))
        totals = dict(zip(keys, few.totals.tolist(), strict=True))
        new = set(totals).difference(played.keys)
        if new:
            return min((-totals[key], key) for key in new)
    return None


def _moves(line: RankedClients, played: Played, rows: IntArray) -> _Moves:
    places = line.places(played.ranks[rows])
    size, n = places.shape[1], len(line.clients)
    first = (places != np.arange(size, dtype=places.dtype)).argmax(axis=1)
    first[places[:, -1] < size] = size  # they stand in the first K places
    each = np.arange(len(rows))
    place = places[each, np.minimum(first, size - 1)]
    # Behind the last member is a wall.
    behind = np.where(first < size - 1, places[each, np.minimum(first + 1, size - 1)], n)
    same = np.flatnonzero((first < size) & (place + 1 < behind))
    before = np.flatnonzero((first > 0) & (first < n))
    source = rows[np.concatenate((same, before))]
    leave = np.concatenate((place[same], first[before] - 1))
    totals = played.totals[source]
    old, new = line.level[line.clients[leave]], line.level[line.clients[leave + 1]]
    down = np.flatnonzero(old != new)
    totals[down] += line.values[new[down]] - line.values[old[down]]
    return _Moves(source, leave, totals)


def _children(line: RankedClients, played: Played, moves: _Moves) -> IndexArray:
    children = played.members[moves.source]
    leaver = line.clients[moves.leave].astype(np.int32)
    at = np.flatnonzero((children == leaver[:, np.newaxis]).ravel())
    children.ravel()[at] = line.clients[moves.leave + 1]
    children.sort(axis=1)
    return children
