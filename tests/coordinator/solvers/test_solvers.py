"""Solvers of the assignment problem: always feasible, and as near the optimum as they promise."""

import ctypes
import sys
from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fedagent_coordinator.errors import InvalidViewError, PolicyError
from fedagent_coordinator.solvers import AssignmentProblem, create, names
from fedagent_coordinator.solvers.base import Solution
from fedagent_coordinator.solvers.density import DensitySolver
from fedagent_coordinator.solvers.flgreedy import (
    UTILITIES,
    FlgreedySolver,
    _by_density,
    named_utility,
    sums_per_edge,
)

pytest.importorskip("scipy.optimize")

from fedagent_coordinator.solvers.exact import ExactSolver, repaired

SOLVERS = ("density", "density:max_visits=0", "density:max_visits=1", "exact", "flgreedy")


def paper_instance(
    rng: np.random.Generator, *, clients: int = 50, edges: int = 3, budget: float = 3.5
) -> AssignmentProblem:
    """COCS's setting (ALGORITHMS section 6): price U[0.5,2] x y U[2,4], all edges seen."""
    cost = (rng.uniform(0.5, 2, clients) * rng.uniform(2, 4, clients) * 1e6).astype(np.int64)
    client = np.repeat(np.arange(clients, dtype=np.int32), edges)
    return AssignmentProblem(
        value=rng.random(clients * edges),
        cost=cost[client],
        client=client,
        edge=np.tile(np.arange(edges, dtype=np.int32), clients),
        budget=np.full(edges, int(budget * 1e6), dtype=np.int64),
    )


def is_feasible(problem: AssignmentProblem, pairs: list[int]) -> bool:
    """Whether budgets hold, in exact integers, and no client is there twice."""
    spent = [0] * len(problem.budget)
    for pair in pairs:
        spent[int(problem.edge[pair])] += int(problem.cost[pair])
    clients = problem.client[pairs].tolist()
    return len(set(clients)) == len(clients) and all(
        s <= int(b) for s, b in zip(spent, problem.budget, strict=True)
    )


@st.composite
def assignments(draw: st.DrawFn) -> AssignmentProblem:
    """Tiny instances: at most 12 pairs, with ties, zero costs and zero budgets."""
    edges = draw(st.integers(1, 3))
    pairs = draw(
        st.lists(st.tuples(st.integers(0, 5), st.integers(0, edges - 1)), max_size=12, unique=True)
    )
    n = len(pairs)
    prices = draw(st.lists(st.integers(0, 6), min_size=6, max_size=6))
    value = draw(st.lists(st.sampled_from([0.0, 0.5, 1.0, 1.5, 2.25]), min_size=n, max_size=n))
    return AssignmentProblem(
        value=np.array(value, dtype=np.float64),
        cost=np.array([prices[c] for c, _ in pairs], dtype=np.int64),
        client=np.array([c for c, _ in pairs], dtype=np.int32),
        edge=np.array([e for _, e in pairs], dtype=np.int32),
        budget=np.array(
            draw(st.lists(st.integers(0, 12), min_size=edges, max_size=edges)), dtype=np.int64
        ),
    )


def linear_optimum(problem: AssignmentProblem) -> float:
    """The largest value over every feasible set."""
    return brute_force_of(problem, lambda rows: float(problem.value[rows].sum()))


def brute_force_of(problem: AssignmentProblem, worth: Callable[[list[int]], float]) -> float:
    """The largest worth over every feasible set of rows."""
    options = [
        [-1, *np.flatnonzero(problem.client == c).tolist()]
        for c in sorted(set(problem.client.tolist()))
    ]
    sets = ([row for row in choice if row >= 0] for choice in product(*options))
    return max(worth(rows) for rows in sets if is_feasible(problem, rows))


def near_misses(
    rng: np.random.Generator, *, clients: int, edges: int, scale: int = 10**6, short: int = 1
) -> AssignmentProblem:
    """Budgets that miss the cost of a most valuable set by `short` micro-credits."""
    price = (rng.uniform(1, 8, clients) * scale).astype(np.int64)
    client = np.repeat(np.arange(clients, dtype=np.int32), edges)
    edge = np.tile(np.arange(edges, dtype=np.int32), clients)
    value = rng.random(clients * edges)
    budget = np.zeros(edges, dtype=np.int64)
    for e in range(edges):
        members = rng.choice(clients, size=min(clients, int(rng.integers(2, 7))), replace=False)
        value[members * edges + e] += 1.0
        budget[e] = price[members].sum() - short
    return AssignmentProblem(
        value=value, cost=price[client], client=client, edge=edge, budget=budget
    )


def of(
    value: list[float], cost: list[int], client: list[int], edge: list[int], budget: list[int]
) -> AssignmentProblem:
    return AssignmentProblem(
        value=np.array(value),
        cost=np.array(cost, dtype=np.int64),
        client=np.array(client, dtype=np.int32),
        edge=np.array(edge, dtype=np.int32),
        budget=np.array(budget, dtype=np.int64),
    )


def solved(solver: str, problem: AssignmentProblem) -> Solution:
    """Return a solution that is what each has to be."""
    solution = create(solver).solve(problem)
    pairs = solution.pairs.tolist()
    assert is_feasible(problem, pairs)
    assert pairs == sorted(pairs)
    assert solution.pairs.dtype == np.int64
    assert (problem.value[pairs] > 0).all()
    return solution


@settings(max_examples=60)
@given(assignments())
def test_every_solution_is_feasible_and_the_exact_one_is_the_optimum(
    problem: AssignmentProblem,
) -> None:
    best = linear_optimum(problem)
    found = {solver: solved(solver, problem) for solver in SOLVERS}
    for solution in found.values():
        assert solution.value == pytest.approx(problem.value[solution.pairs].sum())
        assert solution.value <= best + 1e-9
    assert found["exact"].value == pytest.approx(best) == pytest.approx(found["exact"].bound)
    # Search loses neither to greedy nor to the best single pairs.
    assert found["density"].value >= found["density:max_visits=0"].value
    alone = (problem.value > 0) & (problem.cost <= problem.budget[problem.edge])
    assert found["density"].value >= problem.value[alone].max(initial=0.0)


@pytest.mark.parametrize("hindsight", [False, True])
def test_on_the_papers_setting_all_come_near_the_optimum(hindsight: bool) -> None:
    rng, ratios = np.random.default_rng(13), []
    for _ in range(12):
        problem = paper_instance(rng)
        if hindsight:
            problem.value[:] = rng.random(len(problem.value)) < 0.4
        best = solved("exact", problem)
        assert best.bound == pytest.approx(best.value)
        ratios.append([solved(one, problem).value / best.value for one in SOLVERS])
    search, greedy, _, _, flgreedy = np.mean(ratios, axis=0).tolist()
    assert np.max(ratios) <= 1 + 1e-9
    assert search >= 0.97
    assert flgreedy >= 0.98
    assert greedy < search


# ------------------------------------------------------------------------------ density


def test_a_crossing_makes_room_that_no_exchange_at_one_edge_finds() -> None:
    """Equal values, edges of 3 and 4: {2, 2} and {1, 2} fit, greedy takes {1, 2} and {2}."""
    cost, client = [1, 1, 2, 2, 2, 2, 2, 2], [0, 0, 1, 1, 2, 2, 3, 3]
    problem = of([1.0] * 8, cost, client, [1, 0] * 4, [3, 4])
    assert DensitySolver(max_visits=0).solve(problem).value == 3.0
    assert DensitySolver().solve(problem).value == 4.0 == linear_optimum(problem)


def test_bad_numbers_are_refused() -> None:
    assert names() == ("density", "exact", "flgreedy")
    with pytest.raises(InvalidViewError):
        of([np.nan], [1], [0], [0], [1])


# -------------------------------------------------------------------------------- exact


@settings(max_examples=20)
@given(st.integers(0, 2**32), st.integers(1, 2), st.sampled_from([1, 10**6, 10**11, 10**14]))
@example(17966, 1, 10**6)  # a presolve loses its optimum
def test_one_micro_credit_decides(seed: int, edges: int, scale: int) -> None:
    rng = np.random.default_rng(seed)
    for short in (0, 1):
        problem = near_misses(rng, clients=5, edges=edges, scale=scale, short=short)
        assert solved("exact", problem).value == pytest.approx(linear_optimum(problem))


def test_a_limit_of_time_leaves_a_solution_and_its_bound() -> None:
    large = paper_instance(np.random.default_rng(14), clients=400, edges=5)
    solution = ExactSolver(time_limit_s=1e-9).solve(large)
    assert is_feasible(large, solution.pairs.tolist())
    assert solution.bound is not None
    assert DensitySolver().solve(large).value <= solution.value <= solution.bound + 1e-9


def test_highs_prints_nothing_on_stdout(capfd: pytest.CaptureFixture[str]) -> None:
    """On these instances HiGHS 1.12 prints although `disp` is off."""
    for seed, clients, edges, budget in ((355, 25, 4, 14), (278, 40, 3, 5)):
        rng = np.random.default_rng(seed)
        ExactSolver().solve(paper_instance(rng, clients=clients, edges=edges, budget=budget))
    ctypes.CDLL(None).fflush(None)
    assert capfd.readouterr().out == ""


def test_missing_scipy_says_how_to_fix_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy", None)
    monkeypatch.delitem(sys.modules, "fedagent_coordinator.solvers.exact")
    with pytest.raises(PolicyError, match=r"needs scipy; .*\[exact\]"):
        create("exact")


# ----------------------------------------------------------------------------- flgreedy


def check_guarantee(problem: AssignmentProblem, name: str, epsilon: float) -> None:
    utility = named_utility(name)
    solution = solved(f"flgreedy:utility={name},epsilon={epsilon}", problem)
    assert solution.value == pytest.approx(utility.value(problem, solution.pairs))
    best = brute_force_of(problem, lambda rows: utility.value(problem, np.array(rows, dtype=int)))
    assert solution.value <= best + 1e-9
    assert solution.value >= best / ((1 + epsilon) * (2 + 2 * len(problem.budget))) - 1e-12


@pytest.mark.parametrize("name", sorted(UTILITIES))
@settings(max_examples=40)
@given(problem=assignments(), epsilon=st.sampled_from([0.05, 0.3, 1.0]))
def test_the_guarantee_holds_and_nothing_that_still_fits_is_left_out(
    name: str, problem: AssignmentProblem, epsilon: float
) -> None:
    check_guarantee(problem, name, epsilon)
    found = FlgreedySolver(epsilon=epsilon, utility=name).solve(problem)
    density = DensitySolver().solve(problem).pairs
    assert found.value >= named_utility(name).value(problem, density) - 1e-12
    pairs = found.pairs.tolist()
    wanted = np.flatnonzero(problem.value > 0).tolist()
    assert not [row for row in wanted if row not in pairs and is_feasible(problem, [*pairs, row])]


@pytest.mark.parametrize("name", sorted(UTILITIES))
def test_the_guarantee_holds_where_knapsacks_overflow(name: str) -> None:
    for seed in range(6):
        rng = np.random.default_rng(seed)
        check_guarantee(near_misses(rng, clients=5, edges=2), name, 0.3)
        check_guarantee(paper_instance(rng, clients=6, edges=2), name, 0.3)


@pytest.mark.parametrize("name", sorted(UTILITIES))
@settings(max_examples=40)
@given(problem=assignments(), chosen=st.sets(st.integers(0, 11)))
def test_gains_are_differences_and_only_fall(
    name: str, problem: AssignmentProblem, chosen: set[int]
) -> None:
    utility, count = named_utility(name), len(problem.value)
    pairs = np.array(sorted(c for c in chosen if c < count), dtype=np.int64)
    rows = np.setdiff1d(np.arange(count), pairs)
    edges, values = problem.edge[rows], problem.value[rows]
    gains = utility.gains(sums_per_edge(problem, pairs), edges, values)
    grown = [utility.value(problem, np.append(pairs, row)) for row in rows]
    assert gains == pytest.approx(np.array(grown) - utility.value(problem, pairs), abs=1e-12)
    fewer = utility.gains(sums_per_edge(problem, pairs[:-1]), edges, values)
    assert (gains >= 0).all()
    assert (gains <= fewer + 1e-12).all()


def test_repair_drops_the_least_dense_until_it_fits() -> None:
    problem = of([3.0, 2.0, 1.0, 1.0], [2, 2, 2, 1], [0, 1, 2, 3], [0, 0, 0, 1], [4, 1])
    assert repaired(problem, np.array([0, 1, 2, 3])).tolist() == [0, 1, 3]


def test_the_first_pair_that_overflows_ends_a_guess_and_is_a_candidate_alone() -> None:
    """As the proof wants it: the third pair would still fit, and is not taken."""
    problem = of([10.0, 9.0, 1.0], [6, 6, 1], [0, 1, 2], [0, 0, 0], [10])
    assert FlgreedySolver(epsilon=1.0).solve(problem).pairs.tolist() == [0, 2]  # filled up
    solver, (rows, weight) = FlgreedySolver(epsilon=1.0), _by_density(problem)
    assert solver._candidates(problem, rows, 0.0 * weight) == [[0], [1]]
    assert solver._candidates(problem, rows, 16.0 * weight) == [[0]]
