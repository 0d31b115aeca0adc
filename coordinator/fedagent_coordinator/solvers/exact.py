"""`exact`: the assignment problem as a 0/1 program on HiGHS (ALGORITHMS section 2).

For oracles and tests: a few hundred pairs are proved in well under a second, thousands are
not. HiGHS computes with tolerances and money is exact: what it returns is checked in
integers; a set that overspends an edge is excluded by a cover inequality, which no
feasible set violates, and the search is repeated.
"""

import ctypes
import functools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedagent_coordinator.errors import MissingPackageError
from fedagent_coordinator.policies.base import FloatArray, IntArray
from fedagent_protocol.extras import how_to_add
from fedagent_protocol.registry import require

from .base import AssignmentProblem, Solution
from .density import DensitySolver

_NAME = "exact"
try:  # optional; this module is imported where it is asked for
    from scipy import optimize, sparse
except ImportError as error:
    raise MissingPackageError(_NAME, "scipy", how_to_add("exact")) from error
_SMALL = 64
"""Pairs up to which HiGHS goes without its presolve, which can lose an optimum that is within
a tolerance of overspending."""
_BITS = 10
"""Largest cost of an edge and largest value as HiGHS sees them: 2^10.

HiGHS stops within 1e-6 of the optimum and ignores what is below 1e-9: values down to
1e-9 of the largest one count, costs down to 1e-12 of the largest.
"""
_MAX_CUTS = 20
"""Searches after the first one; one instance in some dozens that provoke it needs one."""
_OPTIMAL = 0


@dataclass(frozen=True, slots=True)
class _Answer:
    """What one search found: rows (or None), whether proved, an upper bound."""

    rows: IntArray | None
    proved: bool
    bound: float


class ExactSolver:
    """Optimal solutions within a time limit; after it the best known.

    All repeated searches together get the first one's `time_limit_s` again. `mip_gap` is the
    relative gap at which a solution is good enough. Deterministic unless the time limit hits.
    """

    def __init__(self, *, time_limit_s: float = 10.0, mip_gap: float = 0.0) -> None:
        require(_NAME, "time_limit_s", time_limit_s, 0 < time_limit_s < math.inf, "> 0")
        require(_NAME, "mip_gap", mip_gap, 0 <= mip_gap < 1, "in [0, 1)")
        self._time_limit_s = float(time_limit_s)
        self._mip_gap = float(mip_gap)
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
        covers: list[tuple[IntArray, int]] = []
        bound = _loose_bound(problem, rows)
        limit = self._time_limit_s
        for _ in range(_MAX_CUTS + 1):
            answer = self._search(problem, rows, covers, limit)
            bound = min(bound, answer.bound)
            broken = _covers(problem, rows, answer.rows)
            if not broken or not answer.proved:
                break
            covers += broken
            limit = self._time_limit_s / _MAX_CUTS
        best = DensitySolver().solve(problem).pairs
        if answer.rows is not None:
            best = max(repaired(problem, answer.rows), best, key=lambda p: _total(problem, p))
        value = _total(problem, best)
        return Solution(pairs=best, value=value, bound=max(value, bound))

    def _search(
        self,
        problem: AssignmentProblem,
        rows: IntArray,
        covers: list[tuple[IntArray, int]],
        limit_s: float,
    ) -> _Answer:
        value, exponent = _scaled(problem.value[rows])
        matrix, upper = self._constraints(problem, rows, covers)
        result = optimize.milp(
            -value,
            integrality=np.ones(len(rows)),
            bounds=optimize.Bounds(0, 1),
            constraints=optimize.LinearConstraint(matrix, -np.inf, upper),
            options={
                "disp": False,
                "time_limit": limit_s,
                "mip_rel_gap": self._mip_gap,
                "presolve": len(rows) > _SMALL,
            },
        )
        dual = result.mip_dual_bound
        return _Answer(
            rows=None if result.x is None else rows[np.asarray(result.x) > 0.5],
            proved=result.status == _OPTIMAL,
            bound=math.inf if dual is None else math.ldexp(-float(dual), -exponent),
        )

    def _constraints(
        self, problem: AssignmentProblem, rows: IntArray, covers: list[tuple[IntArray, int]]
    ) -> tuple[Any, FloatArray]:
        """Return a row per edge, per client and per cover, and their upper limits.

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
        blocks, limits = [spent, once], [np.ldexp((budget // unit).astype(np.float64), shift)]
        limits.append(np.ones(once.shape[0]))
        for members, most in covers:
            ones, zeros = np.ones(len(members)), np.zeros(len(members), dtype=np.int64)
            shape = (1, len(rows))
            blocks.append(sparse.csr_matrix((ones, (zeros, members)), shape=shape))
            limits.append(np.array([float(most)]))
        return sparse.vstack(blocks, format="csr"), np.concatenate(limits)


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


def _covers(
    problem: AssignmentProblem, rows: IntArray, pairs: IntArray | None
) -> list[tuple[IntArray, int]]:
    """Return an extended cover of each overspent edge: positions in `rows`, how many may be in.

    The dearest chosen pairs that overspend together, and every pair at the edge that costs no
    less than the dearest: fewer of them all than the cover has fit.
    """
    found: list[tuple[IntArray, int]] = []
    if pairs is None:
        return found
    for edge in np.unique(problem.edge[pairs]).tolist():
        chosen = pairs[problem.edge[pairs] == edge]
        chosen = chosen[np.argsort(-problem.cost[chosen], kind="stable")]
        over = np.cumsum(problem.cost[chosen]) > problem.budget[edge]
        if over.any():
            most = int(np.argmax(over))
            dear = problem.cost[rows] >= problem.cost[chosen[0]]
            in_cover = np.isin(rows, chosen[: most + 1])
            members = np.flatnonzero(in_cover | (dear & (problem.edge[rows] == edge)))
            found.append((members.astype(np.int64), most))
    return found


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
