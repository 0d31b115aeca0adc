"""Who keeps pointing against the others: the direction of updates, over rounds.

The alignment of an update is the cosine between it and the sum of the others', each of which
counts by its direction alone, so that neither a long nor a heavy update decides what is usual. Of
a device it is a mean in which the newest round weighs `NEWEST`.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

NEWEST = 0.3
AGAINST = -0.05
"""What is aligned better is not against the others."""
SPREADS = 1.5
"""What is so many spreads (1.48 MAD) below the median is, unless it is above `AGAINST`."""
FEWEST = 4
"""Of fewer nobody can tell who points against whom."""
KEPT = 512
"""Devices that an edge remembers."""
_PASSES = 10
_SAME, _UNUSUAL = 1.0 - 1e-6, 0.01
"""A copy is so like another, and so much nearer to it than two updates usually are."""
_AGREED, _SURE, _NUMBERS = 0.5, 4.0, 16
"""Nobody is doubted for a direction where the median alignment is less, or within so many spreads
of it, or whose update has fewer numbers: where the directions of all are noise, or their data
differ, that of one tells nothing.
"""
_ELSEWHERE, _ALIKE, _REVERSED = 0.1, 0.7, -0.5

OPPOSED = "points against the others"
UNLIKE = "is unlike the others in this round"
COPIED = "is like an earlier update"
ELSEWHERE = "points elsewhere than the others"
LEFT_OUT = frozenset({OPPOSED, UNLIKE})
"""Reasons of updates that are left out of the sum; nobody is doubted for being unlike others."""
DOUBTS = frozenset({OPPOSED, COPIED, ELSEWHERE})
"""Reasons of updates that are doubted."""


def cosines(gram: Floats, kept: Flags) -> Floats:
    """Return each update's cosine with the sum of the directions of the other kept ones.

    float64[n], by the inner products float64[n, n].
    """
    own = np.sqrt(np.diag(gram))
    unit = gram / np.maximum(np.outer(own, own), 1e-300)
    k, self_ = kept.astype(np.float64), np.diag(unit)
    beside = unit @ k
    others = beside - self_ * k
    square = k @ beside - 2.0 * k * beside + self_ * k
    found = np.clip(others / np.sqrt(np.maximum(square, 1e-12)), -1.0, 1.0)
    return np.asarray(found, dtype=np.float64)


def judged(gram: Floats, before: Floats) -> tuple[Floats, Flags]:
    """Return each device's alignment now, NaN where nobody can tell, and who is against.

    `before` is float64[n], NaN of a device that is new. Nobody is where it would be half of all,
    or where the directions of all are noise.
    """
    there = np.diag(gram) > 0
    if there.sum() < FEWEST:
        return np.full(len(gram), np.nan), np.zeros(len(gram), dtype=np.bool_)
    kept, now = there, before
    for _ in range(_PASSES):
        fresh = cosines(gram, kept)
        now = np.where(np.isnan(before), fresh, before + NEWEST * (fresh - before))
        middle = np.median(now[there])
        spread = 1.4826 * np.median(np.abs(now[there] - middle))
        limit = min(AGAINST, middle - SPREADS * spread, _REVERSED * middle)
        still = there & ((middle < -AGAINST) | (now >= limit))
        if np.array_equal(still, kept):
            break
        kept = still
    against = there & ~kept
    if 2 * against.sum() >= there.sum():
        against[:] = False
    return np.where(there, now, np.nan), against


def doubts(gram: Floats, now: Floats, against: Flags, numbers: int) -> list[str]:
    """Return what is odd about each update, in the order in which they came; empty if nothing is.

    `now` and `against` are those of `judged`, `numbers` is how many an update has. Elsewhere is who
    has less than a tenth of a median alignment that is 0.7 or more, as noise has.
    """
    if numbers < _NUMBERS or not np.isfinite(now).any():
        return [UNLIKE if out else "" for out in against]
    own = np.sqrt(np.diag(gram))
    unit = np.minimum(gram / np.maximum(np.outer(own, own), 1e-300), 1.0)
    # Where honest devices hardly differ (much data, a small model), nobody can tell a copy.
    pairs = unit[np.tril_indices(len(unit), -1)]
    copied = (np.tril(unit, -1) > max(_SAME, 1.0 - _UNUSUAL * (1.0 - np.median(pairs)))).any(axis=1)
    middle = float(np.nanmedian(now))
    spread = 1.4826 * float(np.nanmedian(np.abs(now - middle)))
    sure = (middle >= _AGREED) & (now < middle - _SURE * spread)
    elsewhere = sure & (middle >= _ALIKE) & (now < _ELSEWHERE * middle)
    return [
        (OPPOSED if wrong else UNLIKE) if out else COPIED if same else ELSEWHERE if far else ""
        for out, wrong, same, far in zip(against, sure, copied, elsewhere, strict=True)
    ]


def gram_of(vectors: Sequence[Floats]) -> Floats:
    """Return the inner products of vectors float64[k]."""
    rows = np.stack(vectors)
    return np.asarray(rows @ rows.T, dtype=np.float64)


def remembered(before: Mapping[str, float], names: Sequence[str], now: Floats) -> dict[str, float]:
    """Return the alignments of devices after a round; of the newest `KEPT`."""
    fresh = {name: one for name, one in zip(names, now.tolist(), strict=True) if np.isfinite(one)}
    kept = {**{name: one for name, one in before.items() if name not in fresh}, **fresh}
    return dict(list(kept.items())[-KEPT:])


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
    """A short picture of one update, whose blocks are taken in order.

    A count sketch (Charikar et al., ICALP 2002): inner products of sketches are those of the
    updates, within about 1 / sqrt(LENGTH) of the product of the norms. The signs are secret: who
    knew them could make an update that looks like another.
    """

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
