"""Recordings below FEDAGENT_DATA, in SI units: links, round-trip times, prices, devices.

Nothing is unpacked to disk, and nothing in a file is executed.
"""

import csv
import functools
import gzip
import json
import os
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import IO, TypeVar

import numpy as np
import numpy.typing as npt

from fedagent_task.errors import DatasetError
from fedagent_task.readers import DATA_VARIABLE

FloatArray = npt.NDArray[np.float64]

_ROUNDING = 4 * float(np.finfo(np.float64).eps)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RateTrace:
    """A link's rate over time, constant within each interval, repeated for ever.

    Raises:
        ValueError: Columns are empty, contradict each other, or never carry a bit.
    """

    name: str = ""
    times_s: FloatArray  # float64[K+1], ends of the intervals: from 0, strictly increasing
    bps: FloatArray  # float64[K], not all 0
    bits: FloatArray = field(init=False)  # float64[K+1], bits carried from 0 to each of `times_s`

    def __post_init__(self) -> None:
        """Check the columns and integrate the rate."""
        width = np.diff(self.times_s)
        if self.times_s[0] != 0 or not (width > 0).all() or len(width) != len(self.bps):
            raise ValueError(f"{self.name}: times do not rise from 0, one for each rate")
        bits = np.concatenate(([0.0], np.cumsum(width * self.bps)))
        if not ((self.bps >= 0).all() and 0 < bits[-1] < np.inf):
            raise ValueError(f"{self.name}: rates are not positive numbers")
        object.__setattr__(self, "bits", bits)

    @property
    def period_s(self) -> float:
        """Seconds after which the trace starts over."""
        return float(self.times_s[-1])

    @property
    def mean_bps(self) -> float:
        """Bits of one period over its seconds."""
        return float(self.bits[-1] / self.times_s[-1])

    def rate_at(self, t_s: npt.ArrayLike) -> FloatArray:
        """Return the rate at these instants, float64 of their shape."""
        phase = np.mod(np.asarray(t_s, dtype=np.float64), self.period_s)
        return np.asarray(self.bps[self._interval(phase)], dtype=np.float64)

    def seconds_for(self, bits: npt.ArrayLike, start_s: npt.ArrayLike) -> FloatArray:
        """Return how long `bits` take from `start_s` (broadcast): until the last one is across."""
        load = np.asarray(bits, dtype=np.float64)
        phase = np.mod(np.asarray(start_s, dtype=np.float64), self.period_s)
        k = self._interval(phase)
        goal = self.bits[k] + (phase - self.times_s[k]) * self.bps[k] + load
        slack = _ROUNDING * goal
        # Whole periods before the one in which the last bit crosses. What is within rounding
        # of the bits before a silence has crossed before it, also at a period's end.
        whole = np.maximum(np.ceil((goal - slack) / self.bits[-1]) - 1, 0)
        rest = np.clip(goal - whole * self.bits[-1], 0, self.bits[-1])
        k = np.searchsorted(self.bits, rest - slack, side="left") - 1
        k = np.clip(k, 0, len(self.bps) - 1)
        within = np.zeros(np.shape(rest))
        last = np.minimum(rest, self.bits[k + 1]) - self.bits[k]
        np.divide(last, self.bps[k], out=within, where=self.bps[k] > 0)
        seconds = whole * self.period_s + self.times_s[k] + within - phase
        return np.asarray(np.where(load > 0, np.maximum(seconds, 0), 0), dtype=np.float64)

    def _interval(self, phase: FloatArray) -> npt.NDArray[np.intp]:
        index = np.searchsorted(self.times_s, phase, side="right") - 1
        return np.asarray(np.minimum(index, len(self.bps) - 1), dtype=np.intp)


T = TypeVar("T")

PACKET_BITS = 1500 * 8
BIN_MS = 100

_RTT_ARRAYS = {"rtt_ms": 1e-3, "rtt_cs": 1e-2}
"""Of PlanetLab and of Seattle, [time, from, to]: seconds of a unit."""
_UNREADABLE = (
    *(OSError, ValueError, LookupError, TypeError, AttributeError, EOFError),
    *(zlib.error, tarfile.TarError, zipfile.BadZipFile, csv.Error),
)


def recorded(read: Callable[[Path], T], name: str, *, folder: bool = False) -> T:
    """Return what a reader makes of a file below FEDAGENT_DATA, or of a `folder`; read once.

    Raises:
        DatasetError: It is not there, or cannot be read.
    """
    root = os.environ.get(DATA_VARIABLE, "")
    if not root:
        raise DatasetError(name, "needs a folder of data", f"set {DATA_VARIABLE} to it")
    path = Path(root) / name
    if not (path.exists() if folder else path.is_file()):
        raise DatasetError(name, f"is not in {DATA_VARIABLE}", "see docs/testbed.md, Data")
    try:
        value: T = _cached(read, path)
    except _UNREADABLE as error:
        reason = f"cannot be read ({type(error).__name__})"
        raise DatasetError(path.name, reason, "fetch the file again") from error
    return value


@functools.lru_cache(maxsize=8)
def _cached(read: Callable[[Path], T], path: Path) -> T:
    return read(path)


def read_links(path: Path) -> tuple[RateTrace, ...]:
    """Return the traces of an archive, of a folder of mahimahi links, or of one such link."""
    if path.is_file():
        return read_rate_archive(path) if tarfile.is_tarfile(path) else (read_mahimahi(path),)
    links = [one for one in sorted(path.iterdir()) if one.suffix in {".up", ".down", ".gz"}]
    if not links:
        raise DatasetError(path.name, "holds no .up, .down or .gz", "see docs/testbed.md, Data")
    return tuple(read_mahimahi(one) for one in links)


def read_rate_archive(path: Path) -> tuple[RateTrace, ...]:
    """Return every trace of ``hsdpa_*``, ``fcc_*``, ``oboe`` or ``puffer_*``, a tar or tar.gz.

    One text file a trace, each line ``seconds Mbit/s``. As the simulators that they were made
    for read them (Pensieve), a line's rate holds from the line before to its own time; the rate
    of a line at 0 s therefore never holds, and the trace starts over after its last line.
    """
    with tarfile.open(path) as archive:
        files = ((member.name, archive.extractfile(member)) for member in archive)
        return tuple(_rates(name, body.read()) for name, body in files if body)


def _rates(name: str, body: bytes) -> RateTrace:
    times, mbit = np.array(body.decode().split(), dtype=np.float64).reshape(-1, 2).T
    first = int(times[0] == 0)
    return RateTrace(name=name, times_s=np.append(0.0, times[first:]), bps=mbit[first:] * 1e6)


def read_mahimahi(path: Path) -> RateTrace:
    """Return the rate of ``*.down`` or ``*.up``, by counting the packets of each `BIN_MS`.

    A line is the millisecond at which a packet may cross; it counts in the bin that ends at or
    after it. The trace ends at its last stamp, as in mahimahi, so that its mean rate is exact.
    """
    with _opened(path) as stream:
        ms = np.array(stream.read().split(), dtype=np.int64)
    packets = np.bincount(np.maximum(-(-ms // BIN_MS) - 1, 0))
    ends = np.minimum(np.arange(len(packets) + 1, dtype=np.int64) * BIN_MS, ms[-1]) / 1000.0
    return RateTrace(name=path.name, times_s=ends, bps=packets * float(PACKET_BITS) / np.diff(ends))


def read_rtt(path: Path) -> npt.NDArray[np.float32]:
    """Return seconds, float32[T, n, n], of ``planetlab_rtt.npz`` or ``seattle_rtt.npz``.

    From the first node to the second, in slices of time; NaN where missing or below resolution.
    """
    with path.open("rb") as stream, np.load(stream, allow_pickle=False) as arrays:
        name = next(one for one in _RTT_ARRAYS if one in arrays)
        seconds: npt.NDArray[np.float32] = arrays[name].astype(np.float32) * np.float32(
            _RTT_ARRAYS[name]
        )
    # Off the diagonal 0 means missing.
    seconds[(seconds == 0) & ~np.eye(seconds.shape[1], dtype=np.bool_)] = np.nan
    return seconds


def read_down_bps(path: Path) -> FloatArray:
    """Return the download rates of the speed tests of ``mlab_ndt_*.json``; 0 of a failed one."""
    with _opened(path) as stream:
        return np.array([float(one["dl_mbps"]) for one in json.load(stream)]) * 1e6


def read_spot_prices(path: Path) -> tuple[tuple[FloatArray, FloatArray], ...]:
    """Return times and prices of each market of ``ec2_spot_*.csv``: float64[K] each.

    Seconds since the earliest row of the whole file, rising, and credits an hour until the next.
    """
    markets: dict[tuple[str, ...], list[tuple[float, float]]] = {}
    with _opened(path) as stream:
        for row in csv.DictReader(stream):
            market = row["zone"], row["instance_type"], row["on_demand_usd_per_hour"]
            at = datetime.fromisoformat(row["timestamp"]).timestamp()
            markets.setdefault(market, []).append((at, float(row["price_usd_per_hour"])))
    columns = [np.array(rows).T for rows in markets.values()]
    zero = min(times[0] for times, _ in columns)
    return tuple((times - zero, price) for times, price in columns)


def read_cpu_scores(path: Path) -> FloatArray:
    """Return ``CPU_F_AI_Score`` of ``ai_benchmark_*.json``; the first of a repeated phone."""
    scores: dict[str, float] = {}
    with _opened(path) as stream:
        for record in json.load(stream):
            scores.setdefault(record["Model"].strip(), float(record["CPU_F_AI_Score"]))
    return np.array(list(scores.values()))


def _opened(path: Path) -> IO[str]:
    return gzip.open(path, "rt") if path.suffix == ".gz" else path.open()
