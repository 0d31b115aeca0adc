"""`budgeted-ucb`, `budgeted-ucb-paper`: bandits over edges (BAS; ALGORITHMS section 7).

Ours is reward per rent, optimistic. Reward g = 1 - psi~; index =
min(1, mean g + kappa sqrt(2 ln t / p_e)) / max(r_min, r~_e) with r~_e the rent that the
edge asks now over the greatest one asked by a live edge.

The paper's (Algorithm 3) is -psi~_e + q_e with

    q_e = s (1 + 1/r_min) / (r_min - s),    s = sqrt(2 ln t / p_e)

and +infinity where the denominator is not positive; there, fewest plays come first. It
stays so for 2 ln t / r_min^2 plays of every edge (1 400 at r_min 0.1 and t 1 000): in
practice it is a round-robin. It ignores the rent; dividing its negative -psi~ by rent
would prefer expensive edges.
"""

import math

import numpy as np

from fedagent_coordinator.policies.base import FloatArray
from fedagent_coordinator.policies.state import ArrayState, floats
from fedagent_protocol.parameters import require

from .base import Placement, PlacementView
from .history import EdgeHistory, choose_by_index


class BudgetedUcbPlacement(ArrayState):
    """Rent the edge of greatest optimistic reward per rent.

    Args:
        kappa: Width of the confidence radius; > 0.
        r_min: Least relative rent that the reward is divided by; in (0, 1].
    """

    name = "budgeted-ucb"
    parts = ("_history",)

    def __init__(self, *, kappa: float = 0.3, r_min: float = 0.1) -> None:
        require(self.name, "kappa", kappa, 0 < kappa < math.inf, "finite and > 0")
        require(self.name, "r_min", r_min, 0 < r_min <= 1, "in (0, 1]")
        self._kappa, self._r_min = float(kappa), float(r_min)
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


class _LiteralBonus(ArrayState):
    """q of every edge as Algorithm 3 keeps it."""

    q = floats("edges", infinite=True)


class BudgetedUcbPaperPlacement(ArrayState):
    """Algorithm 3 of BAS.

    Args:
        r_min: Lower bound of the rents, each divided by the greatest; in (0, 1].
        literal: As Algorithm 3 is printed: q starts at 0, only the chosen edge's is
            refreshed, and it may be negative. Its t counts plays after each edge's first.
    """

    name = "budgeted-ucb-paper"
    parts = ("_history", "_bonuses")

    def __init__(self, *, r_min: float = 0.1, literal: bool = False) -> None:
        require(self.name, "literal", literal, isinstance(literal, bool), "true or false")
        require(self.name, "r_min", r_min, 0 < r_min <= 1, "in (0, 1]")
        self._r_min = float(r_min)
        self._history = EdgeHistory()
        self._bonuses = _LiteralBonus() if literal else None

    def choose(self, view: PlacementView, rng: np.random.Generator) -> Placement:
        """Decide one round: first plays, then the edge of greatest index."""
        rank = self.index(view)
        unbounded = np.isposinf(rank)
        if (unbounded & self._history.played(view)).any():
            rank = np.where(unbounded, -self._history.plays_of(len(rank)), -np.inf)
        return choose_by_index(self._history, view, rank, rng)

    def index(self, view: PlacementView) -> FloatArray:
        """Return float64[M], -psi~ + q of every edge; +inf where unbounded or unplayed."""
        edges = len(view.edge_live)
        plays = self._history.plays_of(edges)
        q = np.full(edges, np.inf)
        if self._bonuses is not None:
            known = slice(len(self._bonuses.q))
            q[known] = np.where(plays[known] > 0, self._bonuses.q, np.inf)
        else:
            played = plays > 0
            s = np.sqrt(2 * math.log(view.round) / plays[played])
            q[played] = np.where(s < self._r_min, self._bonus(s), np.inf)
        return q - self._history.scaled_mean(edges)

    def learn(self, placement: Placement, psi: float | None) -> None:
        """Count the play and its cost; `literal` refreshes the edge's q.

        Raises:
            InvalidViewError: `psi` is not a number in range.
        """
        self._history.add(placement, psi)
        if self._bonuses is None or placement.edge is None:
            return
        plays = self._history.plays
        self._bonuses.grow(edges=len(plays))
        if plays[placement.edge] > 1:
            t = int(plays.sum() - np.count_nonzero(plays))
            s = np.sqrt(np.array([2 * math.log(t) / plays[placement.edge]]))
            self._bonuses.q[placement.edge] = self._bonus(s)[0]

    def _bonus(self, s: FloatArray) -> FloatArray:
        """Return q of the radii `s`; +inf where the denominator vanishes."""
        gap = self._r_min - s
        bonus = np.full(s.shape, np.inf)
        np.divide(s * (1 + 1 / self._r_min), gap, out=bonus, where=gap != 0)
        return bonus
