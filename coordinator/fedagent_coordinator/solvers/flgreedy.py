"""`flgreedy`: threshold greedy of Badanidiyuru & Vondrak (ALGORITHMS section 2).

For one matroid (a client trains once) and M knapsacks (the edges' budgets), and any
monotone submodular utility. A density is guessed on a geometric grid; under a guess,
value thresholds fall by 1 + epsilon and every pair is taken whose gain reaches both.
The first pair that overflows its knapsack ends the guess: either it alone or what was
taken before it is the candidate, as the proof says.
The best candidate is worth at least 1 / ((1 + epsilon)(2 + 2M)) of the optimum.

A guess stops with much of the budgets left. Each candidate is therefore filled up by gain
per cost, and what `density` finds is a candidate too: as the utility never falls when a set
grows, the guarantee holds as before.

Utilities are functions of the sum of values at each edge, float64[M]: `linear`, the sum of all
(COCS eq. 8), `sqrt-total`, its root (eq. 19, with the maximiser of `linear`), and `sqrt-per-edge`,
the sum of the edges' roots (ours). The paper's factors 1/M change no maximiser.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedagent_coordinator.policies.base import BoolArray, FloatArray, IntArray
from fedagent_protocol.errors import UnknownNameError
from fedagent_protocol.registry import require

from .base import AssignmentProblem, Solution
from .density import DensitySolver

_BLOCK = 32
_LOT = 256
"""Rows whose gains are computed at a time, of those that are tried and of those that fill up."""
_NONE: IntArray = np.empty(0, dtype=np.int64)

Gains = Callable[[FloatArray, npt.NDArray[np.integer], FloatArray], FloatArray]


@dataclass(frozen=True, slots=True)
class Utility:
    """Worth of a set of pairs, by its sum of values at each edge, float64[M].

    `gains` is float64[R], the rise by each of R pairs alone, given the sums and the pairs' edges
    and values.
    """

    of_sums: Callable[[FloatArray], float]
    gains: Gains

    def value(self, problem: AssignmentProblem, pairs: IntArray) -> float:
        """Return the utility of these rows, int64[S]."""
        return self.of_sums(sums_per_edge(problem, pairs))


def sums_per_edge(problem: AssignmentProblem, pairs: IntArray) -> FloatArray:
    """Return the sum of the values of these rows at each edge, float64[M]."""
    sums = np.zeros(len(problem.budget))
    np.add.at(sums, problem.edge[pairs], problem.value[pairs])
    return sums


def _root_rise(base: FloatArray, value: FloatArray) -> FloatArray:
    """Return sqrt(base + value) - sqrt(base) without cancellation; 0 where value is 0."""
    total = np.sqrt(base + value) + np.sqrt(base)
    rise: FloatArray = np.divide(value, total, out=np.zeros(len(value)), where=total > 0)
    return rise


UTILITIES = {
    "linear": Utility(lambda sums: float(sums.sum()), lambda _sums, _edge, value: value),
    "sqrt-total": Utility(
        lambda sums: float(np.sqrt(sums.sum())),
        lambda sums, _edge, value: _root_rise(np.full(len(value), sums.sum()), value),
    ),
    "sqrt-per-edge": Utility(
        lambda sums: float(np.sqrt(sums).sum()),
        lambda sums, edge, value: _root_rise(sums[edge], value),
    ),
}


def named_utility(name: str) -> Utility:
    """Return the utility of this name, or raise `UnknownNameError`."""
    if name not in UTILITIES:
        raise UnknownNameError("utility", name, sorted(UTILITIES))
    return UTILITIES[name]


class _Chosen:
    """Pairs that are taken one by one, and what each of the others would gain."""

    def __init__(
        self, problem: AssignmentProblem, utility: Utility, rows: IntArray = _NONE
    ) -> None:
        self.problem, self._utility, self.rows = problem, utility, rows.tolist()
        self._sums = sums_per_edge(problem, rows)
        self._left = problem.budget.copy()
        np.subtract.at(self._left, problem.edge[rows], problem.cost[rows])
        self._free = np.ones(int(problem.client.max(initial=0)) + 1, dtype=np.bool_)
        self._free[problem.client[rows]] = False

    def gains(self, rows: IntArray) -> FloatArray:
        """Return float64[R], -1 where the client trains already."""
        edge, value = self.problem.edge[rows], self.problem.value[rows]
        gains = self._utility.gains(self._sums, edge, value)
        return np.where(self._free[self.problem.client[rows]], gains, -1.0)

    def fits(self, rows: IntArray) -> BoolArray:
        """Return bool[R]: client and money are there."""
        paid = self.problem.cost[rows] <= self._left[self.problem.edge[rows]]
        return np.asarray(paid & self._free[self.problem.client[rows]])

    def take(self, row: int) -> None:
        edge = self.problem.edge[row]
        self._sums[edge] += self.problem.value[row]
        self._left[edge] -= self.problem.cost[row]
        self._free[self.problem.client[row]] = False
        self.rows.append(row)


class FlgreedySolver:
    """Threshold greedy; `epsilon` is the ratio of neighbouring thresholds and guesses, minus 1."""

    def __init__(self, *, epsilon: float = 0.3, utility: str | Utility = "linear") -> None:
        require("flgreedy", "epsilon", epsilon, 0.001 <= epsilon <= 1, "in [0.001, 1]")
        self._epsilon = epsilon
        self._utility = named_utility(utility) if isinstance(utility, str) else utility

    def solve(self, problem: AssignmentProblem) -> Solution:
        """Return the best set over all guesses, filled up; its value is that of the utility."""
        rows, weight = _by_density(problem)
        if not len(rows):
            return Solution(pairs=rows, value=0.0)
        alone = _Chosen(problem, self._utility).gains(rows)
        sets = {
            frozenset(one)
            for rho in self._guesses(problem, rows, float(alone.max()))
            for one in self._candidates(problem, rows, rho * weight)
        }
        found = [self._filled(problem, rows, one) for one in sets]
        found.append(DensitySolver().solve(problem).pairs)
        # Sets have no order of their own: of equals the least rows are taken.
        value, best = max(
            ((self._utility.value(problem, pairs), pairs) for pairs in found),
            key=lambda one: (one[0], [-row for row in one[1].tolist()]),
        )
        return Solution(pairs=best, value=value)

    def _guesses(self, problem: AssignmentProblem, rows: IntArray, top: float) -> list[float]:
        """Return the densities to try.

        The optimum lies between `top`, the best single gain, and `top` times the number
        of clients: so does 2 OPT / (2 + 2M), the density that the proof wants.
        """
        edges, clients = (len(np.unique(ends[rows])) for ends in (problem.edge, problem.client))
        count = math.ceil(math.log(clients) / math.log1p(self._epsilon)) + 1
        lowest = 2 * top / (2 + 2 * edges)
        return [lowest * (1 + self._epsilon) ** k for k in range(count)]

    def _candidates(
        self, problem: AssignmentProblem, rows: IntArray, least: FloatArray
    ) -> list[list[int]]:
        """Return what one guess leads to: the set, and the pair that overflowed if one did."""
        chosen = _Chosen(problem, self._utility)
        gains = chosen.gains(rows)
        floor = self._epsilon / len(rows) * float(gains.max())
        threshold = float(gains[gains >= least].max(initial=0.0))
        while threshold >= floor:
            # Gains only fall: what is too thin now is so for good.
            thick = gains >= least
            rows, least, gains = rows[thick], least[thick], gains[thick]
            if not len(rows):
                break
            wanted = np.flatnonzero(gains >= threshold)
            for begin in range(0, len(wanted), _BLOCK):
                block = wanted[begin : begin + _BLOCK]
                while (
                    good := chosen.gains(rows[block]) >= np.maximum(least[block], threshold)
                ).any():
                    block = block[int(np.argmax(good)) :]
                    if not chosen.fits(rows[block[:1]]):
                        return [chosen.rows, rows[block[:1]].tolist()]
                    chosen.take(int(rows[block[0]]))
                    block = block[1:]
            gains = chosen.gains(rows)
            threshold /= 1 + self._epsilon
        return [chosen.rows]

    def _filled(self, problem: AssignmentProblem, rows: IntArray, one: Iterable[int]) -> IntArray:
        """Add what gains most per cost while it fits; return the rows, int64[S] ascending."""
        chosen = _Chosen(problem, self._utility, np.array(sorted(one), dtype=np.int64))
        cost = np.maximum(problem.cost, 1)
        while len(rows := rows[chosen.fits(rows)]):
            density = chosen.gains(rows) / cost[rows]
            order = np.argsort(-density, kind="stable")
            near, least = rows[np.sort(order[:_LOT])], density[order[_LOT:][:1]].max(initial=-1.0)
            while len(near := near[chosen.fits(near)]):
                now = chosen.gains(near) / cost[near]
                if now.max() < least:
                    break
                chosen.take(int(near[np.argmax(now)]))
        return np.sort(np.array(chosen.rows, dtype=np.int64))


def _by_density(problem: AssignmentProblem) -> tuple[IntArray, FloatArray]:
    """Return the rows worth considering, by falling density, and c / B of each one's edge."""
    budget = problem.budget[problem.edge]
    rows = np.flatnonzero((problem.value > 0) & (problem.cost <= budget)).astype(np.int64)
    weight = problem.cost[rows] / np.maximum(budget[rows], 1)
    with np.errstate(divide="ignore", over="ignore"):
        order = np.argsort(-(problem.value[rows] / weight), kind="stable")
    return rows[order], weight[order]
