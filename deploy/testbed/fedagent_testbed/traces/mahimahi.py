"""Cellular traces of mahimahi: one line for each packet that may cross, in milliseconds."""

from array import array
from pathlib import Path

import numpy as np

from .errors import TraceError
from .files import DEFAULT, Limits, lines, opened
from .records import RateTrace

PACKET_BITS = 1500 * 8

_MAX_MS = 10**9
_MAX_BINS = 10**7


def read_mahimahi(path: Path, *, bin_ms: int = 100, limits: Limits = DEFAULT) -> RateTrace:
    """Return a link's rate, by counting the packets of each `bin_ms` milliseconds.

    A stamp counts in the bin that ends at or after it; the trace ends and starts over
    at its last stamp, as in mahimahi, so that its mean rate is exact for any bin.

    Args:
        path: Text, plain or gzip; stamps in order, one repeats where several packets may
            cross at once.
        bin_ms: Width of the intervals; 1 is mahimahi's own clock.
        limits: Of bytes, lines and their length.

    Raises:
        TraceError: The file or a line in it cannot be used.
        ValueError: `bin_ms` is not positive.
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
