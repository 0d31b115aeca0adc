"""Streams: nothing is lost or invented, and every device replays its own samples."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedagent_testbed.learning.arrivals import PoissonArrivals, RecordedArrivals
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
