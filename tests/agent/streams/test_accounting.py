"""Nothing is lost in silence: what arrived was taken, dropped and counted, or still waits."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedagent_agent.streams.base import Samples, Stream, StreamSchema
from fedagent_agent.streams.csv_tail import Csv
from fedagent_agent.streams.mqtt_topic import Mqtt
from fedagent_agent.streams.replay import DIGITS, Replay, ReplayStream
from fedagent_agent.streams.series import Series
from fedagent_node.address import BrokerAddress
from fedagent_node.link import Arrival

from .support import dense

STEPS = st.lists(st.floats(0, 30), max_size=12)


def _taken(stream: Stream, moments: Sequence[float]) -> int:
    stream.open(0.0)
    now, taken = 0.0, 0
    for step in moments:
        now += step
        taken += len(stream.take(now))
    return taken


@given(STEPS, st.integers(0, 40), st.floats(0.01, 50), st.integers(1, 60))
@settings(deadline=None)
def test_a_replay_accounts_for_all(
    moments: list[float], start: int, rate: float, buffer: int
) -> None:
    stream = Replay(path=DIGITS, start=start, rate=rate, buffer=buffer).create(seed=1)
    taken = _taken(stream, moments)
    arrived = stream.offset
    # Nothing waits: what has come up to a take is handed over or dropped by it.
    assert arrived == taken + stream.counters.get("dropped", 0)
    assert arrived >= (start if moments else 0)


@pytest.fixture(scope="module")
def series(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("series") / "sensors.npz"
    values = np.arange(2 * 50 * 2, dtype=np.float32).reshape(2, 50, 2)
    values[0, ::7, 0] = np.nan
    np.savez(path, values=values, columns=np.array(["t", "h"]), stations=np.array(["a", "b"]))
    return str(path)


@given(STEPS, st.integers(0, 40), st.floats(0.01, 50), st.integers(1, 60))
@settings(deadline=None)
def test_a_series_accounts_for_all(
    series: str, moments: list[float], start: int, rate: float, buffer: int
) -> None:
    spec = Series(path=series, predict="t", lags=3, start=start, rate=rate, buffer=buffer)
    stream = spec.create(seed=0)
    taken = _taken(stream, moments)
    lost = stream.counters.get("dropped", 0) + stream.counters.get("missing", 0)
    assert stream.offset == taken + lost
    if moments:
        assert stream.offset == start + int(sum(moments) * rate + 1e-9) or stream.offset == (
            start + int(np.cumsum(moments)[-1] * rate)
        )


@given(
    st.lists(st.one_of(st.integers(0, 9), st.just("take"), st.just("bad")), max_size=40),
    st.integers(1, 8),
)
@settings(deadline=None)
def test_a_topic_accounts_for_all(events: list[int | str], buffer: int) -> None:
    """Without a broker: messages are given to the stream as its link gives them."""
    broker = BrokerAddress("box", 1883)
    spec = Mqtt(broker=broker, topic="t", features=("v",), label="y", buffer=buffer)
    stream = spec.create(seed=0)
    good = taken = bad = 0
    for event in events:
        if event == "take":
            taken += len(stream.take(0.0))
            continue
        payload = b"{" if event == "bad" else json.dumps({"v": event, "y": 0}).encode()
        bad, good = bad + (event == "bad"), good + (event != "bad")
        stream._arrived([Arrival(topic="t", payload=payload, at=0.0)])
    waiting = len(stream.take(0.0))
    assert waiting <= buffer
    counters = stream.counters
    assert good == taken + waiting + counters.get("dropped", 0)
    assert bad == counters.get("bad_json", 0)


@given(st.lists(st.one_of(st.integers(0, 30), st.just("take")), max_size=12), st.integers(1, 20))
@settings(deadline=None, max_examples=40)
def test_a_growing_file_accounts_for_all(
    tmp_path_factory: pytest.TempPathFactory, events: list[int | str], buffer: int
) -> None:
    path = tmp_path_factory.mktemp("csv") / "a.csv"
    path.write_text("v,y\n")
    stream = Csv(path=str(path), buffer=buffer).create(seed=0)
    stream.open(0.0)
    written = taken = 0
    for event in events:
        if isinstance(event, str):
            taken += len(stream.take(0.0))
            continue
        with path.open("a") as file:
            file.writelines(f"{written + i},1\n" for i in range(event))
        written += event
    taken += len(stream.take(0.0))
    stream.close()
    assert written == taken + stream.counters.get("dropped", 0)


# ------------------------------------------------------- acceleration, recorded times


def test_acceleration_multiplies_the_rate() -> None:
    spec = Replay(path=DIGITS, start=0, rate=2.0, accelerate=10.0, buffer=100_000)
    stream = spec.create(seed=1)
    stream.open(0.0)
    assert len(stream.take(500.0)) == pytest.approx(10_000, abs=400)


RATINGS = "".join(
    f"{u}\t{u + 10}\t{u % 5 + 1}\t{1000 + when}\n"
    for u, when in ((1, 30), (2, 0), (3, 10), (4, 10), (5, 40))
)


def _ratings(folder: Path, offset: int = 0, **keys: object) -> ReplayStream:
    path = folder / "u.data"
    path.write_text(RATINGS)
    spec = Replay(path=str(path), order="time", start=0, **keys)  # type: ignore[arg-type]  # by test
    return spec.create(seed=1, offset=offset)


def _users(samples: Samples) -> list[int]:
    return [int(row[0]) for row in dense(samples)]


def test_ratings_arrive_in_the_order_and_at_the_times_they_were_given(tmp_path: Path) -> None:
    stream = _ratings(tmp_path)
    schema = stream.open(100.0)
    assert (schema.features, schema.dtype, schema.labels) == (2, "int64", (1, 2, 3, 4, 5))
    first = stream.take(100.0)
    assert dense(first).tolist() == [[2, 12]]
    assert first.y.tolist() == [3]
    assert _users(stream.take(109.9)) == []
    assert _users(stream.take(110.0)) == [3, 4]
    assert _users(stream.take(141.0)) == [1, 5]
    # The next lap begins as long after the last rating as ratings follow each other.
    assert _users(stream.take(149.9)) == []
    assert _users(stream.take(150.1)) == [2]


def test_recorded_times_pass_faster(tmp_path: Path) -> None:
    stream = _ratings(tmp_path, accelerate=20.0)
    stream.open(100.0)
    assert _users(stream.take(102.0)) == [2, 3, 4, 1, 5]


def test_a_stream_of_recorded_times_goes_on_where_it_was(tmp_path: Path) -> None:
    stream = _ratings(tmp_path, offset=3)
    stream.open(500.0)
    assert _users(stream.take(500.0)) == [1]
    assert _users(stream.take(510.0)) == [5]
    assert stream.offset == 5


@given(moments=STEPS, buffer=st.integers(1, 9))
@settings(deadline=None, max_examples=50)
def test_recorded_times_account_for_all(
    tmp_path_factory: pytest.TempPathFactory, moments: list[float], buffer: int
) -> None:
    stream = _ratings(tmp_path_factory.mktemp("u"), buffer=buffer)
    taken = _taken(stream, moments)
    assert stream.offset == taken + stream.counters.get("dropped", 0)


# ------------------------------------------------------------------ series, sparse


def test_a_reading_comes_with_those_before_it_and_the_one_to_predict(series: str) -> None:
    spec = Series(
        path=series,
        station="b",
        features=("h", "t"),
        predict="t",
        lags=2,
        ahead=3,
        mean=(100.0, 100.0),
        deviation=(2.0, 1.0),
        rate=1.0,
    )
    stream = spec.create(seed=0)
    assert stream.open(10.0) == StreamSchema(4, "float32")
    samples = stream.take(12.0)
    # Station b starts at 100: t is 100, 102, ..., h is 101, 103, ...
    assert dense(samples).tolist() == [[0.5, 0, 1.5, 2], [1.5, 2, 2.5, 4]]
    assert samples.y.tolist() == [108.0, 110.0]


def test_a_series_with_gaps_gives_no_sample_with_a_hole(series: str) -> None:
    stream = Series(path=series, predict="t", lags=2, start=48).create(seed=0)
    stream.open(0.0)
    samples = stream.take(0.0)
    assert np.isfinite(dense(samples)).all()
    assert np.isfinite(samples.y).all()
    # Every seventh reading is missing: as the older one, the newer one, the label.
    assert stream.counters["missing"] == 48 - len(samples) == 3 * 7 - 1


def test_a_series_that_is_resumed_goes_on(series: str) -> None:
    spec = Series(path=series, station="1", predict="t", lags=1, start=5)
    stream = spec.create(seed=0)
    stream.open(0.0)
    first = stream.take(2.0)
    again = spec.create(seed=0, offset=stream.offset)
    again.open(50.0)
    assert len(again.take(50.0)) == 0
    assert again.take(51.0).y[0] == first.y[-1] + 2


def test_sparse_rows_are_the_rows_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.libsvm"
    path.write_text("".join(f"{(-1) ** i} {i % 3 + 1}:1 {5 + i % 2}:{i}.5\n" for i in range(20)))
    keys = {"path": str(path), "start": 7, "labels": (1,), "part": (1, 2), "width": 9}
    sparse = Replay(sparse=True, **keys).create(seed=3)  # type: ignore[arg-type]  # by test
    full = Replay(**keys).create(seed=3)  # type: ignore[arg-type]  # by test
    schema = sparse.open(0.0)
    assert (schema.features, schema.dtype, schema.sparse) == (9, "float32", True)
    assert not full.open(0.0).sparse
    for now in (0.0, 1.0):
        one, other = sparse.take(now), full.take(now)
        assert not isinstance(one.x, np.ndarray)
        assert np.array_equal(one.x.dense(), dense(other))
        assert np.array_equal(one.y, other.y)
