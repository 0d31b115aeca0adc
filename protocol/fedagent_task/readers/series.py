"""Time series of several stations' sensors in one numpy archive."""

import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedagent_task.errors import DatasetError

from .base import MAX_BYTES, expect_size

_HINT = "save values [station, time, sensor] and columns by numpy.savez"


@dataclass(frozen=True, slots=True, eq=False)
class Series:
    """Readings of several stations at the same times.

    Attributes:
        name: File that it came from.
        values: float32 [station, time, sensor]; NaN where a reading is missing.
        columns: Names of the sensors.
        stations: Names of the stations; empty where they have none.
    """

    name: str
    values: npt.NDArray[np.float32]
    columns: tuple[str, ...]
    stations: tuple[str, ...] = ()

    def station(self, which: str) -> npt.NDArray[np.float32]:
        """Return one station's readings [time, sensor], by its name or number from 0.

        Raises:
            DatasetError: There is no such station.
        """
        if which in self.stations:
            return np.asarray(self.values[self.stations.index(which)])
        if which.isdigit() and int(which) < len(self.values):
            return np.asarray(self.values[int(which)])
        known = ", ".join(self.stations) or f"0 to {len(self.values) - 1}"
        raise DatasetError(self.name, f"has no station {which[:40]!r}", f"take one of {known}")

    def column(self, name: str) -> int:
        """Return the place of a sensor.

        Raises:
            DatasetError: There is no such sensor.
        """
        if name not in self.columns:
            known = ", ".join(self.columns)
            raise DatasetError(self.name, f"has no column {name[:40]!r}", f"take one of {known}")
        return self.columns.index(name)


def read_series(path: Path, limit: int = MAX_BYTES) -> Series:
    """Return an archive of ``values``, ``columns`` and, if there, ``stations``.

    Raises:
        DatasetError: The file is no such archive, holds objects, or is too large.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            expect_size(path, sum(item.file_size for item in archive.infolist()), limit)
        with np.load(path, allow_pickle=False) as arrays:
            values, columns = arrays["values"], arrays["columns"]
            stations = arrays["stations"] if "stations" in arrays else np.empty(0, np.str_)
    except OSError as error:
        raise DatasetError(str(path), error.strerror or "cannot be read", "check it") from error
    except (KeyError, ValueError, EOFError, zipfile.BadZipFile, NotImplementedError) as error:
        raise DatasetError(str(path), "is no archive of a series", _HINT) from error
    fits = values.ndim == 3 and values.dtype.kind in "fiu" and columns.shape == values.shape[2:]
    named = columns.dtype.kind == "U" and stations.shape in ((0,), values.shape[:1])
    if not (fits and named and values.size):
        raise DatasetError(str(path), f"values are {values.dtype}{values.shape}", _HINT)
    return Series(
        str(path),
        values.astype(np.float32, copy=False),
        tuple(map(str, columns)),
        tuple(map(str, stations)),
    )
