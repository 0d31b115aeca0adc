"""Whether features are of a size that a model can learn: about 1, after the declared scaling."""

from collections.abc import Sequence

import numpy as np

from fedagent_task.models import Inputs
from fedagent_task.samples import Csr

ENOUGH = 30
"""Samples that tell; later ones are not looked at."""
LARGE = 10.0
"""Root mean square of a feature beyond which a step of the learner is far too long for it."""
SMALL = 1e-3
"""Share of the median deviation below which a feature is hardly seen by a model."""
MAX_NAMED = 4


class Spread:
    """Looks at the first samples of a task, once.

    Args:
        over: There is nothing to look for.

    Attributes:
        names: What the features are called.
        note: Which features are out of proportion, for whoever runs the federation; names
            alone, so that nothing of a sample leaves the device. Empty if none is.
        warning: The same for the device's own log, with sizes and the hint.
    """

    def __init__(self, *, over: bool = False) -> None:
        self.names: Sequence[str] = ()
        self.note = self.warning = ""
        self._parts: list[np.ndarray[tuple[int, ...], np.dtype[np.float64]]] = []
        self._over = over

    def look(self, x: Inputs) -> bool:
        """Take in scaled samples [n, features]; True, once, if a feature is out of proportion."""
        if self._over or isinstance(x, Csr) or not len(x):
            return False
        self._parts.append(x.astype(np.float64))
        if sum(map(len, self._parts)) < ENOUGH:
            return False
        self._over = True
        seen = np.concatenate(self._parts)
        self._parts.clear()
        with np.errstate(over="ignore", invalid="ignore"):
            size, deviation = np.sqrt(np.square(seen).mean(axis=0)), seen.std(axis=0)
        varied = deviation[deviation > 0]
        usual = float(np.median(varied)) if len(varied) else 0.0
        odd = np.flatnonzero((size > LARGE) | ((deviation > 0) & (deviation < SMALL * usual)))
        if not len(odd):
            return False
        self._warn(odd.tolist(), size.tolist(), deviation.tolist())
        return True

    def _warn(self, odd: list[int], size: list[float], deviation: list[float]) -> None:
        shown, more = odd[:MAX_NAMED], len(odd) - MAX_NAMED
        rest = f" and {more} more" if more > 0 else ""
        self.note = f"out of proportion: {', '.join(self.names[i] for i in shown)}{rest}"
        sizes = ", ".join(
            f"{self.names[i]} (size {size[i]:.2g}, deviation {deviation[i]:.2g})" for i in shown
        )
        self.warning = (
            f"features out of proportion after scaling: {sizes}{rest}; a model learns features of "
            "about 1: scale each in data.features of the recipe, or set data.standardize = true"
        )
