"""Convolutional networks of the papers: 5x5 convolutions, 2x2 max pooling, dense layers.

Plain numpy, so that every role can score and every device can learn; where torch is
installed it trains faster (`fedagent_agent.learners`). Inside, images are
[n, rows, columns, channels]; a sample is [channels, rows, columns], flat.
"""

from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from fedagent_task.recipe.shapes import KERNEL, POOL

from .base import Floats, Weights
from .mlp import Gradient, Mlp


@dataclass(frozen=True, slots=True)
class _Seen:
    """What the way back needs of one convolution."""

    columns: Floats  # the window under each output, [n * rows * columns, 25 * in]
    images: Floats  # before pooling
    output: Floats


class Cnn(Mlp):
    """Convolutions ``conv1``, ``conv2``, then the layers of `Mlp`; see `Model` for shapes."""

    @property
    def part(self) -> int:
        """Samples that are computed at a time: their windows take 25 times the memory."""
        return 64

    @property
    def _lifts(self) -> bool:
        return True

    @property
    def _convolutions(self) -> int:
        return len(self.spec.plan.convolutions)

    def _lift(self, weights: Weights, x: Floats) -> tuple[Floats, object]:
        rows, columns, channels = self.spec.picture
        planes = x.astype(weights["conv1.weight"].dtype, copy=False).reshape(
            len(x), channels, rows, columns
        )
        images = cast("Floats", planes.transpose(0, 2, 3, 1))
        kept: list[_Seen] = []
        for index in range(1, self._convolutions + 1):
            seen = _convolved(images, weights[f"conv{index}.weight"], weights[f"conv{index}.bias"])
            kept.append(seen)
            images = seen.output
        return images.transpose(0, 3, 1, 2).reshape(len(x), -1), kept

    def _lower(self, weights: Weights, kept: object, slope: Floats) -> Gradient:
        seen = cast("list[_Seen]", kept)
        n, rows, columns, channels = seen[-1].output.shape
        back = slope.reshape(n, channels, rows, columns).transpose(0, 2, 3, 1)
        slopes: Gradient = {}
        for index in range(self._convolutions, 0, -1):
            one, weight = seen[index - 1], weights[f"conv{index}.weight"]
            flat = _unpooled(back * (one.output > 0), one.images)
            slopes[f"conv{index}.bias"] = flat.sum(axis=0)
            slope_of_window = (flat.T @ one.columns).reshape(len(weight), KERNEL, KERNEL, -1)
            slopes[f"conv{index}.weight"] = slope_of_window.transpose(0, 3, 1, 2)
            if index > 1:
                back = _spread(flat @ _by_window(weight), one.images.shape, weight.shape)
        return slopes


def _by_window(weight: Floats) -> Floats:
    """Return the weights [out, 25 * in]: windows whose channels stand together are copied fast."""
    return cast("Floats", weight.transpose(0, 2, 3, 1).reshape(len(weight), -1))


def _convolved(images: Floats, weight: Floats, bias: Floats) -> _Seen:
    windows = sliding_window_view(images, (KERNEL, KERNEL), axis=(1, 2))
    n, rows, columns = windows.shape[:3]
    flat = cast("Floats", windows.transpose(0, 1, 2, 4, 5, 3).reshape(n * rows * columns, -1))
    out = flat @ _by_window(weight).T
    out += bias
    images = out.reshape(n, rows, columns, -1)
    pooled = np.maximum.reduce(_corners(images))
    np.maximum(pooled, 0, out=pooled)
    return _Seen(flat, images, pooled)


def _corners(images: Floats) -> list[Floats]:
    """Return the four of each 2x2 block, from left to right and down; an odd edge is left out."""
    rows, columns = images.shape[1] // POOL * POOL, images.shape[2] // POOL * POOL
    return [
        images[:, down:rows:POOL, right:columns:POOL]
        for down in range(POOL)
        for right in range(POOL)
    ]


def _unpooled(slope: Floats, images: Floats) -> Floats:
    """Return the slope at each output of a convolution, [n * rows * columns, out]."""
    places = np.argmax(_corners(images), axis=0)
    whole = np.zeros(images.shape, slope.dtype)
    for place, corner in enumerate(_corners(whole)):
        np.copyto(corner, slope, where=places == place)
    return cast("Floats", whole.reshape(-1, images.shape[3]))


def _spread(windows: Floats, out: tuple[int, ...], weight: tuple[int, ...]) -> Floats:
    """Add each window's slope to the images under it, [n, rows, columns, in]."""
    n, rows, columns = out[:3]
    channels = weight[1]
    parts = windows.reshape(n, rows, columns, KERNEL, KERNEL, channels)
    images = np.zeros((n, rows + KERNEL - 1, columns + KERNEL - 1, channels), windows.dtype)
    for down in range(KERNEL):
        for right in range(KERNEL):
            images[:, down : down + rows, right : right + columns] += parts[..., down, right, :]
    return images
