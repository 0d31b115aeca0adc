"""Convolutional networks of the papers: 5x5 convolutions, 2x2 max pooling, dense layers.

Plain numpy, so that every role can score and every device can learn; where torch is
installed it trains faster (`fedagent_agent.learners`). Inside, images are
[n, rows, columns, channels]; a sample is [channels, rows, columns], flat.
"""

from dataclasses import dataclass
from typing import cast

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

from fedagent_task.recipe.shapes import KERNEL, POOL, Image

from .base import Floats, Weights
from .mlp import Gradient, Mlp

Places = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class _Seen:
    """What the way back needs of one convolution."""

    columns: Floats  # the window under each output, [n * rows * columns, in * 25]
    places: Places  # which of the four was largest, [n, rows/2, columns/2, out]
    output: Floats
    size: tuple[int, int]  # rows and columns before pooling


@dataclass(frozen=True)
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
            flat: Floats = _unpooled(back * (one.output > 0), one.places, one.size)
            slopes[f"conv{index}.bias"] = flat.sum(axis=0)
            slopes[f"conv{index}.weight"] = (flat.T @ one.columns).reshape(weight.shape)
            if index > 1:
                back = _spread(flat @ weight.reshape(len(weight), -1), (n, *one.size), weight.shape)
        return slopes


def _convolved(images: Floats, weight: Floats, bias: Floats) -> _Seen:
    windows = sliding_window_view(images, (KERNEL, KERNEL), axis=(1, 2))
    n, rows, columns = windows.shape[:3]
    flat = cast("Floats", windows.reshape(n * rows * columns, -1))
    out = flat @ weight.reshape(len(weight), -1).T
    out += bias
    pooled, places = _pooled(out.reshape(n, rows, columns, -1))
    np.maximum(pooled, 0, out=pooled)
    return _Seen(flat, places, pooled, (rows, columns))


def _pooled(images: Floats) -> tuple[Floats, Places]:
    """Return the largest of each 2x2 block and which it was; an odd edge is left out."""
    n, rows, columns, channels = images.shape
    rows, columns = rows // POOL, columns // POOL
    blocks = images[:, : rows * POOL, : columns * POOL].reshape(
        n, rows, POOL, columns, POOL, channels
    )
    flat = blocks.transpose(0, 1, 3, 5, 2, 4).reshape(n, rows, columns, channels, POOL * POOL)
    places = flat.argmax(axis=4)
    largest = np.take_along_axis(flat, places[..., None], axis=4)[..., 0]
    return cast("Floats", largest), places


def _unpooled(slope: Floats, places: Places, size: tuple[int, int]) -> Floats:
    """Return the slope at each output of a convolution, [n * rows * columns, out]."""
    n, rows, columns, channels = slope.shape
    flat = np.zeros((n, rows, columns, channels, POOL * POOL), slope.dtype)
    np.put_along_axis(flat, places[..., None], slope[..., None], axis=4)
    blocks = flat.reshape(n, rows, columns, channels, POOL, POOL).transpose(0, 1, 4, 2, 5, 3)
    whole = np.zeros((n, *size, channels), slope.dtype)
    whole[:, : rows * POOL, : columns * POOL] = blocks.reshape(
        n, rows * POOL, columns * POOL, channels
    )
    return whole.reshape(-1, channels)


def _spread(windows: Floats, out: Image, weight: tuple[int, ...]) -> Floats:
    """Add each window's slope to the images under it, [n, rows, columns, in]."""
    n, rows, columns = out
    channels = weight[1]
    parts = windows.reshape(n, rows, columns, channels, KERNEL, KERNEL)
    images = np.zeros((n, rows + KERNEL - 1, columns + KERNEL - 1, channels), windows.dtype)
    for down in range(KERNEL):
        for right in range(KERNEL):
            images[:, down : down + rows, right : right + columns] += parts[..., down, right]
    return images
