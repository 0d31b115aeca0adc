"""A real sensor stream: eight weather stations, the next hour's temperature.

A sample is what a station knows in an hour, its label how much warmer the next hour is; so
the model of zeros is persistence ("as warm as now"), and the error of the change is the error
of the temperature. All scales are constants, not taken from the data: a stream has no mean
before it has ended.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedagent_coordinator.policies.base import FloatArray, IntArray
from fedagent_task.errors import DatasetError
from fedagent_testbed.traces.sources import data_path

FILE = "sensor/beijing_weather_hourly.npz"
LAGS = 24
UNIT_C = 2.0
"""Degrees that 1 of a label stands for."""

_HOURS = 24
_SHAPE = 3
_HINT = "fetch the file again"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Stations:
    """Hours of all stations that have all their numbers.

    Attributes:
        x: float32[n, features]: temperature now less that of 1 to 24 hours ago, dew point
            below temperature, change of pressure in 3 hours, time of day.
        y: float64[n], change of temperature in the next hour, in `unit` degrees.
        shards: For each station, int64[hours]: rows of `x`, or -1 where a number is missing.
        tested: int64[m], rows of the last tenth of the time, for the loss.
        unit: Degrees Celsius of 1 of `y`.
    """

    x: npt.NDArray[np.float32]
    y: FloatArray
    shards: tuple[IntArray, ...]
    tested: IntArray
    unit: float = UNIT_C


def read_stations() -> Stations:
    """Read the stations; the last tenth of the hours is not in the shards.

    Raises:
        DatasetError: The file is missing, damaged, or holds something else.
    """
    path = data_path(FILE)
    try:
        with np.load(path, allow_pickle=False) as arrays:
            values = np.asarray(arrays["values"], dtype=np.float64)
    except (OSError, KeyError, ValueError, EOFError) as error:
        raise DatasetError(FILE, "is no archive with values", _HINT) from error
    if values.ndim != _SHAPE or values.shape[2] != _SHAPE or values.shape[1] <= LAGS + 2:
        raise DatasetError(FILE, f"has shape {values.shape}, not (station, hour, 3)", _HINT)
    return stations_of(values)


def stations_of(values: FloatArray) -> Stations:
    """Return samples of float64[station, hour, (TEMP, PRES, DEWP)], NaN where missing."""
    hours = np.arange(LAGS, values.shape[1] - 1)
    last = len(hours) - len(hours) // 10
    tables, labels, shards, tested = [], [], [], []
    rows = 0
    for station in values:
        x, y = _samples(station, hours)
        known = np.isfinite(x).all(axis=1) & np.isfinite(y)
        index = np.where(known, rows + np.cumsum(known) - 1, -1)
        rows += int(known.sum())
        tables.append(x[known])
        labels.append(y[known])
        shards.append(index[:last].astype(np.int64))
        tested.append(index[last:][known[last:]])
    return Stations(
        x=np.concatenate(tables).astype(np.float32),
        y=np.concatenate(labels),
        shards=tuple(shards),
        tested=np.concatenate(tested).astype(np.int64),
    )


def _samples(station: FloatArray, hours: IntArray) -> tuple[FloatArray, FloatArray]:
    """Return features [h, LAGS + 4] and labels [h] of these hours."""
    warm, pressure, dew = station.T
    now = warm[hours]
    angle = 2 * np.pi * (hours % _HOURS) / _HOURS
    lags = np.stack([(now - warm[hours - k]) / 10.0 for k in range(1, LAGS + 1)], axis=1)
    others = np.stack(
        [
            (now - dew[hours]) / 10.0,
            (pressure[hours] - pressure[hours - 3]) / 3.0,
            np.sin(angle),
            np.cos(angle),
        ],
        axis=1,
    )
    return np.hstack([lags, others]), (warm[hours + 1] - now) / UNIT_C
