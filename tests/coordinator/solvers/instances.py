"""Instances and brute force that the tests of all solvers share."""

from collections.abc import Callable
from itertools import product

import numpy as np
from hypothesis import strategies as st

from fedagent_coordinator.solvers import AssignmentProblem


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
