"""numpy archives: samples, time series of stations, and the bundled digits."""

import math
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from numpy.lib.npyio import NpzFile

from fedagent_task.errors import DatasetError

from .base import MAX_BYTES, Dataset, expect_size, whole_numbers

_SAMPLES_HINT = "save it by numpy.savez(path, x=..., y=...)"
_SERIES_HINT = "save values [station, time, sensor] and columns by numpy.savez"
DIGITS = Path(__file__).parent.parent / "data" / "digits.npz"
"""See ``data/README.md``."""
_SPLIT_SEED = 1998
_TEST_SHARE = 0.2


@contextmanager
def _archive(path: Path, limit: int, wrong: str, hint: str) -> Iterator[NpzFile]:
    """Open an archive that unpacks to no more than the limit; nothing in it is ever executed."""
    try:
        with zipfile.ZipFile(path) as archive:
            expect_size(path, sum(item.file_size for item in archive.infolist()), limit)
        with np.load(path, allow_pickle=False) as arrays:
            yield arrays
    except OSError as error:
        raise DatasetError(str(path), error.strerror or "cannot be read", "check it") from error
    except (KeyError, ValueError, EOFError, zipfile.BadZipFile, NotImplementedError) as error:
        raise DatasetError(str(path), wrong, hint) from error


def read_npz(path: Path, limit: int = MAX_BYTES) -> Dataset:
    """Return ``x`` [n, ...], flattened to rows, and ``y`` [n]."""
    with _archive(path, limit, "is no archive with x and y", _SAMPLES_HINT) as arrays:
        x, y = arrays["x"], arrays["y"]
    numeric = x.dtype.kind in "fiub" and y.dtype.kind in "fiub"
    if not numeric or x.ndim < 2 or y.ndim != 1 or len(x) != len(y):
        what = f"x is {x.dtype}{x.shape}, y is {y.dtype}{y.shape}"
        raise DatasetError(str(path), what, _SAMPLES_HINT)
    labels = y.astype(np.int64) if y.dtype.kind in "iub" else whole_numbers(y.astype(np.float64))
    return Dataset(x.reshape(len(x), math.prod(x.shape[1:])), labels)


@dataclass(frozen=True, slots=True, eq=False)
class Series:
    """Readings of several stations at the same times.

    Attributes:
        values: float32 [station, time, sensor]; NaN where a reading is missing.
        columns, stations: Names of the sensors and stations; these may have none.
    """

    name: str
    values: npt.NDArray[np.float32]
    columns: tuple[str, ...]
    stations: tuple[str, ...] = ()

    def station(self, which: str) -> npt.NDArray[np.float32]:
        """Return one station's readings [time, sensor], by its name or number from 0."""
        if which in self.stations:
            return np.asarray(self.values[self.stations.index(which)])
        if which.isdigit() and int(which) < len(self.values):
            return np.asarray(self.values[int(which)])
        known = ", ".join(self.stations) or f"0 to {len(self.values) - 1}"
        raise DatasetError(self.name, f"has no station {which[:40]!r}", f"take one of {known}")

    def column(self, name: str) -> int:
        """Return the place of a sensor."""
        if name not in self.columns:
            known = ", ".join(self.columns)
            raise DatasetError(self.name, f"has no column {name[:40]!r}", f"take one of {known}")
        return self.columns.index(name)


def read_series(path: Path, limit: int = MAX_BYTES) -> Series:
    """Return an archive of ``values``, ``columns`` and, if there, ``stations``."""
    with _archive(path, limit, "is no archive of a series", _SERIES_HINT) as arrays:
        values, columns = arrays["values"], arrays["columns"]
        stations = arrays["stations"] if "stations" in arrays else np.empty(0, np.str_)
    fits = values.ndim == 3 and values.dtype.kind in "fiu" and columns.shape == values.shape[2:]
    named = columns.dtype.kind == "U" and stations.shape in ((0,), values.shape[:1])
    if not (fits and named and values.size):
        raise DatasetError(str(path), f"values are {values.dtype}{values.shape}", _SERIES_HINT)
    return Series(
        str(path),
        values.astype(np.float32, copy=False),
        tuple(map(str, columns)),
        tuple(map(str, stations)),
    )


def read_digits(part: str) -> Dataset:
    """Return the ``train`` (1438) or ``test`` (359) digits: x uint8 [n, 64] of 0 to 16.

    The split is stratified by digit and never changes.
    """
    digits = read_npz(DIGITS)
    rng = np.random.default_rng(_SPLIT_SEED)
    held_out = np.zeros(len(digits), np.bool_)
    for label in range(10):
        members = rng.permutation(np.flatnonzero(digits.y == label))
        held_out[members[: round(_TEST_SHARE * len(members))]] = True
    return digits.rows(np.flatnonzero(held_out if part == "test" else ~held_out))
