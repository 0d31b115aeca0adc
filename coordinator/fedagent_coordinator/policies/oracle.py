"""`oracle`, `oracle-p`, `fedcs`: baselines with the knowledge that only a testbed has."""

import math

import numpy as np

from fedagent_coordinator.solvers import Solver, assign
from fedagent_coordinator.solvers import create as create_solver
from fedagent_protocol.parameters import require

from .base import TRUTH, FloatArray, RoundView, Selection
from .selection import explained, fill
from .state import StatelessPolicy


class OraclePolicy(StatelessPolicy):
    """Solve P2 with hindsight: X as it will turn out (COCS, baseline 1).

    Args:
        solver: Name of the solver of P2, or a solver.
    """

    name = "oracle"
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

    name = "oracle-p"

    def _value(self, view: RoundView) -> FloatArray:
        return view.known_truth().chance


class FedCsPolicy(StatelessPolicy):
    """Take all clients whose expected exchange time is below the deadline (RBCS-F section 6.1).

    It has no cap: the budgets are its only limit.

    Args:
        deadline_s: The deadline.
    """

    name = "fedcs"
    needs: frozenset[str] = frozenset({TRUTH})

    def __init__(self, *, deadline_s: float = 3.0) -> None:
        known = math.isfinite(deadline_s) and deadline_s > 0
        require(self.name, "deadline_s", deadline_s, known, "> 0")
        self._deadline_s = deadline_s

    def select(self, view: RoundView, rng: np.random.Generator) -> Selection:
        """Decide one round, fastest pair first; the score of a pair is minus its time.

        Raises:
            MissingFeatureError: The true times are unknown in this run.
        """
        tau = view.known_truth().tau_s
        order = np.lexsort((rng.random(len(tau)), tau)).astype(np.int64)
        in_time = order[tau[order] < self._deadline_s]
        return explained(view, fill(view, in_time), -tau)
