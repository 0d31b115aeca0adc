"""The recorded files behind a streaming world, read once in a process."""

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from fedagent_task.errors import DatasetError
from fedagent_task.readers import DATA_VARIABLE
from fedagent_testbed.traces import (
    AccessSpeeds,
    CpuScores,
    PriceTrace,
    RateTrace,
    RttMatrix,
    TraceError,
    read_cpu_scores,
    read_ndt,
    read_planetlab,
    read_rate_archive,
    read_seattle,
    read_spot_prices,
)

T = TypeVar("T")

_tests = functools.lru_cache(maxsize=2)(read_ndt)
_rates = functools.lru_cache(maxsize=2)(read_rate_archive)
_planetlab = functools.lru_cache(maxsize=1)(read_planetlab)
_seattle = functools.lru_cache(maxsize=1)(read_seattle)
_prices = functools.lru_cache(maxsize=2)(read_spot_prices)
_scores = functools.lru_cache(maxsize=2)(read_cpu_scores)


def data_path(name: str) -> Path:
    """Return a file below FEDAGENT_DATA.

    Raises:
        DatasetError: The variable is not set, or there is no such file.
    """
    folder = os.environ.get(DATA_VARIABLE, "")
    if not folder:
        raise DatasetError(name, "needs a folder of data", f"set {DATA_VARIABLE} to it")
    path = Path(folder) / name
    if not path.is_file():
        raise DatasetError(name, f"is not in {DATA_VARIABLE}", "see docs/testbed.md, Data")
    return path


def link_speeds(name: str) -> AccessSpeeds:
    """Return speed tests, one of which is the mean rate of an edge."""
    return _checked(_tests, data_path(name))


def rate_traces(name: str) -> tuple[RateTrace, ...]:
    """Return rates over time."""
    return _checked(_rates, data_path(name))


def rtt_matrix(name: str) -> RttMatrix:
    """Return round-trip times between nodes over time."""
    return _checked(_seattle if "seattle" in name else _planetlab, data_path(name))


def spot_prices(name: str) -> tuple[PriceTrace, ...]:
    """Return the markets of rented machines."""
    return _checked(_prices, data_path(name))


def cpu_scores(name: str) -> CpuScores:
    """Return the relative speeds of devices."""
    return _checked(_scores, data_path(name))


def _checked(read: Callable[[Path], T], path: Path) -> T:
    try:
        return read(path)
    except TraceError as error:
        raise DatasetError(path.name, str(error), "fetch the file again") from error
