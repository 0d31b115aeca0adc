"""The density solver: always feasible, near the optimum."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedagent_coordinator.errors import InvalidViewError
from fedagent_coordinator.solvers import AssignmentProblem, names
from fedagent_coordinator.solvers.density import DensitySolver

from .instances import assignments, is_feasible, linear_optimum, paper_instance


@given(assignments(), st.sampled_from([0, 1, 500]))
def test_every_solution_is_feasible_and_no_better_than_the_optimum(
    problem: AssignmentProblem, max_visits: int
) -> None:
    solution = DensitySolver(max_visits=max_visits).solve(problem)
    pairs = solution.pairs.tolist()
    assert is_feasible(problem, pairs)
    assert pairs == sorted(pairs)
    assert solution.value == pytest.approx(problem.value[pairs].sum())
    assert solution.value <= linear_optimum(problem) + 1e-9


@given(assignments())
def test_search_never_loses_to_greedy_or_to_the_best_single_pairs(
    problem: AssignmentProblem,
) -> None:
    solution = DensitySolver().solve(problem)
    assert solution.value >= DensitySolver(max_visits=0).solve(problem).value
    alone = (problem.value > 0) & (problem.cost <= problem.budget[problem.edge])
    assert solution.value >= problem.value[alone].max(initial=0.0)


def test_tiny_instances_of_the_paper_come_near_the_optimum() -> None:
    rng = np.random.default_rng(3)
    problems = [paper_instance(rng, clients=6, edges=2) for _ in range(60)]
    optima = [linear_optimum(p) for p in problems]
    found = [DensitySolver().solve(p).value for p in problems]
    ratios = [ours / best for ours, best in zip(found, optima, strict=True) if best > 0]
    assert len(ratios) > 40
    assert np.mean(ratios) >= 0.97


def test_plain_density_is_worse_than_search_on_the_paper_setting() -> None:
    rng = np.random.default_rng(4)
    problems = [paper_instance(rng) for _ in range(40)]
    search = np.array([DensitySolver().solve(p).value for p in problems])
    greedy = np.array([DensitySolver(max_visits=0).solve(p).value for p in problems])
    assert (search >= greedy).all()
    assert (greedy / search).mean() < 0.975


def test_a_crossing_makes_room_that_no_exchange_at_one_edge_finds() -> None:
    """Equal values, edges of 3 and 4: {2, 2} and {1, 2} fit, greedy takes {1, 2} and {2}."""
    problem = AssignmentProblem(
        value=np.ones(8),
        cost=np.array([1, 1, 2, 2, 2, 2, 2, 2], dtype=np.int64),
        client=np.array([0, 0, 1, 1, 2, 2, 3, 3], dtype=np.int32),
        edge=np.array([1, 0, 1, 0, 1, 0, 1, 0], dtype=np.int32),
        budget=np.array([3, 4], dtype=np.int64),
    )
    assert DensitySolver(max_visits=0).solve(problem).value == 3.0
    assert DensitySolver().solve(problem).value == 4.0 == linear_optimum(problem)


def test_bad_numbers_and_parameters_are_refused() -> None:
    assert names() == ("density", "exact", "flgreedy")
    one = np.zeros(1, dtype=np.int32)
    with pytest.raises(InvalidViewError):
        AssignmentProblem(
            value=np.array([np.nan]),
            cost=np.ones(1, dtype=np.int64),
            client=one,
            edge=one,
            budget=np.ones(1, dtype=np.int64),
        )
