"""What is clipped is short; noise is Gaussian, and never the same twice."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedagent_task.privacy.mechanism import KeyStream, add_noise, clipped, gaussian, noised

Update = dict[str, np.ndarray[tuple[int, ...], np.dtype[np.generic]]]
numbers = st.floats(-1e3, 1e3, width=32)


@settings(max_examples=60, deadline=None)
@given(arrays(np.float32, 17, elements=numbers), st.floats(1e-3, 1e3))
def test_a_clipped_update_is_never_longer(values: np.ndarray, clip: float) -> None:
    update: Update = {
        "w": values[:12].reshape(3, 4),
        "b": values[12:],
        "n": np.array([7], np.int64),
    }
    short = clipped(update, clip, dropped={"n"})
    length = math.sqrt(
        sum(float((a.astype(float) ** 2).sum()) for k, a in short.items() if k != "n")
    )
    assert length <= clip * (1 + 1e-6)
    assert short["n"].tolist() == [0]
    if float(np.linalg.norm(values)) < clip * 0.99:
        assert np.array_equal(short["w"], update["w"])


def test_noise_has_the_deviation_and_the_shape_of_a_gaussian() -> None:
    drawn = gaussian(KeyStream(b"k" * 32), 200_000)
    assert drawn.mean() == pytest.approx(0.0, abs=0.01)
    assert drawn.std() == pytest.approx(1.0, abs=0.01)
    for limit, share in ((1.0, 0.6827), (2.0, 0.9545), (3.0, 0.9973)):
        assert float((np.abs(drawn) < limit).mean()) == pytest.approx(share, abs=0.004)
    halves = drawn[:100_000], drawn[100_000:]
    assert abs(float(np.corrcoef(*halves)[0, 1])) < 0.01


def test_noise_is_fresh_each_time_and_on_a_grid() -> None:
    update: Update = {"w": np.zeros(64, np.float32), "n": np.array([3], np.int64)}
    one, other = (noised(update, 2.0, dropped={"n"}) for _ in range(2))
    assert not np.array_equal(one["w"], other["w"])
    assert one["n"].tolist() == [3]
    steps = add_noise(np.full(1000, 0.1), 2.0, KeyStream()) / (2.0 * 2.0**-20)
    assert np.array_equal(steps, np.rint(steps))
