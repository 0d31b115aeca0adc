"""Forecasts of devices: filters over types, failures that are shared, what a restart forgets."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedagent_coordinator.errors import PolicyError
from fedagent_coordinator.policies import Ending, Feedback
from fedagent_coordinator.policies.adaptive.device_filters import DeviceFilters, chance_by_type
from fedagent_coordinator.policies.adaptive.forecasts import EXPERTS, Forecasts
from fedagent_coordinator.policies.adaptive.shared_failures import (
    _FIRST_SHARES,
    _LEVELS,
    SharedFailures,
)
from tests.fakes.rounds import column_view, ended

EVERY = slice(None)


def taught(rounds: int, ending: Ending | None = None) -> Forecasts:
    """Of six clients the first three always fail, by features that say nothing of it."""
    rng, forecasts = np.random.default_rng(1), Forecasts(33.0, 0.01)
    for t in range(1, rounds + 1):
        view = column_view(t, deadline_s=3.0, compute=rng.uniform(2, 4, 6).tolist())
        feedback = ended(view, list(range(6)), x=[i >= 3 for i in range(6)])
        forecasts.learn(feedback if ending is None else with_ending(feedback, ending))
    return forecasts


def with_ending(feedback: Feedback, failed: Ending) -> Feedback:
    ending = np.where(feedback.X, Ending.IN_TIME, failed).astype(np.int8)
    return replace(feedback, ending=ending)


def test_the_history_leads_where_the_context_says_nothing() -> None:
    forecasts = taught(40)
    weights = forecasts.weights
    assert weights["w_context"] < 0.02
    assert sum(weights[f"w_{name}"] for name in EXPERTS) == pytest.approx(1.0)
    view = column_view(41, deadline_s=3.0, compute=[3.0] * 6)
    chances = forecasts.chance(view, EVERY)[0]
    assert chances[:3].max() < 0.1
    assert chances[3:].min() > 0.8
    assert forecasts.never(np.arange(6), 41)[:3].min() > 0.8


@pytest.mark.parametrize("ending", [Ending.DECLINED, Ending.REJECTED, Ending.GONE])
def test_what_is_not_the_links_fault_teaches_the_context_nothing(ending: Ending) -> None:
    view = column_view(9, deadline_s=3.0, compute=[3.0] * 6)
    _, _, late = taught(8, Ending.LATE).chance(view, EVERY)
    told, _, other = taught(8, ending).chance(view, EVERY)
    assert other.min() > late.max()
    assert told[:3].max() < told[3:].min(), "of the device it tells all the same"


def test_a_restarted_device_is_taken_as_a_new_one_at_all_edges() -> None:
    forecasts = taught(40)
    forecasts.forget(np.array([0], dtype=np.int64), 41)
    view = column_view(41, clients=7, deadline_s=3.0, compute=[3.0] * 7)
    chances = forecasts.chance(view, EVERY)[0]
    assert chances[0] == pytest.approx(chances[6]), "as one that was never seen"
    assert chances[1] < 0.5 * chances[0]
    assert forecasts.devices.plays[:2] == pytest.approx([0, 40], abs=3)


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


def test_a_state_of_no_distributions_is_refused() -> None:
    filters = DeviceFilters([0.003])
    learn(filters, 0.5, wins=True, round_=1)
    state = filters.state()
    state["belief"] = 2 * state["belief"]
    with pytest.raises(PolicyError, match="do not sum to 1"):
        DeviceFilters([0.003]).restore(state)
    shared = {**filters.state(), "place": np.ones(9, dtype=np.int64)}
    with pytest.raises(PolicyError, match="share a belief"):
        DeviceFilters([0.003]).restore(shared)


def left(
    edge: list[int], chance: list[float], wins: list[bool], causes: SharedFailures | None = None
) -> list[float]:
    quality = (causes or SharedFailures()).learn(
        np.array(edge, dtype=np.int32),
        np.array(chance),
        np.array(wins, dtype=np.bool_),
        np.zeros(len(edge), dtype=np.bool_),
        3,
    )
    return [float(value) for value in quality]


@given(
    orders=st.lists(
        st.tuples(st.integers(0, 2), st.floats(0.05, 0.95), st.booleans()), min_size=3, max_size=8
    )
)
def test_levels_are_inferred_as_by_enumeration(orders: list[tuple[int, float, bool]]) -> None:
    edges = sorted({edge for edge, _, _ in orders})
    if len(edges) < 2:
        return
    total, expected = 0.0, np.zeros(len(edges))
    for round_, *each in product(range(3), repeat=1 + len(edges)):
        weight = _FIRST_SHARES[round_] * np.prod(_FIRST_SHARES[each])
        levels = _LEVELS[round_] * _LEVELS[each]
        for edge, chance, wins in orders:
            p = chance * levels[edges.index(edge)]
            weight *= p if wins else 1 - p
        total += weight
        expected += weight * levels
    expected /= total
    each_edge, chances, outcomes = map(list, zip(*orders, strict=True))
    found = left(each_edge, chances, outcomes)
    for (edge, _, _), value in zip(orders, found, strict=True):
        assert value == pytest.approx(expected[edges.index(edge)], rel=1e-6)


def test_one_order_alone_has_no_excuse() -> None:
    assert left([1], [0.9], [False]) == [1.0]


def test_a_cause_that_lasts_is_no_excuse() -> None:
    causes = SharedFailures()
    first = left([0] * 5, [0.8] * 5, [False] * 5, causes)
    for _ in range(30):
        last = left([0] * 5, [0.8] * 5, [False] * 5, causes)
    assert first[0] < 0.1
    assert last[0] > 0.8


def test_a_bad_edge_is_expected_to_be_bad_again() -> None:
    causes = SharedFailures()
    for _ in range(40):
        left([0] * 3 + [1] * 3, [0.9] * 6, [False] * 3 + [True] * 3, causes)
    bad, good, unknown = causes.factor(np.array([0, 1, 2], dtype=np.int32), 3)
    assert bad < 0.5 * good
    assert good > 0.9
    assert bad < unknown


def test_a_silent_edge_says_nothing_of_its_devices() -> None:
    causes = SharedFailures()
    quality = causes.learn(
        np.array([0, 0, 1], dtype=np.int32),
        np.full(3, 0.9),
        np.array([False, False, True]),
        np.array([True, True, False]),
        2,
    )
    assert quality.tolist()[:2] == [0.0, 0.0]
    assert quality[2] > 0.9
