"""What a stream gives to the trainer, and how foreign text becomes numbers."""

import math
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedagent_task.models.base import Csr
from fedagent_task.readers.table import FIRST_LINES, SampleError, number_of

from .spec import StreamError


@dataclass(frozen=True, slots=True)
class StreamSchema:
    """What a stream's samples are."""

    features: int
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

    def rows(self, part: slice | npt.NDArray[np.intp]) -> "Samples":
        """Return some of the samples."""
        return Samples(self.x[part], self.y[part])


Row = tuple[list[float], float]
"""Features and label of a sample."""


class Stream(ABC):
    """A source of samples; time is monotonic seconds, given by the caller."""

    def __init__(self, offset: int = 0) -> None:
        self._offset = offset
        self._counters: Counter[str] = Counter()
        self._read = False  # there was a sample
        self._unread: list[SampleError] = []  # before the first one

    @abstractmethod
    def open(self, now: float) -> StreamSchema:
        """Start the stream; `StreamError`: it cannot be read."""

    @abstractmethod
    def take(self, now: float) -> Samples:
        """Return everything that arrived since the last take, oldest first."""

    @property
    def offset(self) -> int:
        """Position after the last take, to resume at; 0 where there is none."""
        return self._offset

    @property
    def mark(self) -> str:
        """What identifies that in which `offset` counts, at that position; may be empty."""
        return ""

    @property
    def counters(self) -> Mapping[str, int]:
        """What was dropped, refused or begun anew so far, by reason."""
        return self._counters

    def close(self) -> None:  # noqa: B027 - not all take something
        """Release what `open` took. Idempotent."""

    def _keep(self, row: Row, rows: deque[Row]) -> None:
        self._read, self._unread = True, []
        self._counters["dropped"] += len(rows) == rows.maxlen
        rows.append(row)

    def _refuse(self, error: SampleError) -> None:
        self._counters[error.why] += 1
        if not self._read and len(self._unread) < FIRST_LINES:
            self._unread.append(error)

    def _expect_one(self, key: str, what: str, path: str = "") -> None:
        """Raise `StreamError` where many came and none was a sample: it says what to mend."""
        if len(self._unread) == FIRST_LINES:
            error = self._unread[0]
            reason = f"no {what} so far is a sample: {error.sentence.strip()}"
            raise StreamError(key, reason, error.hint, path)


def finite(numbers: list[float]) -> list[float]:
    """Return the numbers if they are finite."""
    if not all(map(math.isfinite, numbers)):
        hint = "have gaps left out"
        raise SampleError("bad_not_finite", "", "has a number that is not finite", hint)
    return numbers


def label_of(
    text: str,
    names: Sequence[str],
    column: str,
    number: Callable[[str], float | None] = number_of,
) -> float:
    """Return a label's number.

    Names of classes count from 0. Where they are numbers themselves, such a number is a name.
    """
    if text in names:
        return float(names.index(text))
    found, known = number(text), [number_of(name) for name in names]
    if found is not None and found in known:
        return float(known.index(found))
    if found is None or not math.isfinite(found) or any(one is not None for one in known):
        hint = "count classes from 0, or name them in data.labels of the recipe"
        raise SampleError("bad_label", column, "is no label of the task", hint)
    return found


def samples_of(rows: Collection[Row], features: int) -> Samples:
    """Return rows as arrays."""
    x = np.array([row for row, _ in rows], np.float64).reshape(len(rows), features)
    return Samples(x, np.array([label for _, label in rows], np.float64))
