"""Belief propagation over neighbours' opinions (GDA section V; ALGORITHMS section 5).

Every client n is a binary variable with phi_n(1) = r_n^2, phi_n(0) = 1 - r_n^2;
neighbours i, j agree with weight w_ij and differ with 1 - w_ij. Its belief b_n is the
marginal of state 1. A normalised message of a binary variable is one number, the log
ratio of its two values: l_{i->j} = 2 atanh((2 w_ij - 1) tanh(h / 2)) with h the sum of
i's own log ratio and all messages to i but j's. Everything is arrays over the 2 E
directed edges.

With w = (1 + rho 2^-(d/d0)^3.7) / 2 and rho = 0.9 / max(1, highest degree - 1), the sum of
(2 w - 1) over the neighbours of a client but one stays below 1, so that messages
contract to a unique fixed point on any graph; `Beliefs.contraction` reports that sum.
"""

from dataclasses import dataclass

import numpy as np

from .base import FloatArray, IntArray
from .neighbours import Graph

_COUPLING = 0.9
_DECAY = 3.7


@dataclass(frozen=True, slots=True, eq=False)
class Wiring:
    """Directed edges of a graph, ready for sweeps; edge e and E + e are one edge's two.

    Attributes:
        nodes: N.
        source, target: int64[2E].
        coupling: float64[2E], 2 w - 1.
        contraction: The largest sum of |2 w - 1| over a client's neighbours but one;
            below 1 the messages converge, and to one fixed point.
    """

    nodes: int
    source: IntArray
    target: IntArray
    coupling: FloatArray
    contraction: float


@dataclass(frozen=True, slots=True, eq=False)
class Beliefs:
    """What the messages ended in.

    Attributes:
        belief: float64[N], marginal of state 1, in [0, 1].
        sweeps: How many were made.
        residual: The largest change of a message's log ratio in the last sweep.
        contraction: See `Wiring`.
    """

    belief: FloatArray
    sweeps: int
    residual: float
    contraction: float


def wire(graph: Graph, agreement: FloatArray | None = None) -> Wiring:
    """Return the directed edges of `graph`.

    Args:
        graph: Undirected, each edge once.
        agreement: float64[E], w of each edge in (0, 1); None: from its distances.
    """
    source = np.concatenate((graph.left, graph.right))
    target = np.concatenate((graph.right, graph.left))
    if agreement is None:
        degree = np.bincount(source, minlength=graph.nodes)
        once = _couplings(graph.distance, int(degree.max(initial=0)))
    else:
        once = 2 * agreement - 1
    coupling = np.concatenate((once, once))
    size = np.abs(coupling)
    at_target = np.bincount(target, weights=size, minlength=graph.nodes)
    contraction = float((at_target[target] - size).max(initial=0.0))
    return Wiring(graph.nodes, source, target, coupling, contraction)


def propagate(
    wiring: Wiring,
    opinion: FloatArray,
    *,
    tolerance: float = 1e-9,
    max_sweeps: int = 200,
    damping: float = 0.5,
) -> Beliefs:
    """Exchange messages until they stand still.

    Args:
        wiring: The neighbours.
        opinion: float64[N], r; clipped to [0, 1]; NaN says nothing (phi = 1/2).
        tolerance: Largest change of a log ratio that counts as none.
        max_sweeps: When to stop without that.
        damping: Share of the old message in the new one.
    """
    own = _log_ratio(opinion)
    edges = len(wiring.source)
    message = np.zeros(edges)
    sweeps, residual = 0, np.inf if edges else 0.0
    while residual > tolerance and sweeps < max_sweeps:
        heard = own + np.bincount(wiring.target, weights=message, minlength=wiring.nodes)
        new = heard[wiring.source]
        new -= np.roll(message, edges // 2)  # what the target itself said
        new *= 0.5
        np.tanh(new, out=new)
        new *= wiring.coupling
        np.arctanh(new, out=new)
        new *= 2 * (1 - damping)
        new += damping * message
        residual = float(np.abs(new - message).max())
        message = new
        sweeps += 1
    total = own + np.bincount(wiring.target, weights=message, minlength=wiring.nodes)
    return Beliefs(0.5 * (1 + np.tanh(0.5 * total)), sweeps, residual, wiring.contraction)


def _couplings(distance: FloatArray, degree: int) -> FloatArray:
    """Return 2 w - 1 of edges by their distance, float64[E], given the highest degree."""
    if not len(distance):
        return np.empty(0)
    typical = float(np.median(distance))
    near = np.where(distance > 0, np.inf, 0.0) if typical == 0 else distance / typical
    return np.asarray(_COUPLING / max(1, degree - 1) * np.exp2(-(near**_DECAY)))


def _log_ratio(opinion: FloatArray) -> FloatArray:
    """Return ln(phi(1) / phi(0)), float64[N]; infinite where an opinion is 0 or 1."""
    square = np.clip(opinion, 0.0, 1.0) ** 2
    with np.errstate(divide="ignore"):
        ratio = np.log(square) - np.log1p(-square)
    return np.where(np.isnan(opinion), 0.0, ratio)
