"""Throughput traces in two columns, packed in a tar: HSDPA, FCC, Oboe, Puffer.

``hsdpa_norway_3g``, ``fcc_broadband``, ``oboe`` and ``puffer_*`` all hold one text file a
trace, each line ``seconds Mbit/s``. As the simulators that they were made for read them
(Pensieve), a line's rate holds from the line before to its own time; the rate of a
line at 0 s therefore never holds, and the trace starts over after its last line.
"""

import io
from pathlib import Path
from typing import IO

import numpy as np

from .errors import TraceError
from .files import DEFAULT, Limits, lines, members, number, opened
from .records import MAX_TIME_S, RateTrace

_MBIT = 1e6
_MAX_MBIT = 1e8


def read_rate_archive(path: Path, limits: Limits = DEFAULT) -> tuple[RateTrace, ...]:
    """Return every trace of a tar or tar.gz, in its order, named by its file.

    Raises:
        TraceError: The archive or a line in it cannot be used, or it is empty.
    """
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


def read_rate_file(path: Path, limits: Limits = DEFAULT) -> RateTrace:
    """Return the trace of one text file, plain or gzip.

    Raises:
        TraceError: The file or a line in it cannot be used.
    """
    with opened(path, limits) as stream:
        return _parsed(stream, path.name, str(path), limits)


def _parsed(stream: IO[bytes], name: str, file: str, limits: Limits) -> RateTrace:
    """Return the trace of a stream of lines."""
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
