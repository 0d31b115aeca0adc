"""What a stream gives to the trainer, and how foreign text becomes numbers."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from fedagent_task.models.base import Csr


@dataclass(frozen=True, slots=True)
class StreamSchema:
    """What a stream's samples are."""

    features: int
    dtype: str  # numpy name of their raw type
    labels: tuple[int, ...] | None = None  # all that can come, ascending; None: not known
    sparse: bool = False
    names: tuple[str, ...] = ()  # what the features are called; empty if they have no names


@dataclass(frozen=True, slots=True, eq=False)
class Samples:
    """Arrivals in order: raw features [n, features], dense or sparse, and labels [n]."""

    x: npt.NDArray[np.generic] | Csr
    y: npt.NDArray[np.int64] | npt.NDArray[np.float64]

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
            StreamError: It cannot be read.
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
        self._whole = self._dtype.kind in "iu"
        limits = np.iinfo(self._dtype) if self._whole else np.finfo(self._dtype)
        number = int if self._whole else float
        self._least, self._most = number(limits.min), number(limits.max)

    def features(self, fields: Sequence[str | float]) -> list[float]:
        """Return finite numbers that fit the dtype."""
        try:
            numbers = [float(field) for field in fields]
        except (ValueError, OverflowError) as error:
            raise BadSampleError("bad_number") from error
        for number in numbers:
            if not math.isfinite(number):
                raise BadSampleError("bad_not_finite")
            fits = self._least <= number <= self._most
            if not fits or (self._whole and number != int(number)):
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
