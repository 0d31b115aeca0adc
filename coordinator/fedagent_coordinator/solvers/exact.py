"""`exact`: the assignment problem as a 0/1 program on HiGHS (ALGORITHMS section 2).

For oracles and tests: a few hundred pairs are proved in well under a second, thousands are
not. HiGHS computes with tolerances and money is exact: where what it returns overspends an edge,
the least dense pairs are dropped until it does not.
"""

import ctypes
import functools
import math
from typing import Any

import numpy as np

from fedagent_coordinator.errors import PolicyError
from fedagent_coordinator.policies.base import FloatArray, IntArray
from fedagent_protocol.extras import how_to_add
from fedagent_protocol.registry import require

from .base import AssignmentProblem, Solution
from .density import DensitySolver

_NAME = "exact"
try:  # optional; this module is imported where it is asked for
    from scipy import optimize, sparse
except ImportError as error:
    raise PolicyError(f"{_NAME} needs scipy", how_to_add("exact")) from error
_SMALL = 64
"""Pairs up to which HiGHS goes without its presolve, which can lose an optimum that is within
a tolerance of overspending."""
_BITS = 10
"""Largest cost of an edge and largest value as HiGHS sees them: 2^10.

HiGHS stops within 1e-6 of the optimum and ignores what is below 1e-9: values down to
1e-9 of the largest one count, costs down to 1e-12 of the largest.
"""


class ExactSolver:
    """Optimal solutions within a time limit; after it the best known.

    Deterministic unless the time limit hits.
    """

    def __init__(self, *, time_limit_s: float = 10.0) -> None:
        require(_NAME, "time_limit_s", time_limit_s, 0 < time_limit_s < math.inf, "> 0")
        self._time_limit_s = float(time_limit_s)
        _silence_c_stdout()

    def solve(self, problem: AssignmentProblem) -> Solution:
        """Return the optimum, or the best solution known when the time is over.

        `bound` is at least the optimum up to 1e-9 of the largest value; it is `value`,
        up to rounding, when the solution is proved.
        """
        fits = (problem.value > 0) & (problem.cost <= problem.budget[problem.edge])
        rows = np.flatnonzero(fits).astype(np.int64)
        if not len(rows):
            return Solution(pairs=rows, value=0.0, bound=0.0)
        value, exponent = _scaled(problem.value[rows])
        matrix, upper = self._constraints(problem, rows)
        result = optimize.milp(
            -value,
            integrality=np.ones(len(rows)),
            bounds=optimize.Bounds(0, 1),
            constraints=optimize.LinearConstraint(matrix, -np.inf, upper),
            options={
                "disp": False,
                "time_limit": self._time_limit_s,
                "presolve": len(rows) > _SMALL,
            },
        )
        best, dual = DensitySolver().solve(problem).pairs, result.mip_dual_bound
        if result.x is not None:
            found = repaired(problem, rows[np.asarray(result.x) > 0.5])
            best = max(found, best, key=lambda pairs: _total(problem, pairs))
        bound = _loose_bound(problem, rows)
        if dual is not None:
            bound = min(bound, math.ldexp(-float(dual), -exponent))
        total = _total(problem, best)
        return Solution(pairs=best, value=total, bound=max(total, bound))

    @staticmethod
    def _constraints(problem: AssignmentProblem, rows: IntArray) -> tuple[Any, FloatArray]:
        """Return a row per edge and per client, and their upper limits.

        Powers of two scale without rounding; only whole multiples of an edge's greatest common
        divisor can be spent.
        """
        _, edge = np.unique(problem.edge[rows], return_inverse=True)
        _, client = np.unique(problem.client[rows], return_inverse=True)
        column = np.arange(len(rows))
        budget = np.zeros(int(edge.max()) + 1, dtype=np.int64)
        budget[edge] = problem.budget[problem.edge[rows]]
        unit, largest = np.zeros((2, len(budget)), dtype=np.int64)
        np.gcd.at(unit, edge, problem.cost[rows])
        np.maximum.at(largest, edge, problem.cost[rows])
        unit = np.maximum(unit, 1)
        shift = _BITS - np.frexp((largest // unit).astype(np.float64))[1]
        cost = np.ldexp((problem.cost[rows] // unit[edge]).astype(np.float64), shift[edge])
        spent = sparse.csr_matrix((cost, (edge, column)))
        once = sparse.csr_matrix((np.ones(len(rows)), (client, column)))
        limits = np.ldexp((budget // unit).astype(np.float64), shift)
        both = sparse.vstack([spent, once], format="csr")
        return both, np.concatenate([limits, np.ones(once.shape[0])])


def repaired(problem: AssignmentProblem, pairs: IntArray) -> IntArray:
    """Drop the least dense pairs of overspent edges until all budgets hold; int64[S] ascending."""
    density = problem.value[pairs] / np.maximum(problem.cost[pairs], 1)
    left = problem.budget.tolist()
    busy: set[int] = set()
    kept = []
    for pair in pairs[np.argsort(-density, kind="stable")].tolist():
        edge, client, cost = (
            int(column[pair]) for column in (problem.edge, problem.client, problem.cost)
        )
        if cost <= left[edge] and client not in busy:
            left[edge] -= cost
            busy.add(client)
            kept.append(pair)
    return np.array(sorted(kept), dtype=np.int64)


def _loose_bound(problem: AssignmentProblem, rows: IntArray) -> float:
    """Return an upper bound for when HiGHS has none: every client's best pair, all paid for."""
    best = np.zeros(int(problem.client[rows].max()) + 1)
    np.maximum.at(best, problem.client[rows], problem.value[rows])
    return float(best.sum())


def _scaled(value: FloatArray) -> tuple[FloatArray, int]:
    exponent = _BITS - int(np.frexp(value.max())[1])
    return np.ldexp(value, exponent), exponent


def _total(problem: AssignmentProblem, pairs: IntArray) -> float:
    return float(problem.value[pairs].sum())


@functools.cache
def _silence_c_stdout() -> None:
    """Drop what C code of this process prints to its `stdout` from now on.

    HiGHS 1.12 (scipy 1.17) prints a line from inside its search with a bare `puts`, whatever
    its options say, and our standard output may be JSON lines. Python does not print through
    C's `stdout`, and the GNU C library lets a program assign it; elsewhere nothing is done.
    """
    try:
        libc = ctypes.CDLL(None)
        _ = libc.gnu_get_libc_version  # only there is the variable known to be writable
        stdout = ctypes.c_void_p.in_dll(libc, "stdout")
    except (AttributeError, OSError, TypeError, ValueError):
        return
    libc.fopen.restype = ctypes.c_void_p
    nowhere = libc.fopen(b"/dev/null", b"w")
    if nowhere is not None:
        stdout.value = nowhere
