"""The exact solver: the optimum, in whole micro-credits, without a word on stdout."""

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize

from fedagent_coordinator.errors import MissingPackageError, PolicyError
from fedagent_coordinator.solvers import AssignmentProblem, create
from fedagent_coordinator.solvers.base import Solution
from fedagent_coordinator.solvers.density import DensitySolver
from fedagent_coordinator.solvers.exact import ExactSolver, repaired
from fedagent_coordinator.solvers.flgreedy import FlgreedySolver

from .instances import assignments, is_feasible, linear_optimum, near_misses, paper_instance

pytest.importorskip("scipy")


@settings(max_examples=150)
@given(assignments())
def test_it_is_the_optimum_and_feasible(problem: AssignmentProblem) -> None:
    solution = ExactSolver().solve(problem)
    pairs = solution.pairs.tolist()
    assert is_feasible(problem, pairs)
    assert pairs == sorted(pairs)
    assert solution.pairs.dtype == np.int64
    assert (problem.value[pairs] > 0).all()
    assert solution.value == pytest.approx(problem.value[pairs].sum())
    assert solution.value == pytest.approx(linear_optimum(problem))
    assert solution.bound == pytest.approx(solution.value)


@settings(max_examples=60)
@given(st.integers(0, 2**32), st.integers(1, 2), st.sampled_from([1, 10**6, 10**11, 10**14]))
def test_one_micro_credit_decides(seed: int, edges: int, scale: int) -> None:
    rng = np.random.default_rng(seed)
    for short in (0, 1):
        problem = near_misses(rng, clients=5, edges=edges, scale=scale, short=short)
        solution = ExactSolver().solve(problem)
        assert is_feasible(problem, solution.pairs.tolist())
        assert solution.value == pytest.approx(linear_optimum(problem))


def test_what_a_presolve_loses_is_found() -> None:
    rng = np.random.default_rng(17966)
    near_misses(rng, clients=5, edges=1, scale=1_000_000, short=0)
    problem = near_misses(rng, clients=5, edges=1, scale=1_000_000, short=1)
    assert ExactSolver().solve(problem).value == pytest.approx(linear_optimum(problem))


def test_what_highs_overspends_is_excluded_and_searched_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A search that ignores budgets, as a tolerance would, is led back by covers."""
    rng = np.random.default_rng(12)
    solver = ExactSolver()
    true_milp, searches = optimize.milp, []
    nothing = Solution(pairs=np.zeros(0, np.int64), value=0.0, bound=0.0)
    monkeypatch.setattr(DensitySolver, "solve", lambda *_: nothing)  # the covers must do it alone

    def tolerant(value: Any, *, constraints: Any, **rest: Any) -> Any:
        searches.append(1)
        upper = constraints.ub * np.where(constraints.ub > 1, 1 + 1e-3, 1.0)
        looser = optimize.LinearConstraint(constraints.A, -np.inf, upper)
        return true_milp(value, constraints=looser, **rest)

    monkeypatch.setattr(optimize, "milp", tolerant)
    for _ in range(20):
        problem = near_misses(rng, clients=6, edges=2)
        solution = solver.solve(problem)
        assert is_feasible(problem, solution.pairs.tolist())
        assert solution.value == pytest.approx(linear_optimum(problem))
        assert solution.bound == pytest.approx(solution.value)
    assert len(searches) > 20


@pytest.mark.parametrize("hindsight", [False, True])
def test_no_other_solver_is_better_and_density_is_near(hindsight: bool) -> None:
    rng = np.random.default_rng(13)
    ratios = []
    for _ in range(40):
        problem = paper_instance(rng)
        if hindsight:
            problem.value[:] = rng.random(len(problem.value)) < 0.4
        best = ExactSolver().solve(problem)
        assert is_feasible(problem, best.pairs.tolist())
        assert best.bound == pytest.approx(best.value)
        density = DensitySolver().solve(problem).value
        assert best.value >= density - 1e-9
        assert best.value >= FlgreedySolver().solve(problem).value - 1e-9
        ratios.append(density / best.value)
    assert np.mean(ratios) >= 0.97


def test_the_time_limit_leaves_density_and_a_bound() -> None:
    problem = paper_instance(np.random.default_rng(14), clients=400, edges=5)
    solution = ExactSolver(time_limit_s=1e-9).solve(problem)
    assert is_feasible(problem, solution.pairs.tolist())
    assert solution.value >= DensitySolver().solve(problem).value
    assert solution.bound is not None
    assert solution.bound > solution.value


def test_a_gap_is_kept_to_and_the_bound_says_so() -> None:
    rng = np.random.default_rng(15)
    for _ in range(10):
        problem = paper_instance(rng)
        best = ExactSolver().solve(problem).value
        loose = ExactSolver(mip_gap=0.3).solve(problem)
        assert is_feasible(problem, loose.pairs.tolist())
        assert loose.bound is not None
        assert loose.value <= best + 1e-9 <= loose.bound + 2e-9
        assert loose.value >= DensitySolver().solve(problem).value
        assert (loose.bound - loose.value) / loose.value <= 0.3 + 1e-6


def test_repair_drops_the_least_dense_until_it_fits() -> None:
    problem = AssignmentProblem(
        value=np.array([3.0, 2.0, 1.0, 1.0]),
        cost=np.array([2, 2, 2, 1], dtype=np.int64),
        client=np.array([0, 1, 2, 3], dtype=np.int32),
        edge=np.array([0, 0, 0, 1], dtype=np.int32),
        budget=np.array([4, 1], dtype=np.int64),
    )
    assert repaired(problem, np.array([0, 1, 2, 3])).tolist() == [0, 1, 3]


def test_empty_and_worthless_instances() -> None:
    none = np.empty(0, dtype=np.int32)
    empty = AssignmentProblem(
        value=np.empty(0),
        cost=np.empty(0, dtype=np.int64),
        client=none,
        edge=none,
        budget=np.array([5], dtype=np.int64),
    )
    solution = ExactSolver().solve(empty)
    assert (solution.pairs.tolist(), solution.value, solution.bound) == ([], 0.0, 0.0)
    worthless = paper_instance(np.random.default_rng(17))
    worthless.value[:] = 0.0
    assert ExactSolver().solve(worthless).pairs.tolist() == []


SCRIPT = """
import numpy as np
from tests.coordinator.solvers.instances import paper_instance
from fedagent_coordinator.solvers.exact import ExactSolver
for seed, clients, edges, budget in ((355, 25, 4, 14), (381, 45, 4, 14), (278, 40, 3, 5)):
    rng = np.random.default_rng(seed)
    ExactSolver().solve(paper_instance(rng, clients=clients, edges=edges, budget=budget))
print("only this")
"""


def test_highs_prints_nothing_on_stdout() -> None:
    """On these instances HiGHS 1.12 prints although `disp` is off."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=600, check=True
    )
    assert done.stdout == "only this\n"


def test_missing_scipy_says_how_to_fix_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy", None)
    monkeypatch.delitem(sys.modules, "fedagent_coordinator.solvers.exact")
    with pytest.raises(MissingPackageError, match=r"needs scipy; .*\[exact\]") as caught:
        create("exact")
    assert isinstance(caught.value, PolicyError)
