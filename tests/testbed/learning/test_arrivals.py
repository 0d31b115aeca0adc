"""Streams: nothing is lost or invented, and each device replays its own; a concept drifts."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedagent_testbed.learning.arrivals import Drift, PoissonArrivals, RecordedArrivals
from fedagent_testbed.learning.datasets import StudyData
from fedagent_testbed.recipe import Streaming


@given(seed=st.integers(0, 2**32), devices=st.integers(1, 6), samples=st.integers(6, 60))
def test_each_pass_gives_every_sample_of_a_device_once(
    seed: int, devices: int, samples: int
) -> None:
    settings = Streaming(steps=4, arrivals=3.0)
    streams = PoissonArrivals(settings, samples=samples, devices=devices, rounds=20, seed=seed)
    seen: list[list[int]] = [[] for _ in range(devices)]
    for t in range(1, 12):
        coming = streams.take(t)
        assert coming.counts.shape == (devices, 4)
        for device, index in enumerate(coming.samples):
            assert len(index) == coming.counts[device].sum()
            seen[device] += index.tolist()
    owners: set[int] = set()
    for mine in seen:
        size = len(set(mine))
        for start in range(0, len(mine) - size, size):
            assert len(set(mine[start : start + size])) == size
        assert not owners & set(mine)
        owners |= set(mine)


def test_arrivals_are_poisson_around_the_mean_and_follow_the_swing() -> None:
    settings = Streaming(arrivals=0.5, acceleration=4.0, skew=0.0)
    streams = PoissonArrivals(settings, samples=100, devices=4, rounds=400, seed=1)
    counts = np.array([streams.take(t).counts for t in range(1, 401)])
    assert counts.mean() == pytest.approx(2.0, rel=0.02)
    by_phase = counts.reshape(8, 50, -1).mean(axis=(0, 2))
    assert by_phase[10:14].mean() == pytest.approx(3.0, rel=0.05)
    assert by_phase[35:39].mean() == pytest.approx(1.0, rel=0.05)
    one = counts[12::50].ravel()
    assert one.var() == pytest.approx(one.mean(), rel=0.05)


def test_bursts_come_to_all_devices_at_once_and_leave_the_other_rounds_as_they_are() -> None:
    plain = Streaming(arrivals=4.0, skew=0.0)
    burst = Streaming(arrivals=4.0, skew=0.0, burst=10.0, burst_every=20, burst_rounds=5)
    usual, bursts = [
        PoissonArrivals(one, samples=100, devices=3, rounds=200, seed=2) for one in (plain, burst)
    ]
    mean = np.array(
        [[usual.take(t).counts.mean(), bursts.take(t).counts.mean()] for t in range(1, 201)]
    )
    going = mean[:, 1] > 3 * mean[:, 0]
    assert going.mean() == pytest.approx(5 / 20, abs=0.05)
    assert mean[going, 1].mean() == pytest.approx(10 * mean[going, 0].mean(), rel=0.02)
    assert mean[~going, 1].mean() == pytest.approx(mean[:, 0].mean(), rel=0.02)
    lengths = np.diff(np.flatnonzero(np.diff(np.concatenate(([0], going, [0])))))[::2]
    assert set(lengths[:-1].tolist()) == {5}


def test_a_recorded_stream_keeps_its_gaps() -> None:
    shards = (np.array([0, -1, 1, 2]), np.array([3, 4, -1, -1]))
    streams = RecordedArrivals(shards, steps=2)
    first, second = streams.take(1), streams.take(2)
    assert first.counts.tolist() == [[1, 0], [1, 1]]
    assert [index.tolist() for index in first.samples] == [[0], [3, 4]]
    assert second.counts.tolist() == [[1, 1], [0, 0]]
    assert [index.tolist() for index in second.samples] == [[1, 2], []]


def data(kind: str = "softmax") -> StudyData:
    x = np.random.default_rng(0).random((6, 8)).astype(np.float32)
    model: dict[str, object] = {"kind": kind, "features": 8}
    if kind == "mf":
        x = np.stack([np.arange(6) % 3, np.arange(6)], axis=1).astype(np.float32)
        model = {"kind": kind, "features": 2, "users": 3, "items": 6}
    y = np.arange(6, dtype=np.float64)
    return StudyData(name="made", x=x, y=y, test_x=x, test_y=y, model=model)


def after(what: StudyData, *, share: float = 1.0, rounds: int = 30) -> Drift:
    drift = Drift(what, Streaming(drift=share, drift_every=10), rounds=rounds, seed=3)
    for t in range(1, rounds + 1):
        drift.begin(t)
    return drift


def test_columns_change_places_alike_in_training_and_tests() -> None:
    what = data()
    drift = after(what, share=0.5, rounds=15)
    x, y = drift.rows(np.arange(6))
    np.testing.assert_array_equal(y, what.y)
    np.testing.assert_array_equal(np.sort(x, axis=1), np.sort(what.dense_x, axis=1))
    moved = (x != what.dense_x).any(axis=0)
    assert moved.sum() == 4
    np.testing.assert_array_equal(drift.tests(0)[0], x)


def test_films_change_places_and_users_do_not() -> None:
    what = data("mf")
    x, _ = after(what).rows(np.arange(6))
    np.testing.assert_array_equal(x[:, 0], what.dense_x[:, 0])
    assert sorted(x[:, 1].tolist()) == sorted(what.dense_x[:, 1].tolist())
    assert (x[:, 1] != what.dense_x[:, 1]).any()
