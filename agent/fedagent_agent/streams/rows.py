"""From foreign text to numbers: what makes a sample good, and why others are not."""

import math
from collections.abc import Sequence

from .base import Samples, np


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
