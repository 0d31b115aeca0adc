"""The running sum of masked updates at an edge: one vector, whatever the cohort."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from fedagent_protocol.tensors import Manifest
from fedagent_task.aggregation import ALL_TRAIN, Rules, RunningMean

from .keys import Seed
from .ring import MASKED, Ring, Words, add_masks, sums_of


@dataclass(slots=True)
class MaskedSum:
    """What is in it is told by `unmasked` alone; weights are inside the updates."""

    ring: Ring
    rules: Rules = ALL_TRAIN
    _total: Words | None = field(default=None, repr=False)

    def add(self, masked: Mapping[str, npt.NDArray[np.generic]]) -> None:
        """Add one update."""
        words = masked[MASKED].view(self.ring.word)
        if self._total is None:
            self._total = np.zeros(len(words), self.ring.word)
        np.add(self._total, words, out=self._total)

    def unmasked(self, seeds: Iterable[Seed], base: Manifest) -> RunningMean:
        """Return the mean, once; `ZeroDivisionError`: nothing was added, or of no weight."""
        total, self._total = self._total, None
        if total is None:
            raise ZeroDivisionError("nothing was added")
        add_masks(total, seeds, self.ring)
        sums, weight = sums_of(total, base, self.ring, self.rules.latest)
        if weight <= 0:
            raise ZeroDivisionError("the weight is no number above 0")
        return RunningMean.of(sums, float(weight), self.rules)
