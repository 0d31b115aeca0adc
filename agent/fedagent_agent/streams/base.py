"""What a stream gives to the trainer, and its errors."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Protocol

from fedagent_protocol.errors import FedagentError

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    import numpy.typing as npt

    from fedagent_task.samples import Csr
else:

    class _Numpy:
        """Numpy, imported at its first use: an agent reads what a stream is, and needs none."""

        def __getattr__(self, name: str) -> object:
            return getattr(import_module("numpy"), name)

    np = _Numpy()

__all__ = [
    "ResumableStream",
    "Samples",
    "Stream",
    "StreamBrokenError",
    "StreamError",
    "StreamOpenError",
    "StreamSchema",
    "StreamSpecError",
    "np",
]


class StreamError(FedagentError):
    """Base of the errors of streams; `key` is the option or part that is wrong."""

    template = "{key}: {reason}"

    key: str
    reason: str
    hint: str


class StreamSpecError(StreamError):
    """Raised when text describes no stream."""


class StreamOpenError(StreamError):
    """Raised when a stream that is well described cannot be read."""


class StreamBrokenError(StreamError):
    """Raised when a stream that was open gives no samples any more."""


@dataclass(frozen=True, slots=True)
class StreamSchema:
    """What a stream's samples are.

    Attributes:
        dtype: Numpy name of their raw type.
        labels: Every label that can come, ascending; None if that is not known.
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

    x: npt.NDArray[np.generic] | Csr
    y: npt.NDArray[np.int64] | npt.NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.y)

    def rows(self, part: slice) -> Samples:
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


class ResumableStream:
    """What streams with a past have: where to go on, and what was lost, by reason."""

    def __init__(self, offset: int) -> None:
        self._offset = offset
        self._counters: Counter[str] = Counter()

    @property
    def offset(self) -> int:
        """Position after the last take."""
        return self._offset

    @property
    def counters(self) -> Mapping[str, int]:
        """What was dropped, refused or begun anew so far."""
        return self._counters
