"""Speed tests of access links: the 5G/LTE table of Minneapolis and M-Lab's NDT."""

from pathlib import Path

import numpy as np

from .errors import TraceError
from .files import DEFAULT, Limits, number
from .records import MAX_RATE_BPS, AccessSpeeds
from .tables import csv_rows, json_list

_MBIT = 1e6
_MAX_MBIT = MAX_RATE_BPS / _MBIT
_COLUMNS = ("downlink_Mbps", "uplink_Mbps", "latency_ms", "radio_type")


def read_speedtest(path: Path, limits: Limits = DEFAULT) -> AccessSpeeds:
    """Return the tests of ``speedtest_5g_minneapolis.csv``; kind is the radio's type.

    Raises:
        TraceError: The file or a line in it cannot be used.
    """
    table: list[tuple[float, float, float]] = []
    kinds: list[str] = []
    for line, (down, up, latency, kind) in csv_rows(path, _COLUMNS, limits):
        try:
            row = (number(down, _MAX_MBIT), number(up, _MAX_MBIT), number(latency, 1e9))
        except ValueError as error:
            raise TraceError(str(path), line, "has no speed or latency") from error
        table.append(row)
        kinds.append(kind)
    return _speeds(path, table, kinds)


def read_ndt(path: Path, limits: Limits = DEFAULT) -> AccessSpeeds:
    """Return the tests of ``mlab_ndt_*.json``: no latency, no kind.

    Raises:
        TraceError: The file or an entry of it cannot be used.
    """
    table: list[tuple[float, float, float]] = []
    for entry, record in enumerate(json_list(path, limits), 1):
        try:
            speeds = (record["dl_mbps"], record["ul_mbps"])  # type: ignore[index] # checked by the except
            down, up = (number(str(speed), _MAX_MBIT) for speed in speeds)
        except (TypeError, KeyError, ValueError) as error:
            raise TraceError(str(path), entry, "has no dl_mbps and ul_mbps") from error
        table.append((down, up, np.nan))
    return _speeds(path, table, [""] * len(table))


def _speeds(path: Path, table: list[tuple[float, float, float]], kinds: list[str]) -> AccessSpeeds:
    """Return columns in SI units."""
    if not table:
        raise TraceError(str(path), None, "holds no test")
    columns = np.array(table, dtype=np.float64).T
    return AccessSpeeds(
        name=path.name,
        down_bps=columns[0] * _MBIT,
        up_bps=columns[1] * _MBIT,
        latency_s=columns[2] / 1e3,
        kind=tuple(kinds),
    )
