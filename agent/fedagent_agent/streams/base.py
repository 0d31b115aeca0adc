"""What a stream gives to the trainer, its errors, and how foreign text becomes numbers."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Protocol

from fedagent_protocol.errors import FedagentError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    import numpy.typing as npt

    from fedagent_task.models.samples import Csr
else:

    class _Numpy:
        """Numpy, imported at its first use: an agent reads what a stream is, and needs none."""

        def __getattr__(self, name: str) -> object:
            return vars(self).setdefault(name, getattr(import_module("numpy"), name))

    np = _Numpy()

__all__ = [
    "BadSampleError",
    "ResumableStream",
    "RowReader",
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
    """Base of the errors of streams; `key` is the option or part that is wrong.

    A device that declines sends what it is as text. Where a file lies is nobody else's
    business: `path` is no part of that, only of `reason_here`.
    """

    template = "{key}: {reason}"

    key: str
    reason: str
    hint: str
    path: str = ""

    @property
    def reason_here(self) -> str:
        """The reason as the machine's own user may read it, with the file."""
        return f"{self.path}: {self.reason}" if self.path else self.reason


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
        labels: Every label that can come, ascending; None if that is not known.
    """

    features: int
    dtype: str  # numpy name of their raw type
    labels: tuple[int, ...] | None = None
    sparse: bool = False
    names: tuple[str, ...] = ()  # what the features are called; empty if they have no names


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
            StreamOpenError: It cannot be read; has a hint.
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


class BadSampleError(ValueError):
    """Raised for a sample that cannot be used; `reason` is a counter's name."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class RowReader:
    """Turn the fields of one sample into numbers: features of a type, a label or its name."""

    def __init__(self, *, dtype: str, labels: Sequence[str] = ()) -> None:
        self._dtype = np.dtype(dtype)
        self._names = {name: float(index) for index, name in enumerate(labels)}
        self._range = np.iinfo(self._dtype) if self._dtype.kind in "iu" else None

    def features(self, fields: Sequence[str | float]) -> list[float]:
        """Return finite numbers that fit the dtype."""
        try:
            numbers = [float(field) for field in fields]
        except (ValueError, OverflowError) as error:
            raise BadSampleError("bad_number") from error
        for number in numbers:
            if not math.isfinite(number):
                raise BadSampleError("bad_not_finite")
            limits = self._range
            if limits and (number != int(number) or not limits.min <= number <= limits.max):
                raise BadSampleError("bad_dtype")
        return numbers

    def label(self, field: str | float) -> float:
        """Return a label's number; names count from 0."""
        if isinstance(field, str) and (named := self._names.get(field.strip())) is not None:
            return named
        try:
            number = float(field)
        except (ValueError, OverflowError) as error:
            raise BadSampleError("bad_label") from error
        if not math.isfinite(number):
            raise BadSampleError("bad_label")
        return number

    def samples(self, rows: Sequence[tuple[list[float], float]], features: int) -> Samples:
        """Return these rows as arrays."""
        x = np.array([row for row, _ in rows], self._dtype).reshape(len(rows), features)
        return Samples(x, np.array([label for _, label in rows], np.float64))
