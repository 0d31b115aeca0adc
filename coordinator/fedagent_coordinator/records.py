"""Views, selections, feedbacks and policy states as bytes: raw columns in MessagePack.

Numpy arrays keep dtype, shape and little-endian bytes; nothing is executed when
they are read back, and what comes back is bit-equal.
"""

import math
from collections.abc import Mapping
from typing import TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from .core.effects import Controls
from .errors import InvalidViewError, RecordError
from .placement.base import Placement, PlacementView
from .policies.base import Feedback, RoundView, Selection

Arrays = Mapping[str, npt.NDArray[np.generic]]

_DTYPES = frozenset(["|b1", "|i1", "|u1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8", "<f4", "<f8"])
_FEEDBACK = (
    "pairs",
    "X",
    "used",
    "tau_s",
    "dt_s",
    "lc_s",
    "ut_s",
    "censored",
    "void",
    "arrivals",
    "num_samples",
    "seconds_per_iteration",
)
_OPTIONAL = ("opinions", "steps", "iterations", "train_s")
_NOTE = "note/"
_VIEW = (
    "pair_client",
    "pair_edge",
    "pair_features",
    "client_price",
    "client_available",
    "edge_budget",
)


class _Array(msgspec.Struct, array_like=True, frozen=True):
    """One array on disk."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes


class _Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Arrays with a few scalars."""

    arrays: dict[str, _Array]
    numbers: dict[str, float] = {}
    names: tuple[str, ...] = ()
    round: int = 0


R = TypeVar("R")


def pack_arrays(arrays: Arrays) -> bytes:
    """Return arrays as bytes.

    Raises:
        RecordError: A dtype is not a plain number or bool.
    """
    return msgspec.msgpack.encode(_Record(arrays=_encode(arrays)))


def unpack_arrays(data: bytes) -> dict[str, npt.NDArray[np.generic]]:
    """Return the arrays of `pack_arrays`, writable and bit-equal.

    Raises:
        RecordError: The bytes are not such a record.
    """
    return _decode(_record(data, "arrays"), "arrays")


def pack_view(view: RoundView) -> bytes:
    """Return a view as bytes."""
    arrays = {name: getattr(view, name) for name in _VIEW}
    for name in ("opinions", "volunteers"):
        column = getattr(view, name)
        if column is not None:
            arrays[name] = column
    numbers = {"deadline_s": view.deadline_s, "model_bytes": float(view.model_bytes)}
    return msgspec.msgpack.encode(
        _Record(arrays=_encode(arrays), numbers=numbers, names=view.feature_names, round=view.round)
    )


def unpack_view(data: bytes) -> RoundView:
    """Return the view of `pack_view`.

    Raises:
        RecordError: The bytes are not such a record.
    """
    record = _record(data, "view")
    scalars = {
        "feature_names": record.names,
        "round": record.round,
        "deadline_s": record.numbers.get("deadline_s", math.inf),
        "model_bytes": int(record.numbers.get("model_bytes", 0)),
    }
    return _build(RoundView, "view", {**_decode(record, "view"), **scalars})


def pack_selection(selection: Selection) -> bytes:
    """Return a selection as bytes."""
    arrays = {name: getattr(selection, name) for name in ("pairs", "scores", "bound")}
    return msgspec.msgpack.encode(_Record(arrays=_encode(arrays), numbers=dict(selection.notes)))


def unpack_selection(data: bytes) -> Selection:
    """Return the selection of `pack_selection`.

    Raises:
        RecordError: The bytes are not such a record.
    """
    record = _record(data, "selection")
    return _build(Selection, "selection", {**_decode(record, "selection"), "notes": record.numbers})


def pack_feedback(feedback: Feedback) -> bytes:
    """Return a feedback as bytes, without its view."""
    arrays = {name: getattr(feedback, name) for name in _FEEDBACK}
    for name in _OPTIONAL:
        column = getattr(feedback, name)
        if column is not None:
            arrays[name] = column
    numbers = {} if feedback.psi is None else {"psi": float(feedback.psi)}
    if feedback.rent_micro:
        numbers["rent_micro"] = float(feedback.rent_micro)
    return msgspec.msgpack.encode(_Record(arrays=_encode(arrays), numbers=numbers))


def unpack_feedback(data: bytes, view: RoundView) -> Feedback:
    """Return the feedback of `pack_feedback`, given the view of its round.

    Raises:
        RecordError: The bytes are not such a record.
    """
    record = _record(data, "feedback")
    scalars = {
        "psi": record.numbers.get("psi"),
        "rent_micro": int(record.numbers.get("rent_micro", 0)),
    }
    values = {**_decode(record, "feedback"), **scalars, "view": view}
    return _build(Feedback, "feedback", values)


def pack_controls(controls: Controls) -> bytes:
    """Return what was decided of a round besides who trains."""
    numbers = {_NOTE + name: float(value) for name, value in controls.notes.items()}
    numbers |= {"iterations": float(controls.iterations), "horizon": controls.horizon}
    arrays: Arrays = {}
    placement, view = controls.placement, controls.view
    if placement.edge is not None:
        numbers |= {"edge": float(placement.edge), "rent_micro": float(placement.rent_micro)}
    if view is not None:
        arrays = {"edge_live": view.edge_live, "edge_rent": view.edge_rent}
        if view.edge_transfer_s is not None:
            arrays = {**arrays, "edge_transfer_s": view.edge_transfer_s}
        numbers["budget_micro"] = float(view.budget_micro)
    return msgspec.msgpack.encode(
        _Record(arrays=_encode(arrays), numbers=numbers, round=0 if view is None else view.round)
    )


def unpack_controls(data: bytes) -> Controls:
    """Return the controls of `pack_controls`.

    Raises:
        RecordError: The bytes are not such a record.
    """
    record = _record(data, "controls")
    arrays, numbers = _decode(record, "controls"), record.numbers
    view = None
    if arrays:
        given = {"edge_transfer_s": None, **arrays, "round": record.round}
        given["budget_micro"] = int(numbers.get("budget_micro", 0))
        view = _build(PlacementView, "controls", given)
    where: dict[str, object] = {}
    if "edge" in numbers:
        rent = int(numbers.get("rent_micro", 0))
        where = {"edge": int(numbers["edge"]), "rent_micro": rent}
    notes = {
        name.removeprefix(_NOTE): value for name, value in numbers.items() if name.startswith(_NOTE)
    }
    return Controls(
        iterations=int(numbers.get("iterations", 0)),
        horizon=numbers.get("horizon", 1.0),
        notes=notes,
        view=view,
        placement=_build(Placement, "controls", where),
    )


def _encode(arrays: Arrays) -> dict[str, _Array]:
    """Return arrays as what MessagePack knows."""
    encoded = {}
    for name, array in arrays.items():
        little = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
        if little.dtype.str not in _DTYPES:
            raise RecordError(name, f"has dtype {array.dtype}, which is not kept")
        encoded[name] = _Array(little.dtype.str, array.shape, little.tobytes())
    return encoded


def _record(data: bytes, what: str) -> _Record:
    try:
        return msgspec.msgpack.decode(data, type=_Record)
    except msgspec.DecodeError as error:
        raise RecordError(what, str(error)) from error


def _decode(record: _Record, what: str) -> dict[str, npt.NDArray[np.generic]]:
    """Return the arrays of a record."""
    arrays: dict[str, npt.NDArray[np.generic]] = {}
    for name, column in record.arrays.items():
        if column.dtype not in _DTYPES:
            raise RecordError(what, f"{name} has dtype {column.dtype[:20]!r}")
        dtype = np.dtype(column.dtype)
        if min(column.shape, default=0) < 0 or (
            math.prod(column.shape) * dtype.itemsize != len(column.data)
        ):
            raise RecordError(what, f"{name} has not the bytes of its shape")
        array = np.frombuffer(column.data, dtype=dtype).reshape(column.shape)
        arrays[name] = array.astype(dtype.newbyteorder("="), copy=True)
    return arrays


def _build(kind: type[R], what: str, values: Mapping[str, object]) -> R:
    """Return the record of these fields."""
    try:
        return kind(**values)
    except (TypeError, InvalidViewError) as error:
        raise RecordError(what, str(error)) from error
