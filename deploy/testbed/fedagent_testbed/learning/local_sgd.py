"""Local SGD of many clients at once: a gathered batch each, one product forward, one back."""

import numpy as np
import numpy.typing as npt

from .models import Model
from .schedule import Schedule
from .shards import Shards

Floats = npt.NDArray[np.float32]
Indices = npt.NDArray[np.int64]


def work_bytes(model: Model, steps: int, batch_size: int) -> int:
    """Return the bytes that one client of so many steps takes while it trains."""
    floats = 4 * model.size + batch_size * (model.features + 4 * model.classes)
    return 4 * floats + 28 * steps * batch_size


def descend(
    model: Model,
    shards: Shards,
    *,
    start: Floats,
    clients: Indices,
    schedule: Schedule,
    learning_rate: float,
) -> Floats:
    """Return the clients' trained parameters, float32[S, size].

    A client's result does not depend, to the bit, on who else trains: a batched
    product is one call of the same BLAS kernel per client, and every batch has the
    same shape.

    Args:
        model: What to train.
        shards: Training samples of all clients.
        start: float32[S, size].
        clients: int64[S], the longest schedule first.
        schedule: Their batches.
        learning_rate: Step.
    """
    theta = start.copy()
    slope = np.empty_like(theta)
    first = shards.offsets[clients]
    last = np.maximum(shards.counts[clients] - 1, 0)
    # Padding may read any row: its weight is 0.
    rows = np.minimum(schedule.place, last[:, None, None]) + first[:, None, None]
    batch = np.empty((len(clients), rows.shape[2], model.features), np.float32)
    for step in range(rows.shape[1]):
        active = int(np.searchsorted(-schedule.steps, -step, side="left"))
        at, x, out = rows[:active, step], batch[:active], slope[:active]
        # Only "clip" writes to `out` without a buffer; every index is valid.
        np.take(shards.x, at, axis=0, out=x, mode="clip")
        model.gradient(theta[:active], x, shards.y[at], schedule.weight[:active, step], out)
        out *= np.float32(learning_rate)
        theta[:active] -= out
    return theta
