"""Which samples every client trains on at every local step of a round."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Schedule:
    """Batches of S clients for T steps; a client with fewer steps stops early.

    Attributes:
        place: int64[S, T, B], index of a sample within its client's part; `count`
            of the client where there is no sample.
        weight: float32[S, T, B], 1 / (samples of the batch); 0 where there is none.
        steps: int64[S], steps of each client.
    """

    place: Indices
    weight: npt.NDArray[np.float32]
    steps: Indices


def steps_of(
    counts: Indices, *, batch_size: int, epochs: int | None, local_steps: int | None
) -> Indices:
    """Return the local steps of clients with so many samples, int64."""
    per_epoch = -(-counts // batch_size)
    if local_steps is None:
        return per_epoch * (epochs or 0)
    return np.where(counts > 0, local_steps, 0).astype(np.int64)


def draw(
    counts: Indices,
    steps: Indices,
    rngs: list[np.random.Generator],
    batch_size: int,
) -> Schedule:
    """Shuffle every client's samples anew for every epoch and cut them into batches.

    The last batch of an epoch holds what is left; its mean is over that.

    Args:
        counts: int64[S], training samples.
        steps: int64[S], local steps, see `steps_of`.
        rngs: One per client: a client's batches must not depend on who else trains.
        batch_size: B.
    """
    longest = int(steps.max(initial=0))
    place = np.broadcast_to(counts[:, None, None], (len(counts), longest, batch_size)).copy()
    weight = np.zeros(place.shape, np.float32)
    for i, rng in enumerate(rngs):
        count, todo = int(counts[i]), int(steps[i])
        if not todo:
            continue
        per_epoch = -(-count // batch_size)
        epochs = -(-todo // per_epoch)
        orders = rng.permuted(np.tile(np.arange(count), (epochs, 1)), axis=1)
        padded = np.full((epochs, per_epoch * batch_size), count, np.int64)
        padded[:, :count] = orders
        place[i, :todo] = padded.reshape(-1, batch_size)[:todo]
        there = place[i, :todo] < count
        weight[i, :todo] = there / there.sum(axis=1, keepdims=True)
    return Schedule(place, weight, steps)
