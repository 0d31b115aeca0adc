"""Instances and brute force that the tests of all solvers share."""

from collections.abc import Callable
from itertools import product

import numpy as np

from fedagent_coordinator.solvers import AssignmentProblem

from .test_density import assignments, is_feasible, paper_instance

__all__ = ["assignments", "brute_force_of", "is_feasible", "near_misses", "paper_instance"]


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
