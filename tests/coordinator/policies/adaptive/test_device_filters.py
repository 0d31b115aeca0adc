"""Filters over types: the forward algorithm by hand, a pooled prior, common causes, restarts."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedagent_coordinator.errors import StateError
from fedagent_coordinator.policies.adaptive.device_filters import (
    DeviceFilters,
    chance_by_type,
)

KEYS = np.array([3, 8], dtype=np.int64)
ONE = np.array([8], dtype=np.int64)


def learn(
    filters: DeviceFilters, p: float, *, wins: bool, round_: int, quality: float = 1.0
) -> None:
    types = (chance_by_type(np.array([p])),)
    filters.learn(filters.find(ONE, round_), types, np.array([wins]), np.array([quality]))


def believed(filters: DeviceFilters, p: float, round_: int) -> float:
    return float(filters.chance(filters.find(ONE, round_), (chance_by_type(np.array([p])),))[0, 0])


@given(
    plays=st.lists(
        st.tuples(st.booleans(), st.floats(0.05, 0.95), st.integers(1, 30), st.floats(0, 1)),
        min_size=1,
        max_size=12,
    ),
    change=st.sampled_from([0.0, 0.003, 0.05]),
)
def test_beliefs_are_the_forward_algorithm(
    plays: list[tuple[bool, float, int, float]], change: float
) -> None:
    """Ten lines of reference: predict by the chance of a change, weigh by the outcome."""
    filters, round_ = DeviceFilters([change]), 1
    expected = filters.usual()[0]
    for wins, p, gap, quality in plays:
        round_ += gap
        usual = filters.usual()[0]
        for _ in range(gap if len(filters.belief) else 0):
            expected = (1 - change) * expected + change * usual
        if not len(filters.belief):
            expected = usual
        types = chance_by_type(np.array([p]))[:, 0]
        assert believed(filters, p, round_) == pytest.approx(float(types @ expected))
        expected = expected * (types if wins else 1 - quality * types)
        expected = expected / expected.sum()
        learn(filters, p, wins=wins, round_=round_, quality=quality)
    assert filters.belief[0, 0] == pytest.approx(expected)


def test_what_is_expected_of_a_new_device_is_learnt_from_the_others() -> None:
    good, bad = DeviceFilters([0.003]), DeviceFilters([0.003])
    for filters, wins in ((good, True), (bad, False)):
        for key in range(30):
            for round_ in range(1, 9):
                types = (chance_by_type(np.array([0.6])),)
                one = np.array([key + 100], dtype=np.int64)
                filters.learn(filters.find(one, round_), types, np.array([wins]), np.ones(1))
    assert believed(good, 0.6, 9) > 0.75
    assert believed(bad, 0.6, 9) < 0.45


def test_a_forgotten_device_is_a_new_one() -> None:
    filters = DeviceFilters([0.003])
    for round_ in range(1, 6):
        types = (chance_by_type(np.array([0.9, 0.9])),)
        found = filters.find(KEYS, round_)
        filters.learn(found, types, np.array([True, False]), np.ones(2))
    filters.forget(ONE, 6)
    new = chance_by_type(np.array([0.9]))[:, 0]
    assert believed(filters, 0.9, 6) == pytest.approx(float(new @ filters.usual()[0]))


def test_a_state_of_no_distributions_is_refused() -> None:
    filters = DeviceFilters([0.003])
    learn(filters, 0.5, wins=True, round_=1)
    state = filters.state()
    state["belief"] = 2 * state["belief"]
    with pytest.raises(StateError, match="do not sum to 1"):
        DeviceFilters([0.003]).restore(state)
    shared = {**filters.state(), "place": np.ones(9, dtype=np.int64)}
    with pytest.raises(StateError, match="share a belief"):
        DeviceFilters([0.003]).restore(shared)
