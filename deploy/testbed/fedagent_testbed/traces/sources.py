"""The recorded files below FEDAGENT_DATA that a recipe names, each read once in a process."""

import functools
import os
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from fedagent_task.errors import DatasetError
from fedagent_task.readers import DATA_VARIABLE

from .files import TraceError
from .rates import read_mahimahi, read_rate_archive
from .records import AccessSpeeds, CpuScores, PriceTrace, RateTrace, RttMatrix
from .rtt import read_planetlab, read_seattle
from .tables import read_cpu_scores, read_ndt, read_spot_prices

T = TypeVar("T")

_LINKS = "name a .tar.gz of rates, or a folder of mahimahi files (.up, .down, .gz)"
_ARCHIVES = (".tar", ".tar.gz", ".tgz")
_OTHERS = (".csv", ".json", ".npz", *_ARCHIVES)


def data_path(name: str, *, folder: bool = False) -> Path:
    """Return a file below FEDAGENT_DATA, or a folder where that is allowed.

    Raises:
        DatasetError: The variable is not set, or there is no such file.
    """
    root = os.environ.get(DATA_VARIABLE, "")
    if not root:
        raise DatasetError(name, "needs a folder of data", f"set {DATA_VARIABLE} to it")
    path = Path(root) / name
    if not (path.exists() if folder else path.is_file()):
        raise DatasetError(name, f"is not in {DATA_VARIABLE}", "see docs/testbed.md, Data")
    return path


def access_speeds(name: str) -> AccessSpeeds:
    """Return speed tests, one of which is the mean rate of an edge."""
    return _read(read_ndt, data_path(name))


def rate_traces(name: str) -> tuple[RateTrace, ...]:
    """Return the traces of an archive."""
    return _read(read_rate_archive, data_path(name))


def rtt_matrix(name: str) -> RttMatrix:
    """Return round-trip times between nodes over time."""
    return _read(read_seattle if "seattle" in name else read_planetlab, data_path(name))


def spot_prices(name: str) -> tuple[PriceTrace, ...]:
    """Return the markets of rented machines."""
    return _read(read_spot_prices, data_path(name))


def cpu_scores(name: str) -> CpuScores:
    """Return the relative speeds of devices."""
    return _read(read_cpu_scores, data_path(name))


def link_traces(name: str) -> tuple[RateTrace, ...]:
    """Return the traces of an archive, of a folder of mahimahi links, or of one such link.

    Raises:
        DatasetError: It is not there, none of these, damaged or empty.
    """
    path = data_path(name, folder=True)
    traces = _read(_link_traces, path)
    if not traces:
        raise DatasetError(path.name, "holds no trace", "see docs/testbed.md, Data")
    return traces


def _link_traces(path: Path) -> tuple[RateTrace, ...]:
    if path.is_dir():
        return tuple(read_mahimahi(file) for file in sorted(path.iterdir()) if _is_link(file))
    if _is_link(path):
        return (read_mahimahi(path),)
    if _is_archive(path):
        return read_rate_archive(path)
    raise DatasetError(path.name, "is no recording of links", _LINKS)


def _is_link(path: Path) -> bool:
    """Whether a file is named like one of mahimahi: *.up, *.down, or *.gz of no other kind."""
    name = path.name.lower()
    plain = name.removesuffix(".gz")
    packed = plain != name and not name.endswith(_OTHERS) and not plain.endswith(_OTHERS)
    return path.is_file() and (packed or plain.endswith((".up", ".down")))


def _is_archive(path: Path) -> bool:
    try:
        return path.name.lower().endswith(_ARCHIVES) or tarfile.is_tarfile(path)
    except (OSError, EOFError, zlib.error):
        return False


def _read(reader: Callable[[Path], T], path: Path) -> T:
    try:
        value: T = _cached(reader, path)
    except TraceError as error:
        raise DatasetError(path.name, str(error), "fetch the file again") from error
    return value


@functools.lru_cache(maxsize=8)
def _cached(reader: Callable[[Path], T], path: Path) -> T:
    return reader(path)
