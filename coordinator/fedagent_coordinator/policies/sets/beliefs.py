"""Belief propagation over neighbours' opinions (GDA section V; ALGORITHMS section 5).

Every client n is a binary variable with phi_n(1) = r_n^2; neighbours i, j agree with weight
w_ij. Its belief b_n is the marginal of state 1. A normalised message is one number, the log
ratio of its two values: l_{i->j} = 2 atanh((2 w_ij - 1) tanh(h / 2)) with h the sum of
i's own log ratio and all messages to i but j's.

With w = (1 + rho 2^-(d/d0)^3.7) / 2 and rho = 0.9 / max(1, highest degree - 1), the sum of
(2 w - 1) over the neighbours of a client but one stays below 1, so that messages
contract to a unique fixed point on any graph.
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


COUPLING = 0.9
DECAY = 3.7
PAPER_C = 1e-3
_MIN_OPINION = 1e-12
_STANDS_STILL = 1e-9
_END = 1e6
"""A log message this large has left every meaning; sweeps stop there."""


@dataclass(frozen=True, slots=True, eq=False)
class Wiring:
    """Directed edges of a graph, ready for sweeps; edge e and E + e are one edge's two.

    Attributes:
        source, target: int64[2E].
        contraction: The largest sum of |2 w - 1| over a client's neighbours but one;
            below 1 the messages converge, and to one fixed point.
    """

    nodes: int
    source: IntArray
    target: IntArray
    coupling: FloatArray  # float64[2E], 2 w - 1
    contraction: float


@dataclass(frozen=True, slots=True, eq=False)
class BeliefResult:
    """What the messages ended in."""

    belief: FloatArray  # float64[N], marginal of state 1, in [0, 1]
    sweeps: int
    residual: float  # the largest change of a message's log ratio in the last sweep
    contraction: float  # see `Wiring`


def wire(graph: Graph, agreement: FloatArray | None = None, *, local: bool = False) -> Wiring:
    """Return the directed edges of `graph`, with the agreement w given, float64[E], or by distance.

    `local` takes the weights that two neighbours can compute between themselves, as agents do:
    rho_ij = 0.9 / max(1, max(degree_i, degree_j) - 1) and d0_ij = the mean of both ends' median
    distances. Each client's sum is still at most 0.9, as rho_ij <= 0.9 / max(1, degree_i - 1).
    """
    graph, agreement = _ranked(graph, agreement)
    source = np.concatenate((graph.left, graph.right))
    target = np.concatenate((graph.right, graph.left))
    if agreement is not None:
        once = 2 * agreement - 1
    elif local:
        once = _local_couplings(graph)
    else:
        degree = np.bincount(source, minlength=graph.nodes)
        once = _couplings(graph.distance, int(degree.max(initial=0)))
    coupling = np.concatenate((once, once))
    size = np.abs(coupling)
    at_target = np.bincount(target, weights=size, minlength=graph.nodes)
    contraction = float((at_target[target] - size).max(initial=0.0))
    return Wiring(graph.nodes, source, target, coupling, contraction)


def propagate(
    wiring: Wiring,
    opinion: FloatArray,
    *,
    tolerance: float = _STANDS_STILL,
    max_sweeps: int = 200,
    damping: float = 0.5,
) -> BeliefResult:
    """Exchange messages until they stand still.

    `opinion` is float64[N], r, clipped to [0, 1]; NaN is no opinion (phi = 1/2). `tolerance` is
    of log ratios, `damping` the share of the old message in the new one, in [0, 1).
    """
    own = log_ratio(opinion)
    edges, half = len(wiring.source), len(wiring.source) // 2
    message, new = np.zeros(edges), np.empty(edges)
    sweeps, residual = 0, np.inf if edges else 0.0
    while residual > tolerance and sweeps < max_sweeps:
        heard = own + np.bincount(wiring.target, weights=message, minlength=wiring.nodes)
        # Every index is in range: "clip" only spares numpy a copy of the result.
        np.take(heard, wiring.source, out=new, mode="clip")
        new[:half] -= message[half:]  # what the target itself sent
        new[half:] -= message[:half]
        new *= 0.5
        np.tanh(new, out=new)
        new *= wiring.coupling
        np.arctanh(new, out=new)
        new *= 2.0
        new -= message
        new *= 1 - damping
        residual = float(max(new.max(), -new.min()))
        message += new
        sweeps += 1
    total = own + np.bincount(wiring.target, weights=message, minlength=wiring.nodes)
    return BeliefResult(0.5 * (1 + np.tanh(0.5 * total)), sweeps, residual, wiring.contraction)


def propagate_literal(graph: Graph, opinion: FloatArray, *, max_sweeps: int = 200) -> BeliefResult:
    """Exchange messages by GDA's eq. (4)-(7) exactly as printed, to compare `propagate` with.

    Neither phi_n = r_n^2 nor psi_ij = exp(-C d_ij^3.7) depends on the state, so a message is
    one unnormalised number. On a tree every client ends with the same belief, because each
    holds the same product over the whole tree; on loops the products grow or shrink without
    end. That is why `propagate` has potentials that depend on the state.

    `opinion` is clipped to [1e-12, 1], NaN counts as 1; distances are in km. Beliefs sum to 1; with
    a `residual` above 1e-9 they mean nothing.
    """
    own = 2 * np.log(np.clip(np.where(np.isnan(opinion), 1.0, opinion), _MIN_OPINION, 1.0))
    source = np.concatenate((graph.left, graph.right))
    target = np.concatenate((graph.right, graph.left))
    constants = np.log(2) + own[source] - PAPER_C * np.tile(graph.distance, 2) ** DECAY
    half = len(graph.left)
    message = np.zeros(2 * half)
    sweeps, residual = 0, np.inf if half else 0.0
    while residual > _STANDS_STILL and sweeps < max_sweeps and np.abs(message).max() < _END:
        heard = np.bincount(target, weights=message, minlength=graph.nodes)
        new = constants + heard[source] - np.roll(message, half)
        residual = float(np.abs(new - message).max())
        message = new
        sweeps += 1
    total = own + np.bincount(target, weights=message, minlength=graph.nodes)
    share = np.exp(total - total.max(initial=-np.inf))
    degree = np.bincount(source, minlength=graph.nodes)
    most = float(degree.max(initial=0))
    return BeliefResult(share / max(share.sum(), 1e-300), sweeps, residual, max(most - 1, 0.0))


def log_ratio(opinion: FloatArray) -> FloatArray:
    """Return ln(phi(1) / phi(0)), float64[N]; infinite where an opinion is 0 or 1."""
    square = np.clip(opinion, 0.0, 1.0) ** 2
    with np.errstate(divide="ignore"):
        ratio = np.log(square) - np.log1p(-square)
    return np.where(np.isnan(opinion), 0.0, ratio)


def _ranked(graph: Graph, agreement: FloatArray | None) -> tuple[Graph, FloatArray | None]:
    """Return the edges by their left end: sweeps then read half of memory in order."""
    if (np.diff(graph.left) >= 0).all():
        return graph, agreement
    order = np.argsort(graph.left, kind="stable")
    ranked = Graph(graph.nodes, graph.left[order], graph.right[order], graph.distance[order])
    return ranked, None if agreement is None else agreement[order]


def _couplings(distance: FloatArray, degree: int) -> FloatArray:
    if not len(distance):
        return np.empty(0)
    typical = np.full(len(distance), np.median(distance))
    return np.asarray(COUPLING / max(1, degree - 1) * _nearness(distance, typical))


def _local_couplings(graph: Graph) -> FloatArray:
    end = np.concatenate((graph.left, graph.right))
    far = np.tile(graph.distance, 2)
    ranked = far[np.lexsort((far, end))]
    degree = np.bincount(end, minlength=graph.nodes)
    first = np.cumsum(degree) - degree
    median = np.zeros(graph.nodes)
    has = degree > 0
    low, high = first + (degree - 1) // 2, first + degree // 2
    median[has] = 0.5 * (ranked[low[has]] + ranked[high[has]])
    crowd = np.maximum(degree[graph.left], degree[graph.right])
    typical = 0.5 * (median[graph.left] + median[graph.right])
    return np.asarray(COUPLING / np.maximum(1, crowd - 1) * _nearness(graph.distance, typical))


def _nearness(distance: FloatArray, typical: FloatArray) -> FloatArray:
    """Return 2^-(d/d0)^3.7 in [0, 1], float64[E]; where d0 is 0 only d = 0 is near."""
    with np.errstate(divide="ignore", invalid="ignore"):
        far = np.where(typical > 0, distance / typical, np.where(distance > 0, np.inf, 0.0))
    with np.errstate(over="ignore"):
        return np.asarray(np.exp2(-(far**DECAY)))
