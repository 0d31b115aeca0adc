"""Eq. (4)-(7) of GDA exactly as printed, to compare `beliefs` with.

Neither phi_n = r_n^2 nor psi_ij = exp(-C d_ij^3.7) depends on the state, so a message is
one unnormalised number: ln m_{i->j} = ln 2 + 2 ln r_i - C d_ij^3.7 + the sum of ln m_{k->i}
over i's neighbours but j. Beliefs are normalised over the clients.

What comes of it: on a tree every client ends with the same belief, because each holds the
same product over the whole tree; on loops the products grow or shrink without end. That
is why `beliefs` has potentials that depend on the state (ALGORITHMS section 5).
"""

import numpy as np

from .base import FloatArray
from .beliefs import DECAY, Beliefs
from .neighbours import Graph

PAPER_C = 1e-3
_MIN_OPINION = 1e-12
_END = 1e6
"""A log message this large has left every meaning; sweeps stop there."""


def propagate_literal(
    graph: Graph,
    opinion: FloatArray,
    *,
    constant: float = PAPER_C,
    tolerance: float = 1e-9,
    max_sweeps: int = 200,
) -> Beliefs:
    """Exchange unnormalised messages until they stand still, or cannot.

    Args:
        graph: Undirected, each edge once; distances in km.
        opinion: float64[N], r; clipped to [1e-12, 1], NaN counts as 1.
        constant: C of eq. (7).
        tolerance: Largest change of a log message that counts as none.
        max_sweeps: When to stop without that.

    Returns:
        Beliefs that sum to 1; a `residual` above the tolerance says that they mean nothing;
        `contraction` is the largest number of neighbours but one.
    """
    own = 2 * np.log(np.clip(np.where(np.isnan(opinion), 1.0, opinion), _MIN_OPINION, 1.0))
    source = np.concatenate((graph.left, graph.right))
    target = np.concatenate((graph.right, graph.left))
    constants = np.log(2) + own[source] - constant * np.tile(graph.distance, 2) ** DECAY
    half = len(graph.left)
    message = np.zeros(2 * half)
    sweeps, residual = 0, np.inf if half else 0.0
    while residual > tolerance and sweeps < max_sweeps and np.abs(message).max() < _END:
        heard = np.bincount(target, weights=message, minlength=graph.nodes)
        new = constants + heard[source] - np.roll(message, half)
        residual = float(np.abs(new - message).max())
        message = new
        sweeps += 1
    total = own + np.bincount(target, weights=message, minlength=graph.nodes)
    share = np.exp(total - total.max(initial=-np.inf))
    degree = np.bincount(source, minlength=graph.nodes)
    most = float(degree.max(initial=0))
    return Beliefs(share / max(share.sum(), 1e-300), sweeps, residual, max(most - 1, 0.0))
