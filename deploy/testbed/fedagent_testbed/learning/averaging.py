"""From client updates to edge models, and from edge models to the global one."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Indices = npt.NDArray[np.int64]
Weighting = Literal["uniform", "samples"]


@dataclass(frozen=True, slots=True, eq=False)
class Updates:
    """What some of a round's clients have learnt; a round is a stream of these.

    Attributes:
        clients: int64[C].
        edges: int64[C], the edge whose model each client started from.
        samples: int64[C], samples that each client trains on.
        deltas: float32[C, d], trained minus starting parameters.
    """

    clients: Indices
    edges: Indices
    samples: Indices
    deltas: Floats


def aggregate(start: Floats, updates: Iterable[Updates], weighting: Weighting) -> Floats:
    """Return the edge models after a round (ALGORITHMS section 1), float32[M, d].

    Args:
        start: float32[M, d], the edge models that the clients started from.
        updates: Those that count: a client that was late has no place here.
        weighting: ``uniform`` (COCS eq. 3/6) or ``samples`` (GDA eq. 2).

    An edge without updates keeps its model.
    """
    total = np.zeros(start.shape, np.float64)
    weights = np.zeros(len(start), np.float64)
    for part in updates:
        share = part.samples if weighting == "samples" else np.ones(len(part.samples))
        # One by one: the order of summation must not depend on how the stream is cut.
        for edge, weight, delta in zip(part.edges, share, part.deltas, strict=True):
            total[edge] += float(weight) * delta.astype(np.float64)
            weights[edge] += float(weight)
    total /= np.where(weights > 0, weights, 1.0)[:, None]
    total += start
    return total.astype(np.float32)


def merged(models: Floats) -> Floats:
    """Return the mean over the M edge models, once per edge, float32[M, d]."""
    mean = models.mean(axis=0, dtype=np.float64).astype(np.float32)
    return np.tile(mean, (len(models), 1))
