"""Neighbours of clients: within a radius, the k nearest, or declared.

Positions are hashed into square cells, so the cost follows the number of near pairs
and not N^2.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from fedagent_coordinator.policies.base import FloatArray, IntArray
from fedagent_protocol.errors import ParameterError

_NEAR = [(dx, dy) for dx in (-1, 0, 1) for dy in (-1, 0, 1)]
_MAX_PAIRS = 50_000_000
_SIDE = 2**31


@dataclass(frozen=True, slots=True, eq=False)
class Graph:
    """An undirected graph of N clients.

    Attributes:
        left, right: int64[E], the ends of each edge, left < right, no edge twice.
    """

    nodes: int
    left: IntArray
    right: IntArray
    distance: FloatArray  # float64[E], km (or any unit; only ratios matter)


def within_radius(name: str, places: FloatArray, radius_km: float) -> Graph:
    """Join clients that are at most `radius_km` apart; places with NaN have no neighbours.

    Raises:
        ParameterError: So many pairs are that near that they would not fit.
    """
    known = np.flatnonzero(np.isfinite(places).all(axis=1))
    left, right, distance = _near(name, places[known], np.arange(len(known)), radius_km)
    once = left < right
    return Graph(len(places), known[left[once]], known[right[once]], distance[once])


def k_nearest(name: str, places: FloatArray, k: int) -> Graph:
    """Join each client with its k nearest, ties by index; either end may have asked.

    Raises:
        ParameterError: So many clients are at one place that near pairs would not fit.
    """
    known = np.flatnonzero(np.isfinite(places).all(axis=1))
    points = places[known]
    want = min(k, len(points) - 1)
    if want < 1:
        return _joined(len(places), known[:0], known[:0], np.empty(0))
    span = float(np.ptp(points, axis=0).max())
    radius = span * math.sqrt((want + 1) / (2 * len(points))) or 1.0
    asking = np.arange(len(points))
    found: list[tuple[IntArray, IntArray, FloatArray]] = []
    while len(asking):
        left, right, distance = _near(name, points, asking, radius)
        order = np.lexsort((right, distance, left))
        left, right, distance = left[order], right[order], distance[order]
        start = np.searchsorted(left, left)
        heard = np.bincount(left, minlength=len(points))
        keep = (np.arange(len(left)) - start < want) & (heard[left] >= want)
        found.append((known[left[keep]], known[right[keep]], distance[keep]))
        asking = asking[heard[asking] < want]
        radius *= 2
    left, right, distance = (np.concatenate(column) for column in zip(*found, strict=True))
    return _joined(len(places), left, right, distance)


def declared(name: str, edges: Iterable[Sequence[float]], total: int) -> Graph:
    """Join the named pairs, (i, j) or (i, j, distance); those of clients yet to come wait for them.

    Raises:
        ParameterError: An edge is no pair of two clients, or its distance is not >= 0.
    """
    rows = [(*edge, 1.0)[:3] for edge in edges]
    for edge in rows:
        proper = len(edge) == 3 and all(math.isfinite(v) and v >= 0 for v in edge)
        if not proper or edge[0] == edge[1] or any(end != int(end) for end in edge[:2]):
            raise ParameterError(name, "edges", f"has {edge}: two clients, a distance >= 0")
    table = np.array(rows, dtype=np.float64).reshape(-1, 3)
    table = table[table[:, :2].max(axis=1, initial=0) < total]
    return _joined(total, table[:, 0].astype(np.int64), table[:, 1].astype(np.int64), table[:, 2])


def _joined(total: int, left: IntArray, right: IntArray, distance: FloatArray) -> Graph:
    low, high = np.minimum(left, right), np.maximum(left, right)
    _, first = np.unique(low * max(total, 1) + high, return_index=True)
    return Graph(total, low[first], high[first], distance[first])


def _near(
    name: str, points: FloatArray, asking: IntArray, radius: float
) -> tuple[IntArray, IntArray, FloatArray]:
    """Return (asking point, other point, distance) of all pairs within `radius`."""
    if not len(points):
        return asking, asking, np.empty(0)
    cell = np.floor((points - points.min(axis=0)) / radius)
    if cell.max() > _SIDE // 4:
        raise ParameterError(name, "radius_km", f"is {radius}: too small for these positions")
    key = (cell[:, 0].astype(np.int64) + 1) * _SIDE + cell[:, 1].astype(np.int64) + 1
    order = np.argsort(key, kind="stable")
    line = key[order]
    begin, end = [], []
    for dx, dy in _NEAR:
        wanted = key[asking] + dx * _SIDE + dy
        begin.append(np.searchsorted(line, wanted, side="left"))
        end.append(np.searchsorted(line, wanted, side="right"))
    start, count = np.concatenate(begin), np.concatenate(end) - np.concatenate(begin)
    pairs = int(count.sum())
    if pairs > _MAX_PAIRS:
        raise ParameterError(name, "graph", f"has to look at {pairs} near pairs of clients")
    left = np.repeat(np.tile(asking, len(_NEAR)), count)
    skipped = np.repeat(np.cumsum(count) - count, count)
    right = order[np.repeat(start, count) + np.arange(pairs) - skipped]
    distance = np.hypot(*(points[left] - points[right]).T)
    keep = (distance <= radius) & (left != right)
    return left[keep], right[keep], distance[keep]
