"""A station's sensors, reading by reading: windows, gaps, and an account of all that came."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedagent_agent.streams.base import StreamSchema
from fedagent_agent.streams.series import Series

from .support import STEPS, dense, taken_after


@pytest.fixture(scope="module")
def series(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("series") / "sensors.npz"
    values = np.arange(2 * 50 * 2, dtype=np.float32).reshape(2, 50, 2)
    values[0, ::7, 0] = np.nan
    np.savez(path, values=values, columns=np.array(["t", "h"]), stations=np.array(["a", "b"]))
    return str(path)


@given(STEPS, st.integers(0, 40), st.floats(0.01, 50), st.integers(1, 60))
def test_a_series_accounts_for_all(
    series: str, moments: list[float], start: int, rate: float, buffer: int
) -> None:
    spec = Series(path=series, predict="t", lags=3, start=start, rate=rate, buffer=buffer)
    stream = spec.create(seed=0)
    taken = taken_after(stream, moments)
    lost = stream.counters.get("dropped", 0) + stream.counters.get("missing", 0)
    assert stream.offset == taken + lost
    if moments:
        assert stream.offset == start + int(sum(moments) * rate + 1e-9) or stream.offset == (
            start + int(np.cumsum(moments)[-1] * rate)
        )


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
