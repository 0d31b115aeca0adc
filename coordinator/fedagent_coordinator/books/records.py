"""Views, selections, controls and policy states as bytes: MessagePack, deflated (zlib).

Numpy arrays keep dtype, shape and little-endian bytes; nothing is executed when they are read back,
and what comes back is bit-equal.
"""

import zlib
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from .rows import Record, unpacked

_KINDS = "biuf"
"""Booleans, whole numbers and floats: what an array may be of."""


def pack(record: object) -> bytes:
    """Return a dataclass, or arrays by name, as bytes."""
    return zlib.compress(msgspec.msgpack.encode(record, enc_hook=_from_array), level=1)


def unpack(data: bytes, kind: type[Record]) -> Record:
    """Return what was packed.

    Raises:
        StoreDamagedError: The bytes are no such record.
    """
    return unpacked(data, kind, _to_array)


def unpack_arrays(data: bytes) -> dict[str, npt.NDArray[np.generic]]:
    """Return arrays by name, writable."""
    return unpack(data, dict[str, npt.NDArray[np.generic]])


def _from_array(array: Any) -> tuple[str, tuple[int, ...], bytes]:
    little = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
    if little.dtype.kind not in _KINDS:
        raise TypeError(f"an array of {array.dtype} is not kept")
    return little.dtype.str, array.shape, little.tobytes()


def _to_array(_kind: type, found: Any) -> npt.NDArray[np.generic]:
    name, shape, data = found
    dtype = np.dtype(name)
    if dtype.kind not in _KINDS:
        raise ValueError(f"an array of {name[:20]!r}")
    array = np.frombuffer(data, dtype=dtype).reshape(shape)
    return array.astype(dtype.newbyteorder("="), copy=True)
