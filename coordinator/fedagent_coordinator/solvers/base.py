"""The assignment problem P2 and what a solver of it is (ALGORITHMS section 2).

Maximise the value of the chosen pairs, where every edge pays the costs of its
pairs from its own budget and every client is chosen at most once.
"""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from fedagent_coordinator.errors import InvalidViewError
from fedagent_coordinator.policies.base import (
    BoolArray,
    FloatArray,
    IndexArray,
    IntArray,
    RoundView,
)
from fedagent_coordinator.policies.selection import by_chance, spent_per_edge


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AssignmentProblem:
    """One instance; rows are pairs, ties are broken by their order.

    Attributes:
        client, edge: int32[P].
    """

    value: FloatArray  # float64[P], finite; a pair with value <= 0 is never chosen
    cost: IntArray  # int64[P], micro-credits, >= 0
    client: IndexArray
    edge: IndexArray
    budget: IntArray  # int64[M], micro-credits

    def __post_init__(self) -> None:
        if {len(self.value), len(self.cost), len(self.client)} != {len(self.edge)}:
            raise InvalidViewError("value", "and the other columns differ in length")
        if not np.isfinite(self.value).all():
            raise InvalidViewError("value", "is not finite")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Solution:
    """Chosen rows, int64[S] ascending, their value, and an upper bound if one is known."""

    pairs: IntArray
    value: float
    bound: float | None = None


@runtime_checkable
class Solver(Protocol):
    """Solves `AssignmentProblem`s; deterministic."""

    def solve(self, problem: AssignmentProblem) -> Solution:
        """Return a feasible solution."""


def assign(
    view: RoundView,
    value: FloatArray,
    solver: Solver,
    rng: np.random.Generator,
    *,
    wanted: BoolArray | None = None,
    after: IntArray | None = None,
) -> IntArray:
    """Return the pairs of a round that the solver chooses, int64[S] ascending; ties by chance.

    Only `wanted` pairs, bool[P], count, else those of available clients; `after` are pairs that are
    chosen already, and leave the others their edges' rest.
    """
    choice, budget = view.eligible if wanted is None else wanted, view.edge_budget
    if after is not None and len(after):
        idle = np.ones(len(view.client_price), dtype=np.bool_)
        idle[view.pair_client[after]] = False
        choice = choice & view.of_client(idle)
        budget = budget - np.asarray(spent_per_edge(view, after), dtype=np.int64)
    problem = AssignmentProblem(
        # Without value nothing is ever chosen.
        value=by_chance(value, rng) * choice,
        cost=view.pair_price,
        client=view.pair_client,
        edge=view.pair_edge,
        budget=budget,
    )
    return solver.solve(problem).pairs
