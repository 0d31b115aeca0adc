"""Tensors of neural networks: names and shapes, from the widths of their layers."""

from collections.abc import Sequence
from dataclasses import dataclass

Shape = tuple[int, ...]
Image = tuple[int, int, int]

MAX_PARAMETERS = 64_000_000
"""Largest model: 256 MB of float32."""
MAX_PROGRAM_BYTES = 96 * 1024
"""Largest compressed program of a model that travels as a graph."""

KERNEL = 5
"""Rows and columns of every convolution; there is no padding."""
POOL = 2
"""Rows and columns that the pooling after each convolution makes one of."""


@dataclass(frozen=True, slots=True)
class CnnLayout:
    """A convolutional network of a paper; each convolution is pooled, then rectified."""

    convolutions: tuple[int, ...]
    hidden: tuple[int, ...]
    image: Image


LAYOUTS = {
    # RBCS-F, section "Experiments": 20 and 50 channels, then 500 units.
    "fashion": CnnLayout((20, 50), (500,), (28, 28, 1)),
    # COCS section VI and RBCS-F: 64 and 64 channels, then 384 and 192 units.
    "cifar": CnnLayout((64, 64), (384, 192), (32, 32, 3)),
}


def dense_shapes(widths: Sequence[int]) -> dict[str, Shape]:
    """Return the tensors of dense layers: ``dense1.weight`` is [widths[1], widths[0]]."""
    shapes: dict[str, Shape] = {}
    for index in range(1, len(widths)):
        shapes[f"dense{index}.bias"] = (widths[index],)
        shapes[f"dense{index}.weight"] = (widths[index], widths[index - 1])
    return shapes


def pooled(layout: CnnLayout, image: Image) -> Image:
    """Return rows, columns and channels after the last pooling; less than 1 if too small."""
    rows, columns, channels = image
    for width in layout.convolutions:
        rows, columns = (rows - KERNEL + 1) // POOL, (columns - KERNEL + 1) // POOL
        channels = width
    return rows, columns, channels


def cnn_shapes(layout: CnnLayout, image: Image, classes: int) -> dict[str, Shape]:
    """Return the tensors of a convolutional network: ``conv1.weight`` is [out, in, 5, 5]."""
    shapes: dict[str, Shape] = {}
    channels = image[2]
    for index, width in enumerate(layout.convolutions, 1):
        shapes[f"conv{index}.bias"] = (width,)
        shapes[f"conv{index}.weight"] = (width, channels, KERNEL, KERNEL)
        channels = width
    rows, columns, channels = pooled(layout, image)
    return shapes | dense_shapes([rows * columns * channels, *layout.hidden, classes])
