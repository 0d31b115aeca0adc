"""`fedcs`: everybody who is expected to make the deadline (FedCS as in RBCS-F section 6.1).

A baseline that knows the true expected times, so it runs in the testbed and in
replay only. It has no cap: the budgets are its only limit.
"""

import math

import numpy as np

from fedagent_coordinator.errors import ParameterError

from .base import TRUTH, RoundView, Selection, StatelessPolicy
from .selection import explained, fill

_NAME = "fedcs"


class FedCsPolicy(StatelessPolicy):
    """Take all clients whose expected exchange time is below the deadline.

    Args:
        deadline_s: The deadline.

    Raises:
        ParameterError: The deadline is not above 0.
    """

    needs: frozenset[str] = frozenset({TRUTH})

    def __init__(self, *, deadline_s: float = 3.0) -> None:
        if not (math.isfinite(deadline_s) and deadline_s > 0):
            raise ParameterError(_NAME, "deadline_s", f"is {deadline_s!r}: must be > 0")
        self._deadline_s = deadline_s

    def select(self, view: RoundView, rng: np.random.Generator) -> Selection:
        """Decide one round, fastest pair first; the score of a pair is minus its time.

        Raises:
            MissingFeatureError: Nobody knows the true times in this run.
        """
        tau = view.known_truth().tau_s
        order = np.lexsort((rng.random(len(tau)), tau)).astype(np.int64)
        in_time = order[tau[order] < self._deadline_s]
        return explained(view, fill(view, in_time), -tau)
