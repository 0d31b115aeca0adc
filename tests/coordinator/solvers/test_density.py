"""The density solver: always feasible, near the optimum, fast on large instances."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedagent_coordinator.errors import InvalidViewError
from fedagent_coordinator.solvers import AssignmentProblem, names
from fedagent_coordinator.solvers.density import DensitySolver
from fedagent_coordinator.solvers.local_search import best_two


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


def brute_force(problem: AssignmentProblem) -> float:
    """The optimum over every way to give each client one of its pairs or none."""
    options = [
        [-1, *np.flatnonzero(problem.client == c).tolist()]
        for c in sorted(set(problem.client.tolist()))
    ]
    best = 0.0
    for choice in product(*options):
        pairs = [pair for pair in choice if pair >= 0]
        if is_feasible(problem, pairs):
            best = max(best, float(problem.value[pairs].sum()))
    return best


@st.composite
def assignments(draw: st.DrawFn) -> AssignmentProblem:
    """Tiny instances: at most 12 pairs, with ties, zero costs and zero budgets."""
    edges = draw(st.integers(1, 3))
    pairs = draw(
        st.lists(
            st.tuples(st.integers(0, 5), st.integers(0, edges - 1)),
            max_size=12,
            unique=True,
        )
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


@given(assignments(), st.sampled_from([0, 1, 500]))
def test_every_solution_is_feasible_and_no_better_than_the_optimum(
    problem: AssignmentProblem, max_visits: int
) -> None:
    solution = DensitySolver(max_visits=max_visits).solve(problem)
    pairs = solution.pairs.tolist()
    assert is_feasible(problem, pairs)
    assert pairs == sorted(pairs)
    assert solution.value == pytest.approx(problem.value[pairs].sum())
    assert solution.value <= brute_force(problem) + 1e-9


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
    optima = [brute_force(p) for p in problems]
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


@pytest.mark.parametrize("values", ["uniform", "hindsight"])
def test_against_an_exact_solver_on_the_paper_setting(values: str) -> None:
    optimize = pytest.importorskip("scipy.optimize")
    sparse = pytest.importorskip("scipy.sparse")
    rng = np.random.default_rng(5)
    ratios = []
    for _ in range(40):
        p = paper_instance(rng)
        if values == "hindsight":
            p.value[:] = rng.random(len(p.value)) < 0.4
        rows = np.arange(len(p.value))
        capacity = sparse.csr_matrix((p.cost / 1e6, (p.edge, rows)))
        once = sparse.csr_matrix((np.ones(len(rows)), (p.client, rows)))
        limits = np.concatenate((p.budget / 1e6, np.ones(once.shape[0])))
        exact = optimize.milp(
            -p.value,
            constraints=optimize.LinearConstraint(sparse.vstack([capacity, once]), -np.inf, limits),
            integrality=np.ones(len(rows)),
            bounds=optimize.Bounds(0, 1),
        )
        ratios.append(DensitySolver().solve(p).value / -exact.fun)
    assert np.mean(ratios) >= 0.97


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
    assert DensitySolver().solve(problem).value == 4.0 == brute_force(problem)


def test_best_two_finds_the_best_that_fit_together() -> None:
    cost = np.array([1, 2, 3, 5], dtype=np.int64)
    net = np.array([1.0, 5.0, 4.0, 7.0])
    assert best_two(cost, net, 0) == (0.0, ())
    assert best_two(cost, net, 2) == (5.0, (1,))
    assert best_two(cost, net, 5) == (9.0, (2, 1))
    assert best_two(cost, net, 7) == (12.0, (3, 1))


@given(
    st.lists(st.tuples(st.integers(0, 9), st.floats(0.1, 9)), min_size=1, max_size=8),
    st.integers(0, 20),
)
def test_best_two_equals_brute_force(items: list[tuple[int, float]], room: int) -> None:
    items.sort(key=lambda item: item[0])
    cost = np.array([c for c, _ in items], dtype=np.int64)
    net = np.array([v for _, v in items])
    singles = [v for c, v in items if c <= room]
    doubles = [a[1] + b[1] for i, a in enumerate(items) for b in items[:i] if a[0] + b[0] <= room]
    assert best_two(cost, net, room)[0] == pytest.approx(max([0.0, *singles, *doubles]))


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
