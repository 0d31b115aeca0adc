"""Contexts of many agents as columns: what one edge reports.

Pure numpy. Rows are client-edge pairs of one edge; all little-endian.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypedDict, TypeVar

import numpy as np
import numpy.typing as npt

from .errors import ProtocolError
from .messages import RoundColumns
from .signed import CLAIM_BYTES

S = TypeVar("S", bound=np.generic)


@dataclass(frozen=True, slots=True)
class Columns:
    """Fresh contexts at one edge: `P` rows, `F` features."""

    features: tuple[str, ...]
    session: npt.NDArray[np.int32]  # int32[P], position in the edge's list of session ids
    price: npt.NDArray[np.int64]  # int64[P], micro-credits
    context_seq: npt.NDArray[np.int64]  # int64[P], the report's sequence number
    age_ms: npt.NDArray[np.int32]  # int32[P], age of the report at the edge
    available: npt.NDArray[np.bool_]  # bool[P]
    values: npt.NDArray[np.float32]  # float32[P, F]; NaN where an agent did not report a feature
    claim: npt.NDArray[np.uint8] = field(  # uint8[P, 96], zeros of none; uint8[0, 96] of all none
        default_factory=lambda: np.zeros((0, CLAIM_BYTES), dtype=np.uint8)
    )


class PackedColumns(TypedDict):
    """Columns of a `RoundColumns` message."""

    session: bytes
    price: bytes
    context_seq: bytes
    age_ms: bytes
    available: bytes
    values: bytes
    claim: bytes


def pack(columns: Columns) -> PackedColumns:
    """Return the columns as little-endian bytes."""
    return {
        "session": columns.session.astype("<i4").tobytes(),
        "price": columns.price.astype("<i8").tobytes(),
        "context_seq": columns.context_seq.astype("<i8").tobytes(),
        "age_ms": columns.age_ms.astype("<i4").tobytes(),
        "available": columns.available.astype("u1").tobytes(),
        "values": columns.values.astype("<f4").tobytes(),
        "claim": columns.claim.tobytes() or b"",  # the default itself is not sent
    }


def unpack(message: RoundColumns) -> Columns:
    """Return the columns of a message, or raise `ProtocolError` if they do not fit together."""
    session = column(message.session, np.int32, "session")
    rows = len(session)
    width = len(message.features)
    values = column(message.values, np.float32, "values")
    columns = Columns(
        features=message.features,
        session=session,
        price=column(message.price, np.int64, "price"),
        context_seq=column(message.context_seq, np.int64, "context_seq"),
        age_ms=column(message.age_ms, np.int32, "age_ms"),
        available=column(message.available, np.uint8, "available") != 0,
        values=values.reshape(rows, width) if values.size == rows * width else values,
        claim=claims_in(message.claim, rows),
    )
    lengths = {len(columns.price), len(columns.context_seq), len(columns.age_ms)}
    if lengths | {len(columns.available)} != {rows} or columns.values.shape != (rows, width):
        raise ProtocolError("columns differ in length")
    total = message.known + len(message.new_ids)
    if rows and not (session.min() >= 0 and session.max() < total):
        raise ProtocolError("a row names an unknown session")
    if len(np.unique(session)) != rows:
        raise ProtocolError("a session has two rows")
    if (columns.price < 0).any() or (columns.age_ms < 0).any():
        raise ProtocolError("a price or an age is negative")
    if len(set(message.features)) != width or np.isinf(columns.values).any():
        raise ProtocolError("a feature is named twice or infinite")
    return columns


def claim_column(claims: Sequence[bytes]) -> bytes:
    """Return 96 bytes a row, zeros of who signed nothing; empty if that is everybody."""
    return b"".join(claim.ljust(CLAIM_BYTES, b"\0") for claim in claims) if any(claims) else b""


def claims_in(data: bytes, rows: int) -> npt.NDArray[np.uint8]:
    """Return uint8[rows, 96] of such a column, uint8[0, 96] of an empty one; `ProtocolError`."""
    if len(data) not in {0, rows * CLAIM_BYTES}:
        raise ProtocolError("column claim differs in length")
    return np.frombuffer(data, dtype=np.uint8).reshape(-1, CLAIM_BYTES)


def column(data: bytes, scalar: type[S], name: str) -> npt.NDArray[S]:
    """Return a little-endian column; raises `ProtocolError` if it ends within a value."""
    wire = np.dtype(scalar).newbyteorder("<")
    if len(data) % wire.itemsize:
        raise ProtocolError(f"column {name} is cut off")
    return np.frombuffer(data, dtype=wire).astype(scalar, copy=False)
