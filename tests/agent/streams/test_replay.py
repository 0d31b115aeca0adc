"""Replays: Poisson arrivals in an order that the seed alone decides."""

from itertools import accumulate
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedagent_agent.streams.base import Samples, Stream
from fedagent_agent.streams.kinds import Replay

from .support import dense


def _stream(seed: int = 1, offset: int = 0, **keys: object) -> Stream:
    spec = Replay(**{"path": "digits-train", **keys})  # type: ignore[arg-type] # by test
    stream = spec.create(seed=seed, offset=offset)
    stream.open(100.0)
    return stream


def _rows(samples: Samples) -> list[bytes]:
    return [row.tobytes() for row in dense(samples)]


def test_samples_are_there_at_once_and_then_come_at_the_rate() -> None:
    stream = _stream(start=50, rate=10.0, buffer=100_000)
    assert len(stream.take(100.0)) == 50
    assert len(stream.take(100.0)) == 0
    assert len(stream.take(1100.0)) == pytest.approx(10_000, abs=500)
    assert stream.counters["dropped"] == 0
    assert len(stream.take(50.0)) == 0  # a clock that jumped back


def test_arrivals_are_poisson_and_every_lap_has_all_samples_in_a_new_order() -> None:
    stream = _stream(start=0, rate=4.0)
    counts = [len(stream.take(100.0 + second)) for second in range(1, 2001)]
    assert np.mean(counts) == pytest.approx(4.0, abs=0.25)
    assert np.var(counts) == pytest.approx(4.0, abs=0.6)
    rows = _rows(_stream(labels=(3,), start=500, buffer=1000).take(100.0))
    lap = len(set(rows))
    assert sorted(rows[:lap]) == sorted(rows[lap : 2 * lap])
    assert rows[:lap] != rows[lap : 2 * lap]


def test_the_order_depends_on_the_seed_not_on_when_it_is_taken() -> None:
    at_once = _rows(_stream(start=400).take(100.0))
    stream = _stream(start=100, rate=50.0)
    pieces = [row for t in range(100, 104) for row in _rows(stream.take(float(t)))]
    assert pieces == at_once[: len(pieces)]
    assert _rows(_stream(seed=2, start=400).take(100.0)) != at_once


def test_a_resumed_stream_goes_on_where_it_was() -> None:
    whole = _rows(_stream(start=2000, buffer=4000).take(100.0))
    stream = _stream(offset=1234, rate=100.0)
    assert len(stream.take(100.0)) == 0
    later = _rows(stream.take(105.0))
    assert later == whole[1234 : 1234 + len(later)]
    assert stream.offset == 1234 + len(later)


def test_parts_share_nothing() -> None:
    one, other = (set(_rows(_stream(part=(i, 3), start=600).take(100.0))) for i in (1, 2))
    assert not one & other


@settings(max_examples=20)
@given(
    st.lists(st.floats(0, 30), max_size=12),
    st.integers(0, 40),
    st.floats(0.01, 50),
    st.integers(1, 60),
)
def test_a_replay_accounts_for_all(
    moments: list[float], start: int, rate: float, buffer: int
) -> None:
    stream = Replay(path="digits-train", start=start, rate=rate, buffer=buffer).create(seed=1)
    stream.open(0.0)
    taken = sum(len(stream.take(now)) for now in accumulate(moments))
    arrived = stream.offset
    # Nothing waits: what has come up to a take is handed over or dropped by it.
    assert arrived == taken + stream.counters.get("dropped", 0)
    assert arrived >= (start if moments else 0)


def test_sparse_rows_are_the_rows_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.libsvm"
    path.write_text("".join(f"{(-1) ** i} {i % 3 + 1}:1 {5 + i % 2}:{i}.5\n" for i in range(20)))
    keys = {"path": str(path), "start": 7, "labels": (1,), "part": (1, 2), "width": 9}
    sparse = Replay(sparse=True, **keys).create(seed=3)  # type: ignore[arg-type]  # by test
    full = Replay(**keys).create(seed=3)  # type: ignore[arg-type]  # by test
    schema = sparse.open(0.0)
    assert (schema.features, schema.sparse) == (9, True)
    assert not full.open(0.0).sparse
    for now in (0.0, 1.0):
        one, other = sparse.take(now), full.take(now)
        assert not isinstance(one.x, np.ndarray)
        assert np.array_equal(one.x.dense(), dense(other))
        assert np.array_equal(one.y, other.y)
