"""The best K-subset that was never played, without enumerating C(N, K) of them.

Subsets come by decreasing sum of their members' scores, ties by their ascending
client indices as a tuple. Put the clients in a line by (-score, index): every subset
is then K places p_0 < ... < p_{K-1}. Moving one member one place to the right either
lowers the sum or keeps it and makes the tuple larger, so it always leads further down
the order. Give each subset one parent: with i the least index where p_i != i, the
parent has p_i - 1 there. Undoing moves ends at the first K places, so this is a tree
over all subsets in which parents come before children, nothing appears twice and a
node has at most two children: p_i + 1, and p_{i-1} + 1.

Hence the best unplayed subset is the root or a child of a played one: were its parent
unplayed, the parent would be better. That takes O(t) children per round and nothing
to remember between rounds, whoever comes and goes.

All sums are exact integers: scores are fractions on one common scale, because with
sums of floats the massive ties of section 5 would break by rounding.
"""

from collections.abc import Container
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .arms import keys_of
from .base import BoolArray, IndexArray, IntArray

ExactArray = npt.NDArray[np.object_]
"""Python integers of any size."""

_CHUNK = 256


@dataclass(frozen=True, slots=True, eq=False)
class Line:
    """The clients that can be chosen, best first.

    Attributes:
        clients: int64[n], by (-exact score, index).
        rank: int64[N], where each client stands if everybody is there.
        gone: int64[N - n], ranks of who is not there, ascending.
        level: int64[N], which of `values` is each client's score.
        values: object[V], the distinct exact scores, decreasing.
    """

    clients: IntArray
    rank: IntArray
    gone: IntArray
    level: IntArray
    values: ExactArray

    @classmethod
    def of(
        cls,
        there: BoolArray,
        *,
        order: IntArray,
        rank: IntArray,
        level: IntArray,
        values: ExactArray,
    ) -> "Line":
        """Line up who is there (bool[N]), given everybody's order and its inverse."""
        inside = there[order]
        gone = np.flatnonzero(~inside).astype(np.int64)
        return cls(order[inside] if len(gone) else order, rank, gone, level, values)

    def places(self, clients: npt.NDArray[np.integer]) -> IntArray:
        """Return where these clients stand, int64[...]; they must be there."""
        rank: IntArray = self.rank[clients]
        return rank - np.searchsorted(self.gone, rank) if len(self.gone) else rank

    def scores(self, places: npt.NDArray[np.integer]) -> ExactArray:
        """Return the exact scores of who stands at these places, object[...]."""
        return np.asarray(self.values[self.level[self.clients[places]]], dtype=np.object_)


@dataclass(frozen=True, slots=True, eq=False)
class Played:
    """Subsets that were played, and their exact sums.

    Attributes:
        members: int32[A, K], ascending clients of each subset.
        totals: object[A], exact sum of their scores.
        keys: Key of each subset (`keys_of`).
    """

    members: IndexArray
    totals: ExactArray
    keys: Container[bytes]


@dataclass(frozen=True, slots=True, eq=False)
class Subset:
    """A K-subset: ascending clients, int64[K], and the exact sum of their scores."""

    clients: IntArray
    total: int


def best_unplayed(line: Line, size: int, played: Played, rows: IntArray) -> Subset | None:
    """Return the first subset of the order that was not played; None if all were.

    Args:
        line: The n clients to choose from, n >= K.
        size: K.
        played: Subsets, whoever their clients are.
        rows: int64[R], the played subsets of this line's clients, by decreasing sum.
    """
    root = np.sort(line.clients[:size]).astype(np.int32)
    if keys_of(root[np.newaxis])[0] not in played.keys:
        return Subset(root.astype(np.int64), int(line.scores(np.arange(size)).sum()))
    best: tuple[int, bytes] | None = None
    for start in range(0, len(rows), _CHUNK):
        if best is not None and played.totals[rows[start]] < -best[0]:
            break  # children are no better than their parents
        near = rows[start : start + _CHUNK]
        children, sums = _children(line, played.members[near], played.totals[near])
        for key, total in zip(keys_of(children), sums.tolist(), strict=True):
            if (best is None or (-total, key) < best) and key not in played.keys:
                best = (-total, key)
    if best is None:
        return None
    return Subset(np.frombuffer(best[1], dtype=">i4").astype(np.int64), -best[0])


def _children(line: Line, parents: IndexArray, totals: ExactArray) -> tuple[IndexArray, ExactArray]:
    """Return the children of these subsets, int32[C, K] ascending, and their sums."""
    size = parents.shape[1]
    places = np.sort(line.places(parents), axis=1)
    # A wall behind the last place stops the last member.
    places = np.column_stack((places, np.full(len(places), len(line.clients))))
    moved = places[:, :size] != np.arange(size)
    first = np.where(moved.any(axis=1), moved.argmax(axis=1), size)
    same = np.flatnonzero(first < size)
    same = same[places[same, first[same]] + 1 < places[same, first[same] + 1]]
    before = np.flatnonzero(first > 0)
    before = before[first[before] < places[before, first[before]]]
    source = np.concatenate((same, before))
    leave = np.concatenate((places[same, first[same]], first[before] - 1))
    children = parents[source]
    at = np.flatnonzero((children == line.clients[leave][:, np.newaxis]).ravel())
    children.ravel()[at] = line.clients[leave + 1]
    children.sort(axis=1)
    sums = totals[source] - line.scores(leave) + line.scores(leave + 1)
    return children, sums
