"""From values of pairs to chosen pairs: P2 of a round, for policies that solve it."""

import numpy as np

from fedagent_coordinator.solvers import Assignment, Solver

from .base import BoolArray, FloatArray, IntArray, RoundView
from .selection import by_chance


def assign(
    view: RoundView,
    value: FloatArray,
    solver: Solver,
    rng: np.random.Generator,
    *,
    wanted: BoolArray | None = None,
    budget: IntArray | None = None,
) -> IntArray:
    """Return the pairs that the solver chooses, int64[S] ascending; ties by chance.

    Args:
        view: The round.
        value: float64[P].
        solver: Of P2.
        rng: Breaks ties.
        wanted: bool[P], the pairs to choose from; those of available clients if not given.
        budget: int64[M], what each edge has left; its whole budget if not given.
    """
    choice = view.eligible if wanted is None else wanted
    problem = Assignment(
        # Without value nothing is ever chosen.
        value=np.where(choice, by_chance(value, rng), 0.0),
        cost=view.pair_price,
        client=view.pair_client,
        edge=view.pair_edge,
        budget=view.edge_budget if budget is None else budget,
    )
    return solver.solve(problem).pairs
