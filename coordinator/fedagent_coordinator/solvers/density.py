"""`density`: greedy by value per cost, then bounded local search (ALGORITHMS section 2).

The search visits one edge at a time and makes the best exchange there while the
value rises: one or two pairs leave, one or two come in, from idle clients or away
from other edges (`local_search.py`). Every visit looks at a bounded number of
candidates and the number of visits is bounded, so large instances stay near linear.
"""

import numpy as np

from fedagent_coordinator.errors import ParameterError
from fedagent_coordinator.policies.base import IntArray

from .base import Assignment, Solution
from .local_search import LocalSearch


class DensitySolver:
    """Greedy by density with local search.

    Args:
        max_visits: Edge visits of the search; 0 is the plain greedy.
    """

    def __init__(self, *, max_visits: int = 500) -> None:
        if max_visits < 0:
            raise ParameterError("density", "max_visits", f"is {max_visits}, must be >= 0")
        self._max_visits = max_visits

    def solve(self, problem: Assignment) -> Solution:
        """Return a feasible solution: at least the greedy one and the best pair per edge."""
        fits = (problem.value > 0) & (problem.cost <= problem.budget[problem.edge])
        rows = np.flatnonzero(fits).astype(np.int64)
        density = problem.value[rows] / np.maximum(problem.cost[rows], 1)
        rows = rows[np.argsort(-density, kind="stable")]
        search = LocalSearch(problem, rows)
        search.fill(rows)
        search.improve(self._max_visits)
        singles = LocalSearch(problem, rows)
        singles.fill(_best_per_edge(problem, rows))
        best = max(search, singles, key=LocalSearch.total)
        return Solution(pairs=best.pairs(), value=best.total())


def _best_per_edge(problem: Assignment, rows: IntArray) -> IntArray:
    """Return the most valuable row of each edge, best first."""
    value, edge = problem.value[rows], problem.edge[rows]
    top = np.zeros(len(problem.budget))
    np.maximum.at(top, edge, value)
    best: IntArray = rows[value == top[edge]]
    best = best[np.argsort(-problem.value[best], kind="stable")]
    _, first = np.unique(problem.edge[best], return_index=True)
    leading: IntArray = best[np.sort(first)]
    return leading
