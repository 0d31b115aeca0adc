"""A short picture of an update, so that updates can be compared without being kept in memory.

A count sketch (Charikar et al., ICALP 2002): inner products of sketches are those of the updates,
within about 1 / sqrt(LENGTH) of the product of the norms. Its signs are secret: who knew them
could make an update that looks like another.
"""

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

LENGTH = 512
BLOCK = 1 << 12
"""Numbers that are taken at a time, as many as an update is checked by."""
_TURNS = 4_093
"""Blocks after which the signs of whole blocks begin again."""


class Signs:
    """The signs of a seed, the same for all updates that are to be compared."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.within = 1.0 - 2.0 * rng.integers(0, 2, BLOCK)
        self.of_blocks = 1.0 - 2.0 * rng.integers(0, 2, _TURNS)


class Sketch:
    """The sketch of one update, whose blocks are taken in order."""

    def __init__(self, signs: Signs) -> None:
        self.values = np.zeros(LENGTH)
        self._signs, self._block = signs, 0

    def take(self, block: Floats) -> None:
        """Add up to `BLOCK` numbers, float64[b]."""
        signed = block * self._signs.within[: block.size]
        whole = block.size - block.size % LENGTH
        found = signed[:whole].reshape(-1, LENGTH).sum(axis=0)
        found[: block.size - whole] += signed[whole:]
        self.values += self._signs.of_blocks[self._block % _TURNS] * found
        self._block += 1
