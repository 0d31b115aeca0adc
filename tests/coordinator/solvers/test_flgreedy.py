"""The threshold greedy: feasible, and never below its guarantee; what its utilities are worth."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedagent_coordinator.policies.base import FloatArray, IntArray, Truth
from fedagent_coordinator.policies.cocs import CocsPolicy
from fedagent_coordinator.run_settings import decision_policies
from fedagent_coordinator.solvers import AssignmentProblem, create
from fedagent_coordinator.solvers.density import DensitySolver
from fedagent_coordinator.solvers.flgreedy import (
    UTILITIES,
    FlgreedySolver,
    Utility,
    _by_density,
    named_utility,
    sums_per_edge,
)
from fedagent_protocol.errors import UnknownNameError
from fedagent_task.recipe.text import parse_recipe
from fedagent_testbed import oracles
from fedagent_testbed.study import load_recipe
from tests.fakes.rounds import column_view

from .instances import assignments, brute_force_of, is_feasible, near_misses, paper_instance


def check_guarantee(problem: AssignmentProblem, name: str, epsilon: float) -> None:
    utility = named_utility(name)
    solution = FlgreedySolver(epsilon=epsilon, utility=name).solve(problem)
    pairs = solution.pairs.tolist()
    assert is_feasible(problem, pairs)
    assert pairs == sorted(pairs)
    assert solution.pairs.dtype == np.int64
    assert (problem.value[pairs] > 0).all()
    assert solution.value == pytest.approx(utility.value(problem, solution.pairs))
    best = brute_force_of(problem, lambda rows: utility.value(problem, np.array(rows, dtype=int)))
    assert solution.value <= best + 1e-9
    assert solution.value >= best / ((1 + epsilon) * (2 + 2 * len(problem.budget))) - 1e-12


@pytest.mark.parametrize("name", sorted(UTILITIES))
@settings(max_examples=150)
@given(problem=assignments(), epsilon=st.sampled_from([0.05, 0.3, 1.0]))
def test_the_guarantee_holds_on_tiny_instances(
    name: str, problem: AssignmentProblem, epsilon: float
) -> None:
    check_guarantee(problem, name, epsilon)


@pytest.mark.parametrize("name", sorted(UTILITIES))
@pytest.mark.parametrize("seed", range(20))
def test_the_guarantee_holds_where_knapsacks_overflow(name: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    check_guarantee(near_misses(rng, clients=5, edges=2), name, 0.3)
    check_guarantee(paper_instance(rng, clients=6, edges=2), name, 0.3)


@settings(max_examples=100)
@given(problem=assignments(), epsilon=st.sampled_from([0.05, 0.3, 1.0]))
@pytest.mark.parametrize("name", sorted(UTILITIES))
def test_nothing_that_still_fits_is_left_out_and_density_is_no_better(
    name: str, problem: AssignmentProblem, epsilon: float
) -> None:
    utility = named_utility(name)
    found = FlgreedySolver(epsilon=epsilon, utility=name).solve(problem)
    density = DensitySolver().solve(problem).pairs
    assert found.value >= utility.value(problem, density) - 1e-12
    pairs = found.pairs.tolist()
    wanted = np.flatnonzero(problem.value > 0).tolist()
    assert not [row for row in wanted if row not in pairs and is_feasible(problem, [*pairs, row])]


@pytest.mark.parametrize("hindsight", [False, True])
def test_the_default_comes_near_the_optimum_on_the_papers_setting(hindsight: bool) -> None:
    pytest.importorskip("scipy")
    rng = np.random.default_rng(2026)
    ratios = []
    for _ in range(40):
        problem = paper_instance(rng)
        if hindsight:
            problem.value[:] = rng.random(len(problem.value)) < 0.4
        best = create("exact").solve(problem).value
        ratios.append(create("flgreedy").solve(problem).value / best)
    assert np.mean(ratios) >= 0.98
    assert min(ratios) >= 0.75


@pytest.mark.parametrize("name", ["sqrt-total", "sqrt-per-edge"])
def test_roots_come_near_their_optimum_by_default(name: str) -> None:
    rng, utility, ratios = np.random.default_rng(3), named_utility(name), []
    for _ in range(40):
        problem = paper_instance(rng, clients=6, edges=2)
        best = brute_force_of(
            problem,
            lambda rows, one=problem: utility.value(one, np.array(rows, dtype=int)),  # type: ignore[misc] # the round's own
        )
        if best > 0:
            ratios.append(create(f"flgreedy:utility={name}").solve(problem).value / best)
    assert len(ratios) > 25
    assert np.mean(ratios) >= 0.98
    assert min(ratios) >= 0.8


def test_the_first_pair_that_overflows_ends_a_guess_and_is_a_candidate_alone() -> None:
    """As the proof wants it: the third pair would still fit, and is not taken."""
    problem = AssignmentProblem(
        value=np.array([10.0, 9.0, 1.0]),
        cost=np.array([6, 6, 1], dtype=np.int64),
        client=np.arange(3, dtype=np.int32),
        edge=np.zeros(3, dtype=np.int32),
        budget=np.array([10], dtype=np.int64),
    )
    assert FlgreedySolver(epsilon=1.0).solve(problem).pairs.tolist() == [0, 2]  # filled up
    solver, (rows, weight) = FlgreedySolver(epsilon=1.0), _by_density(problem)
    assert solver._candidates(problem, rows, 0.0 * weight) == [[0], [1]]
    assert solver._candidates(problem, rows, 16.0 * weight) == [[0]]


def test_a_recipe_reaches_the_roots_by_the_solvers_text() -> None:
    """Everybody is worth a little more at edge 0; what a policy decides differs by the utility."""
    n, solver = 8, "flgreedy:utility=sqrt-per-edge,epsilon=0.1"
    view = column_view(budget=n, edges_seen=2, price=[1] * n, x=[0.0] * 2 * n)
    chance = np.tile([1.0, 0.9], n)
    truth = Truth(arrives=chance > 0, chance=chance, tau_s=chance)
    view = replace(view, truth=truth)
    studied = load_recipe("cocs-decisions", [f"policies.oracle-p.solver={solver}"])
    given = studied.policies["oracle-p"]
    spread = oracles.create("oracle-p", given).select(view, np.random.default_rng(0))
    linear = oracles.create("oracle-p", {"solver": "flgreedy"}).select(
        view, np.random.default_rng(0)
    )
    assert view.pair_edge[linear.pairs].tolist() == [0] * n
    assert np.bincount(view.pair_edge[spread.pairs], minlength=2).min() >= 3
    live = parse_recipe(
        (Path(__file__).parents[3] / "deploy/recipes/demo.toml").read_text(encoding="utf-8"),
        ["policy.name=cocs", "policy.params={}", f"policy.params.solver={solver}"],
    )
    cocs = decision_policies(live).policy
    assert isinstance(cocs, CocsPolicy)
    assert cocs._solver._utility is UTILITIES["sqrt-per-edge"]  # type: ignore[attr-defined] # flgreedy


def test_free_pairs_and_zero_budgets() -> None:
    problem = AssignmentProblem(
        value=np.array([1.0, 2.0, 3.0]),
        cost=np.array([0, 0, 1], dtype=np.int64),
        client=np.array([0, 1, 2], dtype=np.int32),
        edge=np.zeros(3, dtype=np.int32),
        budget=np.array([0], dtype=np.int64),
    )
    assert FlgreedySolver().solve(problem).pairs.tolist() == [0, 1]


def marginals(
    utility: Utility, problem: AssignmentProblem, pairs: IntArray, rows: IntArray
) -> FloatArray:
    """The rise when each of `rows` alone joins `pairs`."""
    sums = sums_per_edge(problem, pairs)
    return utility.gains(sums, problem.edge[rows], problem.value[rows])


@pytest.mark.parametrize("name", sorted(UTILITIES))
@given(problem=assignments(), chosen=st.sets(st.integers(0, 11)))
def test_gains_are_differences_and_only_fall(
    name: str, problem: AssignmentProblem, chosen: set[int]
) -> None:
    utility = named_utility(name)
    count = len(problem.value)
    pairs = np.array(sorted(c for c in chosen if c < count), dtype=np.int64)
    rows = np.setdiff1d(np.arange(count), pairs)
    gains = marginals(utility, problem, pairs, rows)
    base = utility.value(problem, pairs)
    grown = [utility.value(problem, np.append(pairs, row)) for row in rows]
    assert gains == pytest.approx(np.array(grown) - base, abs=1e-12)
    fewer = marginals(utility, problem, pairs[:-1], rows)
    assert (gains >= 0).all()
    assert (gains <= fewer + 1e-12).all()


def test_an_unknown_utility_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="sqrt-total"):
        named_utility("log")
