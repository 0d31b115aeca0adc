"""Rates over time: two columns packed in a tar (HSDPA, FCC, Oboe, Puffer), and mahimahi.

``hsdpa_norway_3g``, ``fcc_broadband``, ``oboe`` and ``puffer_*`` all hold one text file a
trace, each line ``seconds Mbit/s``. As the simulators that they were made for read them
(Pensieve), a line's rate holds from the line before to its own time; the rate of a
line at 0 s therefore never holds, and the trace starts over after its last line.
"""

import io
from array import array
from pathlib import Path
from typing import IO

import numpy as np

from .files import DEFAULT, Limits, TraceError, lines, members, number, opened
from .records import MAX_TIME_S, RateTrace

PACKET_BITS = 1500 * 8

_MBIT = 1e6
_MAX_MBIT = 1e8
_MAX_MS = 10**9
_MAX_BINS = 10**7


def read_rate_archive(path: Path, limits: Limits = DEFAULT) -> tuple[RateTrace, ...]:
    """Return every trace of a tar or tar.gz, in its order, named by its file."""
    traces, rows = [], 0
    for name, body in members(path, limits):
        file = f"{path}:{name}"
        trace = _parsed(io.BytesIO(body), name, file, limits)
        rows += len(trace.bps)
        if rows > limits.rows:
            raise TraceError(file, None, f"ends beyond the limit of {limits.rows} rows")
        traces.append(trace)
    if not traces:
        raise TraceError(str(path), None, "holds no trace")
    return tuple(traces)


def _parsed(stream: IO[bytes], name: str, file: str, limits: Limits) -> RateTrace:
    times, rates = [0.0], [0.0]
    for line, text in lines(stream, file, limits):
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


def read_mahimahi(path: Path, *, bin_ms: int = 100, limits: Limits = DEFAULT) -> RateTrace:
    """Return a link's rate, by counting the packets of each `bin_ms` milliseconds.

    A stamp counts in the bin that ends at or after it; the trace ends and starts over
    at its last stamp, as in mahimahi, so that its mean rate is exact for any bin.

    A stamp repeats where several packets may cross at once; a `bin_ms` of 1 is mahimahi's own
    clock.
    """
    if bin_ms < 1:
        raise ValueError(f"bin_ms is {bin_ms}, must be >= 1")
    file = str(path)
    stamps = array("q")
    last = 0
    with opened(path, limits) as stream:
        for line, text in lines(stream, file, limits):
            if not text.isdigit() or len(text) > 10 or int(text) > _MAX_MS:
                raise TraceError(file, line, f"is no time in 0..{_MAX_MS} ms")
            stamp = int(text)
            if stamp < last:
                raise TraceError(file, line, f"goes back from {last} ms to {stamp} ms")
            stamps.append(stamp)
            last = stamp
    if last == 0:
        raise TraceError(file, None, "has no stamp after 0 ms")
    if last // bin_ms >= _MAX_BINS:
        raise TraceError(file, None, f"has more than {_MAX_BINS} bins of {bin_ms} ms")
    ms = np.frombuffer(stamps, dtype=np.int64)
    packets = np.bincount(np.maximum(-(-ms // bin_ms) - 1, 0))
    ends = np.minimum(np.arange(len(packets) + 1, dtype=np.int64) * bin_ms, last) / 1000.0
    return RateTrace(name=path.name, times_s=ends, bps=packets * float(PACKET_BITS) / np.diff(ends))
