"""Updates as integers that wrap around: masked, added up exactly, and turned back.

A vector is the update's numbers, cut to `largest`, rounded to steps and times its weight, and
after them the weight itself.
"""

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from fedagent_protocol.messages import MAX_MEMBERS, Weighting
from fedagent_protocol.tensors import Manifest, TensorSpec
from fedagent_task.aggregation import ALL_TRAIN, Rules, RunningMean
from fedagent_task.privacy.mechanism import KeyStream
from fedagent_task.recipe.spec import LimitsSpec, SecureAggregationSpec

if TYPE_CHECKING:
    # A device that masks nothing does without cryptography here: several megabytes.
    from .keys import Seed

MASKED = "masked"
"""Name of the one tensor in a masked update."""
_BLOCK = 1 << 16

Words = npt.NDArray[np.generic]


@dataclass(frozen=True, slots=True)
class Ring:
    """Integers modulo 2^bits, with `steps` to the unit; no sum of a cohort wraps around."""

    bits: int
    steps: float
    largest: float

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """Its numbers as they travel."""
        return np.dtype(np.int32 if self.bits == 32 else np.int64)

    @property
    def word(self) -> str:
        """Its numbers as they are added."""
        return f"<u{self.bits // 8}"

    def manifest(self, base: Manifest, dropped: Collection[str] = ()) -> Manifest:
        """Return what a masked update of this model holds."""
        count = sum(math.prod(spec.shape) for spec in base.specs if spec.name not in dropped)
        return Manifest((TensorSpec(MASKED, str(self.dtype), (count + 1,)),))


def ring_of(spec: SecureAggregationSpec, most: int) -> Ring:
    """Return the ring for sums of as many updates as may be, of at most this weight.

    Updates that count alike fit into 32 bits, with 2^22 steps or more to `largest`.
    """
    bits = 32 if most == 1 else 64
    room = (2 ** (bits - 1) - 1) // (MAX_MEMBERS * most)
    # A power of two, so that steps are exact in binary.
    return Ring(bits, 2.0 ** math.floor(math.log2(room / spec.largest)), spec.largest)


def most_weight(weighting: Weighting, limits: LimitsSpec) -> int:
    """Return the largest weight of an update."""
    return 1 if weighting is Weighting.UNIFORM else limits.max_samples


def vector_of(
    update: Mapping[str, npt.NDArray[np.generic]],
    weight: int,
    ring: Ring,
    dropped: Collection[str] = (),
) -> Words:
    """Return an update as unsigned integers, in the order of its tensors' names."""
    parts: list[npt.NDArray[np.int64]] = []
    for name in sorted(update):
        if name not in dropped:
            cut = np.clip(update[name].astype(np.float64), -ring.largest, ring.largest)
            parts.append(np.rint(cut * ring.steps).astype(np.int64).reshape(-1) * weight)
    parts.append(np.array([weight], np.int64))
    return np.concatenate(parts).astype(ring.word)


def add_masks(vector: Words, seeds: "Iterable[Seed]", ring: Ring) -> None:
    """Add or take away masks in place, a block at a time."""
    size = ring.bits // 8
    for key, sign in seeds:
        stream = KeyStream(key)
        for start in range(0, len(vector), _BLOCK):
            block = vector[start : start + _BLOCK]
            words = np.frombuffer(stream.take(size * len(block)), ring.word)
            (np.add if sign > 0 else np.subtract)(block, words, out=block)


def sums_of(
    total: Words, base: Manifest, ring: Ring, dropped: Collection[str] = ()
) -> tuple[dict[str, npt.NDArray[np.float64]], int]:
    """Return the weighted sums by tensor, flat float64, and the weight they divide by."""
    signed = total.view(f"<i{ring.bits // 8}")
    sums: dict[str, npt.NDArray[np.float64]] = {}
    start = 0
    for spec in base.specs:
        count = math.prod(spec.shape)
        if spec.name in dropped:
            sums[spec.name] = np.zeros(count)
            continue
        sums[spec.name] = signed[start : start + count].astype(np.float64) / ring.steps
        start += count
    return sums, int(signed[-1])


@dataclass(slots=True)
class MaskedSum:
    """The sum at an edge: `unmasked` alone says what is in it; weights are inside the updates."""

    ring: Ring
    rules: Rules = ALL_TRAIN
    _total: Words | None = field(default=None, repr=False)

    def add(self, masked: Mapping[str, npt.NDArray[np.generic]]) -> None:
        """Add one update."""
        words = masked[MASKED].view(self.ring.word)
        if self._total is None:
            self._total = np.zeros(len(words), self.ring.word)
        np.add(self._total, words, out=self._total)

    def unmasked(self, seeds: Iterable["Seed"], base: Manifest) -> RunningMean:
        """Return the mean, once; `ZeroDivisionError`: nothing was added, or of no weight."""
        total, self._total = self._total, None
        if total is None:
            raise ZeroDivisionError("nothing was added")
        add_masks(total, seeds, self.ring)
        sums, weight = sums_of(total, base, self.ring, self.rules.latest)
        if weight <= 0:
            raise ZeroDivisionError("the weight is no number above 0")
        return RunningMean.of(sums, float(weight), self.rules)
