"""`oracle`, `oracle-p`: what could be had with the knowledge that only a testbed has."""

import numpy as np

from fedagent_coordinator.solvers import Solver
from fedagent_coordinator.solvers import create as create_solver

from .assigning import assign
from .base import TRUTH, FloatArray, RoundView, Selection, StatelessPolicy
from .selection import explained


class OraclePolicy(StatelessPolicy):
    """Solve P2 with hindsight: X as it will turn out (COCS, baseline 1).

    Args:
        solver: Name of the solver of P2, or a solver.
    """

    needs = frozenset({TRUTH})

    def __init__(self, *, solver: str | Solver = "density") -> None:
        self._solver = create_solver(solver) if isinstance(solver, str) else solver

    def select(self, view: RoundView, rng: np.random.Generator) -> Selection:
        """Decide one round; the score of a pair is its value."""
        value = self._value(view)
        return explained(view, assign(view, value, self._solver, rng), value)

    def _value(self, view: RoundView) -> FloatArray:
        return view.known_truth().arrives.astype(np.float64)


class OracleChancePolicy(OraclePolicy):
    """Solve P2 with the exact probability given all that is known before the order."""

    def _value(self, view: RoundView) -> FloatArray:
        return view.known_truth().chance
