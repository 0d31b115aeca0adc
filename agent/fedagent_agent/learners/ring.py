"""The memory of the newest samples, dense or sparse.

Not a reservoir: streams drift, and what a device sees now is what its model is for.
"""

import numpy as np
import numpy.typing as npt

from fedagent_task.models import Inputs, Labels
from fedagent_task.samples import Csr, joined

Places = npt.NDArray[np.intp] | npt.NDArray[np.int64]


class Ring:
    """At most `size` samples; new ones take the places of the oldest.

    Args:
        size: Most samples.
        width: Features of a sample.
    """

    def __init__(self, size: int, width: int) -> None:
        self._size = size
        # Not filled with anything: pages are taken as samples come.
        self._x: npt.NDArray[np.float32] = np.empty((size, width), np.float32)
        self._y = np.empty(size, np.float64)
        self._sparse: Csr | None = None
        self._filled = self._next = 0
        self.dropped = 0

    def __len__(self) -> int:
        return self._filled

    def absorb(self, x: Inputs, y: Labels) -> None:
        """Take new samples; what is more than fits is dropped and counted."""
        self.dropped += max(0, len(y) - self._size)
        x, y = x[-self._size :], y[-self._size :]
        if isinstance(x, Csr):
            self._absorb_sparse(x, y)
            return
        places = (self._next + np.arange(len(y))) % self._size
        self._x[places] = x
        self._y[places] = y
        self._next = (self._next + len(y)) % self._size
        self._filled = min(self._size, self._filled + len(y))

    def rows(self, index: Places | slice) -> tuple[Inputs, Labels]:
        """Return some of the samples by their places, below `len`."""
        x = self._x if self._sparse is None else self._sparse
        return x[index], self._y[index]

    def _absorb_sparse(self, x: Csr, y: Labels) -> None:
        """Append, and let go of the oldest; places are by age."""
        kept = self._sparse if self._sparse is not None else Csr.empty(x.width)
        stays = slice(max(0, len(kept) + len(y) - self._size), len(kept))
        labels = np.concatenate([self._y[stays], y])
        self._sparse = joined([kept[stays], x])
        self._filled = len(labels)
        self._y[: self._filled] = labels
