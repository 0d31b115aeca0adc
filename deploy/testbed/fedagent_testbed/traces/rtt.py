"""Round-trip times: the PlanetLab and Seattle matrices, numpy archives.

Nothing in the archive is ever executed, and the header of an array is held against its size
before anything is allocated for it.
"""

import math
import struct
import zipfile
import zlib
from pathlib import Path

import numpy as np
import numpy.typing as npt
from numpy.lib import format as npy

from .files import DEFAULT, Limits, TraceError
from .records import RttMatrix

_DAMAGED = (zipfile.BadZipFile, zlib.error, struct.error, EOFError, ValueError, RuntimeError)


def read_planetlab(path: Path, limits: Limits = DEFAULT) -> RttMatrix:
    """Return ``rtt_ms``, float32 [time, from, to] in milliseconds, as seconds."""
    return _matrix(path, _array(path, "rtt_ms", np.float32, limits), 1e-3)


def read_seattle(path: Path, limits: Limits = DEFAULT) -> RttMatrix:
    """Return ``rtt_cs``, uint16 [time, from, to] in hundredths of a second, as seconds."""
    return _matrix(path, _array(path, "rtt_cs", np.uint16, limits), 1e-2)


def _matrix(path: Path, raw: npt.NDArray[np.generic], scale: float) -> RttMatrix:
    """Return the matrix in seconds; off the diagonal 0 means missing."""
    seconds = raw.astype(np.float32) * np.float32(scale)
    _, rows, columns = seconds.shape
    if rows != columns or not seconds.size:
        raise TraceError(str(path), None, f"has shape {seconds.shape}, not (time, n, n)")
    if not (np.isfinite(seconds) & (seconds >= 0)).all():
        raise TraceError(str(path), None, "has a time that is negative or not finite")
    missing = (seconds == 0) & ~np.eye(rows, dtype=np.bool_)
    seconds[missing] = np.nan
    return RttMatrix(name=path.name, seconds=seconds)


def _array(
    path: Path, name: str, dtype: type[np.generic], limits: Limits
) -> npt.NDArray[np.generic]:
    member = f"{path}:{name}"
    try:
        with zipfile.ZipFile(path) as archive:
            size = archive.getinfo(f"{name}.npy").file_size
            if size > limits.unpacked_bytes:
                raise TraceError(member, None, f"unpacks to more than {limits.unpacked_bytes}")
            with archive.open(f"{name}.npy") as stream:
                npy.read_magic(stream)
                shape, by_columns, found = npy.read_array_header_1_0(stream)
                data = stream.read()
    except KeyError as error:
        raise TraceError(str(path), None, f"holds no array {name}") from error
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
    return np.frombuffer(data, dtype=found).reshape(shape)
