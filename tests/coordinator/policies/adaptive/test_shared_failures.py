"""Failures that devices share: told apart by brute force, excused once, charged if they last."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedagent_coordinator.policies.adaptive.shared_failures import (
    _FIRST_SHARES,
    _LEVELS,
    SharedFailures,
)


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
