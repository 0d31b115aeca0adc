"""Local SGD of many clients at once: a gathered batch each, one product forward, one back.

Everything of a `BatchedModel` has a leading axis of S clients and is one batched product. Scores
are [S, classes, B]: reductions over classes then run along whole rows of memory.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedagent_task.models import Model
from fedagent_testbed.worlds.base import spawned_rng

from .datasets import StudyData
from .partition import Partition

Floats = npt.NDArray[np.float32]
Indices = npt.NDArray[np.int64]
Array = npt.NDArray[np.float32] | npt.NDArray[np.float64]
Layers = list[tuple[Array, Array]]
"""Views of each layer's bias [S, outputs] and weight [S, outputs, inputs]."""

_HELD_OUT = 0
"""First word of the spawn key of a client's split; rounds use theirs (`trainer`)."""


class BatchedModel:
    """A softmax, svm or mlp of the task package as functions of parameters flat as its manifest.

    An svm has the loss of Crammer and Singer (largest margin violation): the GDA paper says "SVM"
    and no more.

    Shapes: theta [S, size], x [S, B, features], y int64[S, B], weight [S, B]: what each sample
    counts (1 / batch for a mean, 0 for padding); float32, or float64 throughout.
    """

    def __init__(self, model: Model) -> None:
        self._model = model
        self._margin = model.spec.kind == "svm"
        self._l2 = model.spec.l2
        shapes = [spec.shape for spec in model.manifest().specs]
        self._shapes = shapes[1::2]
        self.features, self.classes = shapes[1][1], shapes[-1][0]
        self.size = model.spec.parameters

    def init(self, seed: int) -> npt.NDArray[np.float32]:
        """Return the model's starting weights, float32[size]."""
        weights = self._model.init(seed)
        return np.concatenate([weights[one.name].ravel() for one in self._model.manifest().specs])

    def scores(self, theta: Array, x: Array) -> Array:
        """Return the score of each class, [S, classes, B]; the largest one is predicted."""
        return self._forward(self._layers(theta), x)[-1]

    def predicted(self, theta: Floats, x: Floats) -> Indices:
        """Return the class of each sample, int64[n], by parameters float32[size]."""
        return np.asarray(self.scores(theta[None], x[None])[0].argmax(axis=0), np.int64)

    def losses(self, theta: Floats, x: Floats, y: Indices) -> Floats:
        """Return the loss of each sample without l2, float32[n], by parameters float32[size]."""
        scores = self.scores(theta[None], x[None])[0]
        true = scores[y, np.arange(len(y))].copy()
        if self._margin:
            scores[y, np.arange(len(y))] -= 1.0
            return np.asarray(scores.max(axis=0) + 1.0 - true, np.float32)
        top = scores.max(axis=0)
        return np.asarray(top + np.log(np.exp(scores - top).sum(axis=0)) - true, np.float32)

    def gradient(self, theta: Array, x: Array, y: Indices, weight: Array, out: Array) -> None:
        """Write the gradient of the weighted loss to out [S, size]."""
        layers, slopes = self._layers(theta), self._layers(out)
        *seen, residual = self._forward(layers, x)
        _to_residual(residual, y, weight, margin=self._margin)
        for index in range(len(layers) - 1, -1, -1):
            np.matmul(residual, seen[index].transpose(0, 2, 1), out=slopes[index][1])
            residual.sum(axis=2, out=slopes[index][0])
            if index:
                residual = layers[index][1].transpose(0, 2, 1) @ residual
                residual *= seen[index] > 0
            if self._l2:
                slopes[index][1].__iadd__(theta.dtype.type(self._l2) * layers[index][1])

    def _layers(self, theta: Array) -> Layers:
        layers, at = [], 0
        for outputs, inputs in self._shapes:
            middle, end = at + outputs, at + outputs * (1 + inputs)
            weight = theta[:, middle:end].reshape(len(theta), outputs, inputs)
            layers.append((theta[:, at:middle], weight))
            at = end
        return layers

    def _forward(self, layers: Layers, x: Array) -> list[Array]:
        """Return what each layer sees, [S, inputs, B], and the scores at the end."""
        seen: list[Array] = [x.transpose(0, 2, 1)]
        for index, (bias, weight) in enumerate(layers, 1):
            z = weight @ seen[-1]
            z += bias[:, :, None]
            if index < len(layers):
                np.maximum(z, 0, out=z)
            seen.append(z)
        return seen


def _to_residual(z: Array, y: Indices, weight: Array, *, margin: bool) -> None:
    """Turn scores into d(weighted loss)/d(scores), in place."""
    s, b = y.shape
    clients, samples = np.arange(s)[:, None], np.arange(b)[None, :]
    true = clients, y, samples
    if margin:
        z[true] -= 1.0
        rival = clients, z.argmax(axis=1), samples
        z[...] = 0.0
        z[rival] = weight
        z[true] -= weight
    else:
        z -= z.max(axis=1, keepdims=True)
        np.exp(z, out=z)
        z /= z.sum(axis=1, keepdims=True)
        z[true] -= 1.0
        z *= weight[:, None]


@dataclass(frozen=True, slots=True, eq=False)
class Shards:
    """One part of every client's samples, client after client.

    Attributes:
        first, counts: int64[N], the rows of a client begin there and are so many.
    """

    x: Floats
    y: Indices
    first: Indices
    counts: Indices

    def of(self, client: int) -> slice:
        """Return the rows of one client."""
        first = int(self.first[client])
        return slice(first, first + int(self.counts[client]))

    def newest(self, arrived: Indices, most: int) -> "Shards":
        """Return what clients hold once int64[N] of their samples have come: `most` at most."""
        arrived = np.minimum(arrived, self.counts)
        gone = np.maximum(arrived - most, 0)
        return Shards(self.x, self.y, self.first + gone, arrived - gone)


def split(
    data: StudyData, partition: Partition, *, held_out: float, seed: int
) -> tuple[Shards, Shards]:
    """Return what clients train on, and what each keeps back to evaluate models.

    A client holds out the share `held_out`, rounded, and at least one of two or more samples.
    Shares are drawn per client, so that they do not depend on how many clients there are.
    """
    train: list[Indices] = []
    held: list[Indices] = []
    for client, rows in enumerate(partition):
        rng = spawned_rng(seed, _HELD_OUT, client)
        count = len(rows)
        keep = min(max(round(held_out * count), 1), count - 1) if held_out and count else 0
        shuffled = rng.permutation(rows)
        held.append(shuffled[:keep])
        train.append(shuffled[keep:])
    return _gathered(data, train), _gathered(data, held)


def _gathered(data: StudyData, parts: list[Indices]) -> Shards:
    """Copy the rows side by side: training then walks memory it can foresee."""
    counts = np.array([len(part) for part in parts], np.int64)
    rows = np.concatenate(parts)
    x, y = data.dense_x[rows], data.y[rows].astype(np.int64)
    return Shards(x, y, np.cumsum(counts) - counts, counts)


def descend(
    model: BatchedModel,
    shards: Shards,
    start: Floats,
    *,
    clients: Indices,
    steps: Indices,
    rngs: list[np.random.Generator],
    batch: int,
    rate: float,
    mu: float = 0.0,
    shift: Floats | None = None,
) -> Floats:
    """Return the clients' trained parameters, float32[S, size], from those at the start.

    FedProx's `mu` adds ``mu * (theta - start)`` to the gradients, SCAFFOLD its c - c_i, which is
    `shift`, float32[S, size].

    A client's result does not depend, to the bit, on who else trains: a batched product is one
    call of the same BLAS kernel per client, every batch has the same shape, and each client has a
    generator of its own. `clients` come with the most `steps`, int64[S], first.
    """
    theta = start.copy()
    slope = np.empty_like(theta)
    first, counts = shards.first[clients], shards.counts[clients]
    place, weight = _batches(counts, steps, rngs, batch)
    # Padding may read any row: its weight is 0.
    rows = np.minimum(place, np.maximum(counts - 1, 0)[:, None, None]) + first[:, None, None]
    samples = np.empty((len(clients), batch, model.features), np.float32)
    for step in range(rows.shape[1]):
        active = int(np.searchsorted(-steps, -step, side="left"))
        at, x, out = rows[:active, step], samples[:active], slope[:active]
        # Only "clip" writes to `out` without a buffer; every index is valid.
        np.take(shards.x, at, axis=0, out=x, mode="clip")
        model.gradient(theta[:active], x, shards.y[at], weight[:active, step], out)
        if mu:
            out += np.float32(mu) * (theta[:active] - start[:active])
        if shift is not None:
            out += shift[:active]
        out *= np.float32(rate)
        theta[:active] -= out
    return theta


def _batches(
    counts: Indices, steps: Indices, rngs: list[np.random.Generator], size: int
) -> tuple[Indices, Floats]:
    """Shuffle every client's samples anew for every epoch and cut them into batches.

    The last batch of an epoch holds what is left; a client with fewer steps stops early.

    Returns: int64[S, T, size], the index of a sample within its client's part, or the part's size
    where there is no sample; and float32[S, T, size], 1 / (samples of the batch), or 0.
    """
    longest = int(steps.max(initial=0))
    place = np.broadcast_to(counts[:, None, None], (len(counts), longest, size)).copy()
    weight = np.zeros(place.shape, np.float32)
    for i, rng in enumerate(rngs):
        count, todo = int(counts[i]), int(steps[i])
        if not todo:
            continue
        per_epoch = -(-count // size)
        epochs = -(-todo // per_epoch)
        orders = rng.permuted(np.tile(np.arange(count), (epochs, 1)), axis=1)
        padded = np.full((epochs, per_epoch * size), count, np.int64)
        padded[:, :count] = orders
        place[i, :todo] = padded.reshape(-1, size)[:todo]
        there = place[i, :todo] < count
        weight[i, :todo] = there / there.sum(axis=1, keepdims=True)
    return place, weight
