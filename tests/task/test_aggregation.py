"""The edge's rule against a slow one; the running mean: conserving weight, whatever the order."""

import math

import numpy as np
import pytest
from hypothesis import given
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
Ended = list[tuple[bool, bool, bool]]
"""In time, used and known of each update."""


def slow(rule: RoundRule, found: list[float]) -> Ended:
    """One after the other, by the words of eq. 6."""
    here, give_up = sorted(found), max(rule.deadline_s, rule.max_wait_s)
    wanted = min(rule.min_updates, len(here))
    in_time = [t for t in here if t <= rule.deadline_s]
    possible = [t for t in here if t <= give_up]
    if len(in_time) >= wanted:
        aggregate, end = in_time, rule.deadline_s
    elif len(possible) >= wanted:
        aggregate, end = possible[:wanted], possible[wanted - 1]
    else:
        aggregate, end = [], give_up
    return [(tau <= rule.deadline_s, tau in aggregate, tau <= end) for tau in found]


def settled(rule: RoundRule, found: list[float]) -> Ended:
    ended = rule.settle(np.array(found, dtype=np.float64))
    return list(zip(ended.in_time.tolist(), ended.used.tolist(), ended.known.tolist(), strict=True))


def one_by_one(rule: RoundRule, found: list[float]) -> tuple[Ended, float]:
    """As a live edge asks: in the order of arrival, until the round is over."""
    ordered, joined, known = len(found), set[int](), set[int]()
    for place in np.argsort(found, kind="stable").tolist():
        tau = found[place]
        if rule.is_over(tau, used=len(joined), ordered=ordered):
            break
        known.add(place)
        if rule.counts(tau, used=len(joined), ordered=ordered):
            joined.add(place)
    enough = len(joined) >= rule.enough(ordered)
    ended = [
        (t <= rule.deadline_s, i in joined and enough, i in known) for i, t in enumerate(found)
    ]
    return ended, max((found[i] for i in joined), default=0.0)


@given(rule=rules, found=taus)
def test_it_is_the_rule(rule: RoundRule, found: list[float]) -> None:
    assert settled(rule, found) == slow(rule, found)


@given(rule=rules, found=taus)
def test_asked_update_by_update_it_is_the_same(rule: RoundRule, found: list[float]) -> None:
    ended, last = one_by_one(rule, found)
    assert ended == settled(rule, found)
    wait = rule.settle(np.array(found)).wait_s
    assert rule.deadline_s <= wait <= rule.give_up_s
    if rule.deadline_s < wait < rule.give_up_s:
        assert wait == last


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
