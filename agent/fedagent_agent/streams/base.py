"""What the trainer asks of a stream."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from fedagent_task.samples import Csr

Raw = npt.NDArray[np.generic]
Labels = npt.NDArray[np.int64] | npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class StreamSchema:
    """What a stream's samples are.

    Attributes:
        features: Numbers in a sample.
        dtype: Numpy name of their raw type.
        labels: Every label that can come, ascending; None if that is not known.
        sparse: Whether samples come as `Csr`.
        names: What the features are called; empty if nobody has named them.
    """

    features: int
    dtype: str
    labels: tuple[int, ...] | None = None
    sparse: bool = False
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Samples:
    """Arrivals in order: raw features [n, features], dense or sparse, and labels [n]."""

    x: Raw | Csr
    y: Labels

    def __len__(self) -> int:
        return len(self.y)

    def rows(self, part: slice) -> "Samples":
        """Return some of the samples, in the same order."""
        return Samples(self.x[part], self.y[part])


class Stream(Protocol):
    """A source of samples; time is monotonic seconds, given by the caller."""

    def open(self, now: float) -> StreamSchema:
        """Start the stream.

        Raises:
            StreamOpenError: It cannot be read; says how to fix it.
        """
        ...

    def take(self, now: float) -> Samples:
        """Return everything that arrived since the last take, oldest first."""
        ...

    @property
    def offset(self) -> int:
        """Position after the last take, to resume at; 0 where there is none."""
        ...

    @property
    def counters(self) -> Mapping[str, int]:
        """What was dropped or refused so far, by reason."""
        ...

    def close(self) -> None:
        """Release what `open` took. Idempotent."""
        ...
