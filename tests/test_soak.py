"""What the soak calls growth, on made-up lives of an hour, a reading a minute."""

import numpy as np
import pytest

from bench.soak import SLOPE_BAR_MB_H, growth

AGE_S = np.arange(300.0, 3900.0, 60.0)
HOURS = AGE_S / 3600
LEAK = 1.2
"""In MB per hour, a little over the bar."""
HEAP = 0.132
"""By so many MB glibc lets its heap grow."""


def memory(seed: int, noise_mb: float) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    return 50.0 + noise_mb * np.random.default_rng(seed).standard_normal(len(AGE_S))


@pytest.mark.parametrize("seed", range(5))
def test_a_leak_is_found_also_in_steps_and_none_is_made_of_one_step(seed: int) -> None:
    quiet = memory(seed, 0.02)
    steps = np.floor(LEAK * HOURS / HEAP) * HEAP
    for leak in (LEAK * HOURS, steps):
        assert growth(AGE_S, 1e6 * (quiet + leak)) > SLOPE_BAR_MB_H
    for at in (10, 30, 50):
        once = 0.53 * (np.arange(len(AGE_S)) >= at)
        assert growth(AGE_S, 1e6 * (quiet + once)) < SLOPE_BAR_MB_H


def test_what_is_given_back_each_minute_hides_no_leak() -> None:
    found = [growth(AGE_S, 1e6 * (memory(seed, 0.25) + 2 * LEAK * HOURS)) for seed in range(20)]
    assert min(found) > SLOPE_BAR_MB_H
    none = [growth(AGE_S, 1e6 * memory(seed, 0.25)) for seed in range(20)]
    assert max(none) < SLOPE_BAR_MB_H
