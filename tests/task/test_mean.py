"""The float64 running mean: equal to the batch, conserving weight, whatever the order."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedagent_task.mean import RunningMean

SHAPES = {"weight": (3, 5), "bias": (5,), "empty": (0, 4), "scalar": ()}


def _arrays() -> st.SearchStrategy[dict[str, np.ndarray]]:
    values = st.floats(-(2.0**100), 2.0**100, width=32)
    return st.fixed_dictionaries(
        {n: hnp.arrays(np.float32, shape, elements=values) for n, shape in SHAPES.items()}
    )


@given(st.lists(st.tuples(_arrays(), st.floats(0.5, 1e6)), min_size=1, max_size=6), st.randoms())
def test_it_equals_the_batch_mean_in_any_order(
    updates: list[tuple[dict[str, np.ndarray], float]], random: object
) -> None:
    base = {name: np.zeros(shape, np.float32) for name, shape in SHAPES.items()}
    shuffled = list(updates)
    random.shuffle(shuffled)  # type: ignore[attr-defined]  # hypothesis gives a random.Random
    total = sum(weight for _, weight in updates)
    mean = RunningMean()
    for delta, weight in shuffled:
        mean.add(delta, weight)
    result = mean.apply(base)
    assert mean.count == len(updates)
    assert mean.weight == pytest.approx(total)
    for name, shape in SHAPES.items():
        batch = sum(w * d[name].astype(np.float64) for d, w in updates) / total
        scale = max(float(np.abs(d[name]).max(initial=0)) for d, _ in updates)
        tiny = float(np.finfo(np.float32).smallest_subnormal)
        assert np.allclose(result[name], batch, rtol=1e-6, atol=1e-7 * scale + tiny)
        assert result[name].dtype == np.float32
        assert result[name].shape == shape


def test_updates_whose_float32_sum_overflows_have_a_finite_mean() -> None:
    mean = RunningMean()
    for _ in range(10):
        mean.add({"w": np.full(4, 1e38, np.float32)}, 1.0)
    assert np.isfinite(mean.apply({"w": np.zeros(4, np.float32)})["w"]).all()


def test_a_large_tensor_is_added_block_by_block_and_exactly() -> None:
    rng = np.random.default_rng(1)
    delta = rng.normal(size=(100_003,)).astype(np.float32)
    mean = RunningMean()
    mean.add({"w": delta}, 7.0)
    assert np.array_equal(mean.apply({"w": np.zeros_like(delta)})["w"], delta)


def test_nothing_added_is_no_mean() -> None:
    with pytest.raises(ZeroDivisionError):
        RunningMean().apply({"w": np.zeros(2, np.float32)})
