"""Views, selections, controls and policy states as bytes: raw columns in MessagePack.

Numpy arrays keep dtype, shape and little-endian bytes; nothing is executed when
they are read back, and what comes back is bit-equal. What is smaller so is deflated (zlib).
"""

import math
import zlib
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from fedagent_coordinator.core.effects import Controls
from fedagent_coordinator.errors import InvalidViewError, RecordError
from fedagent_coordinator.placement.base import Placement, PlacementView
from fedagent_coordinator.policies.base import RoundView, Selection

from .rows import NOTE, PackedArray, PackedRecord, unpacked

Arrays = Mapping[str, npt.NDArray[np.generic]]

_KEPT = ("|b1", "|i1", "|u1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8", "<f4", "<f8")
_DTYPES = {name: np.dtype(name) for name in _KEPT}
_NATIVE = {name: dtype.newbyteorder("=") for name, dtype in _DTYPES.items()}
_VIEW = (
    *("pair_client", "pair_edge", "pair_features"),
    *("client_price", "client_available", "edge_budget"),
)
_MARKET = ("edge_live", "edge_rent")


R = TypeVar("R")


def pack_arrays(arrays: Arrays) -> bytes:
    """Return arrays as bytes."""
    return _pack(arrays)


def unpack_arrays(data: bytes) -> dict[str, npt.NDArray[np.generic]]:
    """Return the arrays of `pack_arrays`, writable and bit-equal.

    Raises:
        RecordError: The bytes are not such a record.
    """
    return _unpack(data, "arrays")[0]


def pack_view(view: RoundView) -> bytes:
    """Return a view as bytes."""
    return _pack(
        _columns(view, *_VIEW, "opinions", "volunteers", "client_starts", "trust"),
        numbers={"deadline_s": view.deadline_s, "model_bytes": float(view.model_bytes)},
        names=view.feature_names,
        round=view.round,
    )


def unpack_view(data: bytes) -> RoundView:
    """Return the view of `pack_view`; see `unpack_arrays`."""
    arrays, record = _unpack(data, "view")
    return _build(
        RoundView,
        "view",
        feature_names=record.names,
        round=record.round,
        deadline_s=record.numbers.get("deadline_s", math.inf),
        model_bytes=int(record.numbers.get("model_bytes", 0)),
        **arrays,
    )


def pack_selection(selection: Selection) -> bytes:
    """Return a selection as bytes."""
    return _pack(
        _columns(selection, "pairs", "scores", "bound", "propensities"),
        numbers=dict(selection.notes),
    )


def unpack_selection(data: bytes) -> Selection:
    """Return the selection of `pack_selection`; see `unpack_arrays`."""
    arrays, record = _unpack(data, "selection")
    return _build(Selection, "selection", notes=record.numbers, **arrays)


def pack_controls(controls: Controls) -> bytes:
    """Return what was decided of a round besides who trains."""
    numbers = {NOTE + name: float(value) for name, value in controls.notes.items()}
    numbers |= {"iterations": float(controls.iterations), "horizon": controls.horizon}
    placement, view = controls.placement, controls.view
    if placement.edge is not None:
        numbers |= {"edge": float(placement.edge), "rent_micro": float(placement.rent_micro)}
    each = _columns(controls, "each")
    if view is None:
        return _pack(each, numbers=numbers)
    numbers["budget_micro"] = float(view.budget_micro)
    market = _columns(view, *_MARKET, "edge_transfer_s")
    return _pack({**market, **each}, numbers=numbers, round=view.round)


def unpack_controls(data: bytes) -> Controls:
    """Return the controls of `pack_controls`; see `unpack_arrays`."""
    arrays, record = _unpack(data, "controls")
    numbers, view = record.numbers, None
    each: Any = arrays.pop("each", None)
    if arrays:
        given: dict[str, Any] = {"edge_transfer_s": None, **arrays, "round": record.round}
        budget = int(numbers.get("budget_micro", 0))
        view = _build(PlacementView, "controls", budget_micro=budget, **given)
    where: dict[str, Any] = {}
    if "edge" in numbers:
        rent = int(numbers.get("rent_micro", 0))
        where = {"edge": int(numbers["edge"]), "rent_micro": rent}
    return Controls(
        iterations=int(numbers.get("iterations", 0)),
        horizon=numbers.get("horizon", 1.0),
        notes={
            name.removeprefix(NOTE): value
            for name, value in numbers.items()
            if name.startswith(NOTE)
        },
        view=view,
        each=each,
        placement=_build(Placement, "controls", **where),
    )


def _columns(record: object, *names: str) -> Arrays:
    return {name: column for name in names if (column := getattr(record, name)) is not None}


def _pack(arrays: Arrays, **scalars: Any) -> bytes:
    encoded = {}
    for name, array in arrays.items():
        little = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
        if little.dtype.str not in _DTYPES:
            raise RecordError(name, f"has dtype {array.dtype}, which is not kept")
        encoded[name] = PackedArray(little.dtype.str, array.shape, little.tobytes())
    plain = msgspec.msgpack.encode(PackedRecord(arrays=encoded, **scalars))
    deflated = zlib.compress(plain, level=1)
    return min(plain, deflated, key=len)


def _unpack(data: bytes, what: str) -> tuple[dict[str, npt.NDArray[np.generic]], PackedRecord]:
    record = unpacked(data, what)
    arrays: dict[str, npt.NDArray[np.generic]] = {}
    for name, column in record.arrays.items():
        dtype = _DTYPES.get(column.dtype)
        if dtype is None:
            raise RecordError(what, f"{name} has dtype {column.dtype[:20]!r}")
        if min(column.shape, default=0) < 0 or (
            math.prod(column.shape) * dtype.itemsize != len(column.data)
        ):
            raise RecordError(what, f"{name} has not the bytes of its shape")
        array = np.frombuffer(column.data, dtype=dtype).reshape(column.shape)
        arrays[name] = array.astype(_NATIVE[column.dtype], copy=True)
    return arrays, record


def _build(kind: type[R], what: str, **values: Any) -> R:
    try:
        return kind(**values)
    except (TypeError, InvalidViewError) as error:
        raise RecordError(what, str(error)) from error
