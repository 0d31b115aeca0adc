"""A reader for each format of recorded file; each gives columns in SI units, or `TraceError`.

Nothing is unpacked to disk, and nothing in a file is executed.
"""

import io
import math
import struct
import tarfile
import zipfile
import zlib
from array import array
from datetime import datetime
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt
from numpy.lib import format as npy

from fedagent_task.errors import DatasetError

from . import files
from .files import TraceError, csv_rows, json_list, lines, members, number, opened
from .records import MAX_RATE_BPS, MAX_TIME_S, FloatArray, PriceTrace, RateTrace, RttMatrix

PACKET_BITS = 1500 * 8
BIN_MS = 100

_MBIT = 1e6
_MAX_MBIT = 1e8
_MAX_MS = 10**9
_MAX_PRICE = 1e6
_PRICES = ("zone", "instance_type", "timestamp", "price_usd_per_hour", "on_demand_usd_per_hour")
_RTT_ARRAYS: dict[str, tuple[type[np.generic], float]] = {
    "rtt_ms": (np.float32, 1e-3),
    "rtt_cs": (np.uint16, 1e-2),
}
"""Of PlanetLab and of Seattle, [time, from, to]: type, and seconds of a unit."""
_DAMAGED = (zipfile.BadZipFile, zlib.error, struct.error, EOFError, ValueError, RuntimeError)
_ARCHIVES = (".tar", ".tar.gz", ".tgz")
_NO_LINKS = (".csv", ".json", ".npz", *_ARCHIVES)


# ---------------------------------------------------------------------------- links


def read_links(path: Path) -> tuple[RateTrace, ...]:
    """Return the traces of an archive, of a folder of mahimahi links, or of one such link."""
    if path.is_dir():
        traces = tuple(read_mahimahi(file) for file in sorted(path.iterdir()) if _is_link(file))
    elif _is_link(path):
        traces = (read_mahimahi(path),)
    elif _is_archive(path):
        traces = read_rate_archive(path)
    else:
        hint = "name a .tar.gz of rates, or a folder of mahimahi files (.up, .down, .gz)"
        raise DatasetError(path.name, "is no recording of links", hint)
    if not traces:
        raise DatasetError(path.name, "holds no trace", "see docs/testbed.md, Data")
    return traces


def _is_link(path: Path) -> bool:
    """Whether a file is named like one of mahimahi: *.up, *.down, or *.gz of no other kind."""
    name = path.name.lower()
    plain = name.removesuffix(".gz")
    packed = plain != name and not name.endswith(_NO_LINKS) and not plain.endswith(_NO_LINKS)
    return path.is_file() and (packed or plain.endswith((".up", ".down")))


def _is_archive(path: Path) -> bool:
    try:
        return path.name.lower().endswith(_ARCHIVES) or tarfile.is_tarfile(path)
    except (OSError, EOFError, zlib.error):
        return False


def read_rate_archive(path: Path) -> tuple[RateTrace, ...]:
    """Return every trace of ``hsdpa_*``, ``fcc_*``, ``oboe`` or ``puffer_*``, a tar or tar.gz.

    One text file a trace, each line ``seconds Mbit/s``. As the simulators that they were made
    for read them (Pensieve), a line's rate holds from the line before to its own time; the rate
    of a line at 0 s therefore never holds, and the trace starts over after its last line.
    """
    traces, rows = [], 0
    for name, body in members(path):
        file = f"{path}:{name}"
        trace = _rates(io.BytesIO(body), name, file)
        rows += len(trace.bps)
        if rows > files.LIMITS.rows:
            raise TraceError(file, None, f"ends beyond the limit of {files.LIMITS.rows} rows")
        traces.append(trace)
    if not traces:
        raise TraceError(str(path), None, "holds no trace")
    return tuple(traces)


def _rates(stream: IO[bytes], name: str, file: str) -> RateTrace:
    times, rates = [0.0], [0.0]
    for line, text in lines(stream, file):
        try:
            time, rate = text.split()
            at, mbit = number(time, MAX_TIME_S), number(rate, _MAX_MBIT)
        except ValueError as error:
            raise TraceError(file, line, "is not `seconds Mbit/s`") from error
        if at <= times[-1] and not (at == 0 and line == 1):
            raise TraceError(file, line, f"is at {at:g} s, not after {times[-1]:g} s")
        if at > 0:
            times.append(at)
            rates.append(mbit * _MBIT)
    if len(times) == 1:
        raise TraceError(file, None, "has no line after 0 s")
    try:
        return RateTrace(name=name, times_s=np.array(times), bps=np.array(rates[1:]))
    except TraceError as error:
        raise TraceError(file, None, error.problem) from error


def read_mahimahi(path: Path) -> RateTrace:
    """Return the rate of ``*.down`` or ``*.up``, by counting the packets of each `BIN_MS`.

    A line is the millisecond at which a packet may cross; it counts in the bin that ends at or
    after it. The trace ends at its last stamp, as in mahimahi, so that its mean rate is exact.
    """
    file = str(path)
    stamps = array("q")
    last = 0
    with opened(path) as stream:
        for line, text in lines(stream, file):
            if not text.isdigit() or len(text) > 10 or int(text) > _MAX_MS:
                raise TraceError(file, line, f"is no time in 0..{_MAX_MS} ms")
            stamp = int(text)
            if stamp < last:
                raise TraceError(file, line, f"goes back from {last} ms to {stamp} ms")
            stamps.append(stamp)
            last = stamp
    if last == 0:
        raise TraceError(file, None, "has no stamp after 0 ms")
    ms = np.frombuffer(stamps, dtype=np.int64)
    packets = np.bincount(np.maximum(-(-ms // BIN_MS) - 1, 0))
    ends = np.minimum(np.arange(len(packets) + 1, dtype=np.int64) * BIN_MS, last) / 1000.0
    return RateTrace(name=path.name, times_s=ends, bps=packets * float(PACKET_BITS) / np.diff(ends))


# ---------------------------------------------------------------- round-trip times


def read_rtt(path: Path) -> RttMatrix:
    """Return the times of ``planetlab_rtt.npz`` or ``seattle_rtt.npz``."""
    raw, scale = _matrix(path)
    seconds = raw.astype(np.float32) * np.float32(scale)
    _, rows, columns = seconds.shape
    if rows != columns or not seconds.size:
        raise TraceError(str(path), None, f"has shape {seconds.shape}, not (time, n, n)")
    if not (np.isfinite(seconds) & (seconds >= 0)).all():
        raise TraceError(str(path), None, "has a time that is negative or not finite")
    # Off the diagonal 0 means missing.
    missing = (seconds == 0) & ~np.eye(rows, dtype=np.bool_)
    seconds[missing] = np.nan
    return RttMatrix(seconds)


def _matrix(path: Path) -> tuple[npt.NDArray[np.generic], float]:
    """Return the archive's array, its header held against its size, and the seconds of its unit."""
    limits, name = files.LIMITS, ""
    try:
        with zipfile.ZipFile(path) as archive:
            name = next((one for one in _RTT_ARRAYS if f"{one}.npy" in archive.namelist()), "")
            if not name:
                raise TraceError(str(path), None, f"holds no array {' or '.join(_RTT_ARRAYS)}")
            member, (dtype, scale) = f"{path}:{name}", _RTT_ARRAYS[name]
            if archive.getinfo(f"{name}.npy").file_size > limits.unpacked_bytes:
                raise TraceError(member, None, f"unpacks to more than {limits.unpacked_bytes}")
            with archive.open(f"{name}.npy") as stream:
                npy.read_magic(stream)
                shape, by_columns, found = npy.read_array_header_1_0(stream)
                data = stream.read()
    except OSError as error:
        raise TraceError(str(path), None, error.strerror or "cannot be read") from error
    except _DAMAGED as error:
        raise TraceError(str(path), None, "is damaged or no npz archive") from error
    if len(shape) != 3 or min(shape) < 0 or by_columns or found.hasobject:
        raise TraceError(member, None, "is no plain array of three dimensions")
    if found != dtype:
        raise TraceError(member, None, f"is {found.str[1:]}, not {np.dtype(dtype).name}")
    count = math.prod(shape)
    if count > limits.rows or len(data) != count * found.itemsize:
        raise TraceError(member, None, f"has {len(data)} bytes for shape {shape}")
    return np.frombuffer(data, dtype=found).reshape(shape), scale


# ---------------------------------------------------------------------------- tables


def read_down_bps(path: Path) -> FloatArray:
    """Return the download rates of the speed tests of ``mlab_ndt_*.json``; 0 of a failed one."""
    rates: list[float] = []
    for entry, record in enumerate(json_list(path), 1):
        try:
            speeds = (record["dl_mbps"], record["ul_mbps"])  # type: ignore[index] # checked by the except
            down, _ = (number(str(speed), MAX_RATE_BPS / _MBIT) for speed in speeds)
        except (TypeError, KeyError, ValueError) as error:
            raise TraceError(str(path), entry, "has no dl_mbps and ul_mbps") from error
        rates.append(down)
    if not rates:
        raise TraceError(str(path), None, "holds no test")
    return np.array(rates) * _MBIT


def read_spot_prices(path: Path) -> tuple[PriceTrace, ...]:
    """Return one trace a market of ``ec2_spot_*.csv``; all share one zero of time."""
    markets: dict[tuple[str, str, str], tuple[list[float], list[float]]] = {}
    for line, (zone, machine, when, price, normal) in csv_rows(path, _PRICES):
        try:
            stamp = datetime.fromisoformat(when)
            usd = number(price, _MAX_PRICE)
            positive = usd > 0 and number(normal, _MAX_PRICE) > 0
        except ValueError as error:
            raise TraceError(str(path), line, "has no time or price") from error
        if not positive or stamp.tzinfo is None:
            raise TraceError(str(path), line, "has a price of 0, or a time without zone")
        times, prices = markets.setdefault((zone, machine, normal), ([], []))
        seconds = stamp.timestamp()
        if times and seconds <= times[-1]:
            raise TraceError(str(path), line, "is not after the last row of its market")
        times.append(seconds)
        prices.append(usd)
    if not markets:
        raise TraceError(str(path), None, "holds no price")
    zero = min(times[0] for times, _ in markets.values())
    return tuple(
        PriceTrace(np.array(times) - zero, np.array(prices)) for times, prices in markets.values()
    )


def read_cpu_scores(path: Path) -> FloatArray:
    """Return ``CPU_F_AI_Score`` of ``ai_benchmark_*.json``; the first of a repeated phone."""
    scores: dict[str, float] = {}
    for entry, record in enumerate(json_list(path), 1):
        try:
            model = record["Model"].strip()  # type: ignore[index] # checked by the except
            score = number(str(record["CPU_F_AI_Score"]), 1e9)  # type: ignore[index] # the same
        except (TypeError, KeyError, AttributeError, ValueError) as error:
            raise TraceError(str(path), entry, "has no Model and CPU_F_AI_Score") from error
        if score <= 0:
            raise TraceError(str(path), entry, "has a score of 0")
        scores.setdefault(model, score)
    if not scores:
        raise TraceError(str(path), None, "holds no phone")
    return np.array(list(scores.values()))
