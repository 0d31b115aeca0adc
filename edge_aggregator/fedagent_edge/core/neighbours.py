"""Who talks with whom in democratized analytics: a graph of the agents at one edge.

ALGORITHMS section 5. Pure numpy; the same agents and places give the same graph.
"""

import itertools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from fedagent_protocol.messages import MAX_NEIGHBOURS

Place = tuple[float, float]
Graph = dict[str, dict[str, float]]
"""Neighbours of each agent, and how far they are."""

USUAL = 1.0
"""Distance where no place is known: all are alike, and only ratios count."""
BLOCK = 512
"""More agents than this are halved by place first: distances of all pairs cost too much."""

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
