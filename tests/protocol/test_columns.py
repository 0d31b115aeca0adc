"""Columns survive the wire and refuse to contradict themselves."""

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedagent_protocol.columns import Columns, pack, unpack
from fedagent_protocol.errors import ProtocolError
from fedagent_protocol.messages import RoundColumns
from fedagent_protocol.signed import CLAIM_BYTES


def _message(rows: int, **changes: object) -> RoundColumns:
    rng = np.random.default_rng(rows)
    columns = Columns(
        features=("compute", "rtt_s"),
        session=rng.permutation(rows).astype(np.int32),
        price=rng.integers(0, 10**9, rows),
        context_seq=rng.integers(0, 10**9, rows),
        age_ms=rng.integers(0, 45_000, rows).astype(np.int32),
        available=rng.random(rows) < 0.5,
        values=rng.random((rows, 2)).astype(np.float32),
        claim=rng.integers(0, 256, (rows, CLAIM_BYTES)).astype(np.uint8),
    )
    message = RoundColumns(
        epoch="0" * 32,
        known=0,
        new_ids=tuple(f"a{i}" for i in range(rows)),
        features=columns.features,
        **pack(columns),
    )
    return msgspec.structs.replace(message, **changes)


@given(st.integers(0, 50))
def test_columns_survive(rows: int) -> None:
    message = _message(rows)
    columns = unpack(message)
    assert pack(columns) == {name: getattr(message, name) for name in pack(columns)}
    assert columns.values.shape == (rows, 2)
    assert columns.claim.shape == (rows, CLAIM_BYTES)
    assert unpack(_message(rows, claim=b"")).claim.shape == (0, CLAIM_BYTES)


@pytest.mark.parametrize(
    "changes",
    [
        {"price": b"\0" * 8},
        {"price": b"\0" * 23},
        {"values": b"\0" * 4},
        {"claim": b"\0" * 96},
        {"session": np.array([0, 0, 1], "<i4").tobytes()},
        {"session": np.array([0, 1, 3], "<i4").tobytes()},
        {"session": np.array([0, 1, -1], "<i4").tobytes()},
        {"price": np.array([0, 1, -1], "<i8").tobytes()},
        {"age_ms": np.array([0, 1, -1], "<i4").tobytes()},
        {"values": np.full(6, np.inf, "<f4").tobytes()},
        {"features": ("compute", "compute")},
        {"features": ("compute",)},
    ],
)
def test_contradictions_are_refused(changes: dict[str, object]) -> None:
    with pytest.raises(ProtocolError):
        unpack(_message(3, **changes))
