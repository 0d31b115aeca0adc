"""Views, selections, controls and policy states as bytes: MessagePack, deflated (zlib).

Numpy arrays keep dtype, shape and little-endian bytes; nothing is executed when they are read back,
and what comes back is bit-equal.
"""

import sqlite3
import zlib
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from fedagent_coordinator.core.effects import PLAIN, Controls
from fedagent_coordinator.policies.base import RoundView, Selection

from .rows import Record, unpacked

COLUMNS: dict[str, type[np.generic]] = {
    **dict.fromkeys(("used", "unpaid", "censored"), np.bool_),
    **dict.fromkeys(("num_samples", "arrivals", "steps", "iterations"), np.int64),
    **dict.fromkeys(("tau_s", "dt_s", "lc_s", "ut_s", "train_s"), np.float64),
    **dict.fromkeys(("seconds_per_iteration", "loss", "loss_rms"), np.float64),
}
"""Of `orders`, as `Feedback` has them too."""

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


def saw(row: sqlite3.Row) -> tuple[RoundView, Selection]:
    """Return what the policy saw and decided."""
    return unpack(row["view"], RoundView), unpack(row["selection"], Selection)


def controls_of(row: sqlite3.Row) -> Controls:
    """Return what was decided of a round besides who trains."""
    return unpack(row["controls"], Controls) if row["controls"] else PLAIN


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
    return array.copy() if dtype.isnative else array.astype(dtype.newbyteorder("="))
