"""Sensors of a station as a stream: each arrival is one reading, with those before it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, ClassVar

from msgspec import Meta

from fedagent_protocol.option import Option
from fedagent_task.errors import DatasetError

from .base import ResumableStream, Samples, StreamOpenError, StreamSchema, StreamSpecError, np
from .spec import Buffer, Faster, Pace, Start, StreamSpec

if TYPE_CHECKING:
    import numpy.typing as npt


class Series(StreamSpec, frozen=True, kw_only=True):
    """A station's sensors, one reading after the other, evenly spaced: learn to predict one.

    `.npz` with `values` [station, time, sensor] and `columns`. A sample is the last `lags`
    readings of each feature, oldest first, as (value - mean) / deviation; its label is what
    `predict` says `ahead` readings after the newest. Readings with gaps are counted as `missing`.
    """

    form: ClassVar[str] = "series:PATH"
    path: str
    station: Annotated[str, Option("Name of the station, or its number from 0.", example="3")] = "0"
    features: Annotated[
        tuple[str, ...], Option("Names of the columns; all if left out.", example="TEMP_C+PRES_hPa")
    ] = ()
    predict: Annotated[str, Option("Name of a column; required.", example="COLUMN")]
    ahead: Annotated[
        int, Meta(ge=1, le=10**6), Option("Readings from the newest to the label.", example="1")
    ] = 1
    lags: Annotated[
        int, Meta(ge=1, le=10**5), Option("Readings of each feature in a sample.", example="24")
    ] = 24
    mean: Annotated[
        tuple[float, ...], Option("One mean for each feature; 0 if left out.", example="0.5")
    ] = ()
    deviation: Annotated[
        tuple[float, ...],
        Option("One deviation for each feature, other than 0; 1 if left out.", example="0.5"),
    ] = ()
    rate: Pace = 1.0
    accelerate: Faster = 1.0
    start: Start = 0
    buffer: Buffer = 4096

    def __post_init__(self) -> None:
        for key, values in (("mean", self.mean), ("deviation", self.deviation)):
            if values and len(values) != len(self.features):
                raise StreamSpecError(
                    key,
                    f"has {len(values)} numbers for {len(self.features)} features",
                    "name the features, and give one number for each, with + between",
                )
        if not all(self.deviation):
            raise StreamSpecError("deviation", "is 0", "give numbers other than 0")

    def create(self, *, seed: int, offset: int = 0, labels: Sequence[str] = ()) -> SeriesStream:
        """Return the stream, evenly spaced: no seed and no label's name matters."""
        del seed, labels
        return SeriesStream(self, offset=offset)


class SeriesStream(ResumableStream):
    """Replay a time series, one reading after the other, evenly spaced, again and again.

    A reading is no sample where it, one of those before it, or the one to predict is
    missing: such are counted as ``missing``.
    """

    def __init__(self, spec: Series, *, offset: int = 0) -> None:
        super().__init__(offset)
        self._spec = spec
        self._opened_at = 0.0
        self._began = 0
        self._windows: npt.NDArray[np.float32] = np.empty((0, 0, 0), np.float32)
        self._labels: npt.NDArray[np.float32] = np.empty(0, np.float32)

    def open(self, now: float) -> StreamSchema:
        """Read the series; `spec.start` readings are there at once."""
        from fedagent_task.readers import load_series  # noqa: PLC0415 - numpy

        spec = self._spec
        try:
            series = load_series(spec.path)
            values = series.station(spec.station)
            names = spec.features or series.columns
            columns = [series.column(name) for name in names]
            target = series.column(spec.predict)
        except DatasetError as error:
            raise StreamOpenError("series", f"{error.path}: {error.reason}", error.hint) from error
        count = len(values) - spec.lags - spec.ahead + 1
        if count < 1:
            raise StreamOpenError(
                "lags", f"{len(values)} readings are too few", "take fewer lags, or less ahead"
            )
        scaled = values[:, columns].astype(np.float32)
        scaled -= np.array(spec.mean or (0.0,) * len(columns), np.float32)
        scaled /= np.array(spec.deviation or (1.0,) * len(columns), np.float32)
        # A view [count, columns, lags]: nothing is copied but what is taken.
        self._windows = np.lib.stride_tricks.sliding_window_view(scaled, spec.lags, axis=0)[:count]
        self._labels = values[spec.lags + spec.ahead - 1 :, target]
        self._opened_at, self._began = now, self._offset
        return StreamSchema(spec.lags * len(columns), "float32")

    def take(self, now: float) -> Samples:
        """Return what arrived; beyond the buffer the oldest are dropped and counted."""
        spec, count = self._spec, len(self._windows)
        pace = spec.rate * spec.accelerate
        there = spec.start if self._began == 0 else 0
        arrived = self._began + there + int(max(0.0, now - self._opened_at) * pace)
        arrived = max(arrived, self._offset)
        first = max(self._offset, arrived - spec.buffer)
        self._counters["dropped"] += first - self._offset
        rows = np.arange(first, arrived) % count
        self._offset = arrived
        _, columns, lags = self._windows.shape
        x = self._windows[rows].transpose(0, 2, 1).reshape(len(rows), columns * lags)
        y = self._labels[rows].astype(np.float64)
        good = np.isfinite(x).all(axis=1) & np.isfinite(y)
        self._counters["missing"] += len(rows) - int(good.sum())
        return Samples(x[good], y[good])

    def close(self) -> None:
        """Let the series go."""
        self._windows = np.empty((0, 0, 0), np.float32)
