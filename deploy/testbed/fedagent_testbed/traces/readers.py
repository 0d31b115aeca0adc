"""Readers of the recordings below FEDAGENT_DATA: links, round-trip times, prices, devices.

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
from datetime import datetime
from pathlib import Path
from typing import IO, TypeVar

import numpy as np

from fedagent_task.errors import DatasetError
from fedagent_task.readers import DATA_VARIABLE

from .records import FloatArray, PriceTrace, RateTrace, RttMatrix

T = TypeVar("T")

PACKET_BITS = 1500 * 8
BIN_MS = 100

_RTT_ARRAYS = {"rtt_ms": 1e-3, "rtt_cs": 1e-2}
"""Of PlanetLab and of Seattle, [time, from, to]: seconds of a unit."""
_UNREADABLE = (
    *(OSError, ValueError, LookupError, TypeError, AttributeError, EOFError),
    *(zlib.error, tarfile.TarError, zipfile.BadZipFile, csv.Error),
)


def data_path(name: str, *, folder: bool = False) -> Path:
    """Return a file below FEDAGENT_DATA, or a folder where that is allowed."""
    root = os.environ.get(DATA_VARIABLE, "")
    if not root:
        raise DatasetError(name, "needs a folder of data", f"set {DATA_VARIABLE} to it")
    path = Path(root) / name
    if not (path.exists() if folder else path.is_file()):
        raise DatasetError(name, f"is not in {DATA_VARIABLE}", "see docs/testbed.md, Data")
    return path


def recorded(read: Callable[[Path], T], name: str, *, folder: bool = False) -> T:
    """Return what a reader makes of a file below FEDAGENT_DATA; read once in a process.

    Raises:
        DatasetError: It is not there, or cannot be read.
    """
    path = data_path(name, folder=folder)
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


def read_rtt(path: Path) -> RttMatrix:
    """Return the times of ``planetlab_rtt.npz`` or ``seattle_rtt.npz``."""
    with path.open("rb") as stream, np.load(stream, allow_pickle=False) as arrays:
        name = next(one for one in _RTT_ARRAYS if one in arrays)
        seconds = arrays[name].astype(np.float32) * np.float32(_RTT_ARRAYS[name])
    # Off the diagonal 0 means missing.
    seconds[(seconds == 0) & ~np.eye(seconds.shape[1], dtype=np.bool_)] = np.nan
    return RttMatrix(seconds)


def read_down_bps(path: Path) -> FloatArray:
    """Return the download rates of the speed tests of ``mlab_ndt_*.json``; 0 of a failed one."""
    with _opened(path) as stream:
        return np.array([float(one["dl_mbps"]) for one in json.load(stream)]) * 1e6


def read_spot_prices(path: Path) -> tuple[PriceTrace, ...]:
    """Return one trace a market of ``ec2_spot_*.csv``; all share one zero of time."""
    markets: dict[tuple[str, ...], list[tuple[float, float]]] = {}
    with _opened(path) as stream:
        for row in csv.DictReader(stream):
            market = row["zone"], row["instance_type"], row["on_demand_usd_per_hour"]
            at = datetime.fromisoformat(row["timestamp"]).timestamp()
            markets.setdefault(market, []).append((at, float(row["price_usd_per_hour"])))
    columns = [np.array(rows).T for rows in markets.values()]
    zero = min(times[0] for times, _ in columns)
    return tuple(PriceTrace(times - zero, price) for times, price in columns)


def read_cpu_scores(path: Path) -> FloatArray:
    """Return ``CPU_F_AI_Score`` of ``ai_benchmark_*.json``; the first of a repeated phone."""
    scores: dict[str, float] = {}
    with _opened(path) as stream:
        for record in json.load(stream):
            scores.setdefault(record["Model"].strip(), float(record["CPU_F_AI_Score"]))
    return np.array(list(scores.values()))


def _opened(path: Path) -> IO[str]:
    return gzip.open(path, "rt") if path.suffix == ".gz" else path.open()
