"""P4 solved exactly: as good as trying every set, and fair among equals."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedagent_coordinator.policies.rbcs_f import fair_set

Column = list[float]

whole = st.integers(0, 6).map(float)
fine = st.floats(0, 50, allow_nan=False)
clients = st.one_of(
    st.lists(st.tuples(whole, whole), min_size=1, max_size=12),
    st.lists(st.tuples(fine, fine), min_size=1, max_size=12),
)


def objective(tau: Column, queue: Column, v: float, members: list[int]) -> float:
    return v * max(tau[i] for i in members) - sum(queue[i] for i in members)


@given(clients, st.data(), st.sampled_from([0.0, 0.3, 1.0, 3.0, 100.0]), st.integers(0, 99))
def test_the_objective_equals_brute_force(
    columns: list[tuple[float, float]], data: st.DataObject, v: float, seed: int
) -> None:
    tau, queue = [c[0] for c in columns], [c[1] for c in columns]
    k = data.draw(st.integers(1, len(tau)))
    members = fair_set(np.array(tau), np.array(queue), k, v, np.random.default_rng(seed)).tolist()
    assert len(set(members)) == k == len(members)
    best = min(objective(tau, queue, v, list(s)) for s in combinations(range(len(tau)), k))
    assert objective(tau, queue, v, members) == pytest.approx(best, rel=1e-9, abs=1e-9)


def test_equals_are_chosen_by_the_seed_and_not_by_their_index() -> None:
    plays = np.zeros(20)
    for seed in range(400):
        plays[fair_set(np.zeros(20), np.zeros(20), 5, 20.0, np.random.default_rng(seed))] += 1
    assert plays.min() > 60
    assert plays.max() < 140
    draws = [
        fair_set(np.zeros(20), np.zeros(20), 5, 20.0, np.random.default_rng(3)).tolist()
        for _ in range(2)
    ]
    assert draws[0] == draws[1]


def test_of_equal_queues_the_faster_client_is_taken() -> None:
    tau, queue = np.array([3.0, 1.0, 2.0, 9.0]), np.array([1.0, 1.0, 1.0, 100.0])
    for seed in range(10):
        members = fair_set(tau, queue, 2, 1.0, np.random.default_rng(seed))
        assert sorted(members.tolist()) == [1, 3]
