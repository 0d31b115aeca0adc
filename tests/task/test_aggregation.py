"""The edge's rule against a slow one; the running mean: conserving weight, whatever the order."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedagent_task.aggregation import RoundRule, RunningMean

SHAPES = {"weight": (3, 5), "bias": (5,), "empty": (0, 4), "scalar": ()}

# Away from deadline and give-up, which an edge handles a moment late.
moments = st.lists(st.integers(1, 60).map(lambda k: 0.1 * k + 0.05), max_size=8, unique=True)
taus = st.builds(lambda found, never: [*found, *[math.inf] * never], moments, st.integers(0, 2))
rules = st.builds(
    RoundRule,
    st.integers(0, 50).map(lambda k: 0.1 * k + 0.1),
    st.integers(0, 60).map(lambda k: 0.1 * k + 0.1),
    st.integers(1, 5),
)


@given(rule=rules, found=taus)
def test_asked_update_by_update_it_is_the_rule(rule: RoundRule, found: list[float]) -> None:
    """As a live edge asks: in the order of arrival, until the round is over."""
    ordered, joined, known = len(found), set[int](), set[int]()
    for place in np.argsort(found, kind="stable").tolist():
        if rule.is_over(found[place], used=len(joined), ordered=ordered):
            break
        known.add(place)
        if rule.counts(found[place], used=len(joined), ordered=ordered):
            joined.add(place)
    settled = rule.settle(np.array(found, dtype=np.float64))
    enough = len(joined) >= rule.enough(ordered)
    assert set(np.flatnonzero(settled.used).tolist()) == (joined if enough else set())
    assert set(np.flatnonzero(settled.known).tolist()) == known
    last = max((found[i] for i in joined), default=0.0)
    assert rule.deadline_s <= settled.wait_s <= rule.give_up_s
    assert settled.wait_s in (rule.deadline_s, rule.give_up_s, last)


def _arrays() -> st.SearchStrategy[dict[str, np.ndarray]]:
    values = st.floats(-(2.0**100), 2.0**100, width=32)
    return st.fixed_dictionaries(
        {n: hnp.arrays(np.float32, shape, elements=values) for n, shape in SHAPES.items()}
    )


@settings(max_examples=40)
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


def test_a_large_tensor_is_added_block_by_block_and_exactly() -> None:
    rng = np.random.default_rng(1)
    delta = rng.normal(size=(100_003,)).astype(np.float32)
    mean = RunningMean()
    mean.add({"w": delta}, 7.0)
    assert np.array_equal(mean.apply({"w": np.zeros_like(delta)})["w"], delta)
