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

Utilities are functions of the sum of values at each edge, float64[M]; the paper's factors
1/M of eq. (8) and (19) change no maximiser. `sqrt-total` has the maximiser of `linear`.
"""

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedagent_coordinator.policies.base import BoolArray, FloatArray, IndexArray, IntArray
from fedagent_protocol.errors import UnknownNameError
from fedagent_protocol.registry import require

from .base import AssignmentProblem, Solution
from .density import DensitySolver

_NAME = "flgreedy"
_BLOCK = 32
"""How many items are looked at first in the search for the next one."""
_LOT = 512
"""How many items are kept by rank at a time when a set is filled up."""

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
    # The sum of all values, eq. (8).
    "linear": Utility(lambda sums: float(sums.sum()), lambda _sums, _edge, value: value),
    # The root of that, eq. (19).
    "sqrt-total": Utility(
        lambda sums: float(np.sqrt(sums.sum())),
        lambda sums, _edge, value: _root_rise(np.full(len(value), sums.sum()), value),
    ),
    # The sum over edges of the root of the sum there (ours).
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


@dataclass(frozen=True, slots=True, eq=False)
class _Items:
    """Pairs worth considering, by falling density; `weight` is c / B of the pair's edge."""

    row: IntArray
    value: FloatArray
    cost: IntArray
    client: IndexArray
    edge: IndexArray
    weight: FloatArray


class FlgreedySolver:
    """Threshold greedy; `epsilon` is the ratio of neighbouring thresholds and guesses, minus 1."""

    def __init__(self, *, epsilon: float = 0.3, utility: str | Utility = "linear") -> None:
        require(_NAME, "epsilon", epsilon, 0.001 <= epsilon <= 1, "in [0.001, 1]")
        self._epsilon = epsilon
        self._utility = named_utility(utility) if isinstance(utility, str) else utility

    def solve(self, problem: AssignmentProblem) -> Solution:
        """Return the best set over all guesses, filled up; its value is that of the utility."""
        items = _items(problem)
        if not len(items.row):
            return Solution(pairs=items.row, value=0.0)
        alone = self._utility.gains(np.zeros(len(problem.budget)), items.edge, items.value)
        place = {row: i for i, row in enumerate(items.row.tolist())}
        sets = {
            frozenset(place[row] for row in pairs.tolist())
            for rho in self._guesses(items, float(alone.max()))
            for pairs in self._candidates(problem, items, alone, rho)
        }
        found = [self._filled(problem, items, sorted(one)) for one in sets]
        found.append(DensitySolver().solve(problem).pairs)
        # Sets have no order of their own: of equals the least rows are taken.
        value, best = max(
            ((self._utility.value(problem, pairs), pairs) for pairs in found),
            key=lambda one: (one[0], [-row for row in one[1].tolist()]),
        )
        return Solution(pairs=best, value=value)

    def _filled(self, problem: AssignmentProblem, items: _Items, chosen: list[int]) -> IntArray:
        """Add what gains most per cost while it fits; return the rows, int64[S] ascending.

        Gains only fall, so an item whose gain is up to date goes before all others that had less.
        """
        sums = sums_per_edge(problem, items.row[chosen])
        left = problem.budget.copy()
        np.subtract.at(left, items.edge[chosen], items.cost[chosen])
        free = np.ones(int(items.client.max()) + 1, dtype=np.bool_)
        free[items.client[chosen]] = False
        taken, cost = list(chosen), np.maximum(items.cost, 1)
        while True:
            fits = free[items.client] & (items.cost <= left[items.edge])
            rest = np.flatnonzero(fits)
            if not len(rest):
                return np.sort(items.row[taken])
            density = self._gains(sums, items, rest, free) / cost[rest]
            order = np.argsort(-density, kind="stable")
            least = float(density[order[_LOT]]) if len(order) > _LOT else -1.0
            first = order[:_LOT]
            heap = list(zip((-density[first]).tolist(), rest[first].tolist(), strict=True))
            while heap and -heap[0][0] >= least:
                _, i = heapq.heappop(heap)
                if not free[items.client[i]] or items.cost[i] > left[items.edge[i]]:
                    continue
                now = float(self._gains(sums, items, np.array([i]), free)[0] / cost[i])
                if now < least or (heap and -now > heap[0][0]):
                    heapq.heappush(heap, (-now, i))
                    continue
                sums[items.edge[i]] += items.value[i]
                left[items.edge[i]] -= items.cost[i]
                free[items.client[i]] = False
                taken.append(i)

    def _guesses(self, items: _Items, top: float) -> list[float]:
        """Return the densities to try.

        The optimum lies between `top`, the best single gain, and `top` times the number
        of clients: so does 2 OPT / (2 + 2M), the density that the proof wants.
        """
        edges, clients = len(np.unique(items.edge)), len(np.unique(items.client))
        count = math.ceil(math.log(clients) / math.log1p(self._epsilon)) + 1
        lowest = 2 * top / (2 + 2 * edges)
        return [lowest * (1 + self._epsilon) ** k for k in range(count)]

    def _candidates(
        self, problem: AssignmentProblem, items: _Items, alone: FloatArray, rho: float
    ) -> list[IntArray]:
        """Return what one guess leads to: the set, and the pair that overflowed if one did."""
        sums = np.zeros(len(problem.budget))
        left = problem.budget.copy()
        free = np.ones(int(items.client.max()) + 1, dtype=np.bool_)
        taken: list[int] = []
        least = rho * items.weight
        alive = np.flatnonzero(alone >= least)
        threshold = float(alone[alive].max(initial=0.0))
        floor = self._epsilon / len(items.row) * float(alone.max())
        while len(alive) and threshold >= floor:
            gains = self._gains(sums, items, alive, free)
            waiting = alive[gains >= threshold]
            wanted = np.maximum(least[waiting], threshold)
            at = self._next(sums, items, waiting, wanted, free)
            while at < len(waiting):
                i = int(waiting[at])
                edge, cost = int(items.edge[i]), int(items.cost[i])
                if cost > left[edge]:
                    return [items.row[taken], items.row[[i]]]
                left[edge] -= cost
                sums[edge] += items.value[i]
                free[items.client[i]] = False
                taken.append(i)
                waiting, wanted = waiting[at + 1 :], wanted[at + 1 :]
                at = self._next(sums, items, waiting, wanted, free)
            # Gains only fall: what is too thin now is so for good.
            alive = alive[self._gains(sums, items, alive, free) >= least[alive]]
            threshold /= 1 + self._epsilon
        return [items.row[taken]]

    def _gains(
        self, sums: FloatArray, items: _Items, which: IntArray, free: BoolArray
    ) -> FloatArray:
        gains = self._utility.gains(sums, items.edge[which], items.value[which])
        return np.where(free[items.client[which]], gains, -1.0)

    def _next(
        self,
        sums: FloatArray,
        items: _Items,
        waiting: IntArray,
        wanted: FloatArray,
        free: BoolArray,
    ) -> int:
        """Return the position of the first item that gains what is wanted, or their number.

        It is near as a rule: blocks start small and double.
        """
        start, size = 0, _BLOCK
        while start < len(waiting):
            block = slice(start, start + size)
            good = self._gains(sums, items, waiting[block], free) >= wanted[block]
            if good.any():
                return start + int(np.argmax(good))
            start, size = start + size, 2 * size
        return len(waiting)


def _items(problem: AssignmentProblem) -> _Items:
    budget = problem.budget[problem.edge]
    row = np.flatnonzero((problem.value > 0) & (problem.cost <= budget)).astype(np.int64)
    weight = problem.cost[row] / np.maximum(budget[row], 1)
    with np.errstate(divide="ignore", over="ignore"):
        order = np.argsort(-(problem.value[row] / weight), kind="stable")
    row = row[order]
    return _Items(
        row=row,
        value=problem.value[row],
        cost=problem.cost[row],
        client=problem.client[row],
        edge=problem.edge[row],
        weight=weight[order],
    )
