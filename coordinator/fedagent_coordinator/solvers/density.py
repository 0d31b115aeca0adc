"""`density`: greedy by value per cost, then bounded local search (ALGORITHMS section 2).

The work of all visits of the search (`local_search`) is bounded, so that large instances stay
near linear: with hundreds of thousands of pairs, when an edge has room for many clients and
the greedy order loses little, there are no visits at all.
"""

import numpy as np

from fedagent_coordinator.policies.base import BoolArray, FloatArray, IntArray
from fedagent_protocol.registry import require

from .base import AssignmentProblem, Solution
from .local_search import LocalSearch

_PAIRS_VISITED = 2_000_000
"""Bound of pairs times visits."""
_WORTH_SORTING = 10
"""Visits below which the search gains less than the order of all pairs costs."""
_SURELY = 1.0 + 1e-9
"""So many times all edges' best pairs is more than they are worth, however sums are rounded."""
_SAMPLED, _FIRST = 64, 64
"""One pair in so many is looked at to tell which one in so many is sorted at first; most
instances are full before the second lot."""


class DensitySolver:
    """Greedy by density; `max_visits` edge visits of local search, 0 for the plain greedy."""

    def __init__(self, *, max_visits: int = 500) -> None:
        require("density", "max_visits", max_visits, max_visits >= 0, ">= 0")
        self._max_visits = max_visits

    def solve(self, problem: AssignmentProblem) -> Solution:
        """Return a feasible solution: at least the greedy one and the best pair per edge."""
        fits = problem.value > 0
        fits &= problem.cost <= problem.budget[problem.edge.astype(np.intp)]
        count = int(np.count_nonzero(fits))
        visits = min(self._max_visits, _PAIRS_VISITED // max(1, count))
        search, rows = LocalSearch(problem), None
        if visits >= min(_WORTH_SORTING, max(1, self._max_visits)):
            rows = np.flatnonzero(fits)
            rows = rows[_falling(_density(problem)[rows])]
            search.fill(rows)
            search.improve(rows, visits)
        else:
            _fill_lazily(search, problem, fits.copy(), 1 + count // _SAMPLED // _FIRST)
        found, total = search, search.total()
        if total < _SURELY * len(problem.budget) * problem.value.max(initial=0.0):
            singles = LocalSearch(problem)
            singles.fill(_best_per_edge(problem, np.flatnonzero(fits) if rows is None else rows))
            if singles.total() > total:
                found, total = singles, singles.total()
        return Solution(pairs=found.pairs(), value=total)


def _density(problem: AssignmentProblem) -> FloatArray:
    return np.asarray(problem.value / np.maximum(problem.cost, 1))


def _fill_lazily(
    search: LocalSearch, problem: AssignmentProblem, waiting: BoolArray, lot: int
) -> None:
    """Do what filling the sorted rows does, without sorting those that cannot fit any more.

    What is taken next is guessed from a sample, in which it is `lot` rows. Ties stay together and
    in order, so that the result is the same.
    """
    density = _density(problem)
    while waiting.any():
        some = density[::_SAMPLED][waiting[::_SAMPLED]]
        least = np.partition(some, -lot)[-lot] if lot < len(some) else 0.0
        rows = search.fitting(np.flatnonzero(waiting & (density >= least)))
        search.fill(rows[_falling(density[rows])])
        waiting &= density < least
        waiting &= problem.cost <= search.most_left()
        lot *= 4


def _best_per_edge(problem: AssignmentProblem, rows: IntArray) -> IntArray:
    best = rows[_falling(problem.value[rows])]
    _, first = np.unique(problem.edge[best], return_index=True)
    leading: IntArray = best[np.sort(first)]
    return leading


def _falling(keys: FloatArray) -> IntArray:
    """Return the stable order of falling keys; without ties the faster sort finds it too."""
    falling = -keys
    order = falling.argsort()
    ranked = falling[order]
    return falling.argsort(kind="stable") if (ranked[1:] == ranked[:-1]).any() else order
