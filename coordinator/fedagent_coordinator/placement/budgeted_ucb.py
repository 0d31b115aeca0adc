"""`budgeted-ucb`: reward per rent, optimistic (ALGORITHMS section 7; tuned).

Reward g = 1 - psi~; index = min(1, mean g + kappa sqrt(2 ln t / p_e)) / max(r_min, r~_e)
with r~_e the rent that the edge asks now over the greatest one asked by a live edge.
The paper's own index (`budgeted-ucb-paper`) ignores the rent and never leaves its
round-robin; dividing its negative -psi~ by rent would prefer expensive edges.
"""

import math

import numpy as np

from fedagent_coordinator.policies.base import FloatArray, State

from .base import Placement, PlacementView
from .history import EdgeHistory, checked_number, choose_by_index

_NAME = "budgeted-ucb"


class BudgetedUcbPlacement:
    """Rent the edge of greatest optimistic reward per rent.

    Args:
        kappa: Width of the confidence radius; > 0.
        r_min: Least relative rent that the reward is divided by; in (0, 1].
    """

    def __init__(self, *, kappa: float = 0.3, r_min: float = 0.1) -> None:
        self._kappa = checked_number(_NAME, "kappa", kappa)
        self._r_min = checked_number(_NAME, "r_min", r_min, top=1.0)
        self._history = EdgeHistory()

    def choose(self, view: PlacementView, rng: np.random.Generator) -> Placement:
        """Decide one round: first plays, then the edge of greatest index."""
        return choose_by_index(self._history, view, self.index(view), rng)

    def index(self, view: PlacementView) -> FloatArray:
        """Return float64[M], the index of every edge; an unplayed one has reward 1."""
        edges = len(view.edge_live)
        plays = self._history.plays_of(edges)
        radius = np.full(edges, np.inf)
        known = plays > 0
        radius[known] = self._kappa * np.sqrt(2 * math.log(view.round) / plays[known])
        reward = np.minimum(1.0, 1.0 - self._history.scaled_mean(edges) + radius)
        asked = view.edge_rent[view.edge_live]
        greatest = max(int(asked.max(initial=0)), 1)
        return np.asarray(
            reward / np.maximum(self._r_min, view.edge_rent / greatest), dtype=np.float64
        )

    def learn(self, placement: Placement, psi: float | None) -> None:
        """Count the play and its cost.

        Raises:
            InvalidViewError: `psi` is not a number in range.
        """
        self._history.add(placement, psi)

    def state(self) -> State:
        """Return a copy of everything learnt."""
        return self._history.state()

    def restore(self, state: State) -> None:
        """Continue from `state` exactly.

        Raises:
            StateError: The state is another policy's.
        """
        self._history.restore(_NAME, state)
