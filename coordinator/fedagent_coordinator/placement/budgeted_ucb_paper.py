"""`budgeted-ucb-paper`: the paper's index for edges (BAS, Algorithm 3; ALGORITHMS section 7).

Index -psi~_e + q_e with

    q_e = s (1 + 1/r_min) / (r_min - s),    s = sqrt(2 ln t / p_e)

and +infinity where the denominator is not positive; there, fewest plays come first. It
stays so for 2 ln t / r_min^2 plays of every edge (1 400 at r_min 0.1 and t 1 000): in
practice the policy is a round-robin. `budgeted-ucb` is what to use instead.
"""

import math

import numpy as np

from fedagent_coordinator.errors import ParameterError, StateError
from fedagent_coordinator.policies.base import FloatArray, State

from .base import Placement, PlacementView
from .history import EdgeHistory, checked_number, choose_by_index

_NAME = "budgeted-ucb-paper"


class BudgetedUcbPaperPlacement:
    """Algorithm 3 of BAS.

    Args:
        r_min: Lower bound of the rents, each divided by the greatest; in (0, 1].
        literal: As Algorithm 3 is printed: q starts at 0, only the chosen edge's is
            refreshed, and it may be negative. Its t counts plays after each edge's first.
    """

    def __init__(self, *, r_min: float = 0.1, literal: bool = False) -> None:
        if not isinstance(literal, bool):
            raise ParameterError(_NAME, "literal", f"is {literal!r}: must be true or false")
        self._r_min = checked_number(_NAME, "r_min", r_min, top=1.0)
        self._literal = literal
        self._history = EdgeHistory()
        self._q = np.zeros(0)

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
        if self._literal:
            q[: len(self._q)] = np.where(plays[: len(self._q)] > 0, self._q, np.inf)
        else:
            known = plays > 0
            s = np.sqrt(2 * math.log(view.round) / plays[known])
            q[known] = np.where(s < self._r_min, self._bonus(s), np.inf)
        return q - self._history.scaled_mean(edges)

    def learn(self, placement: Placement, psi: float | None) -> None:
        """Count the play and its cost; `literal` refreshes the edge's q.

        Raises:
            InvalidViewError: `psi` is not a number in range.
        """
        self._history.add(placement, psi)
        if not self._literal or placement.edge is None:
            return
        plays = self._history.plays
        self._q = np.concatenate((self._q, np.zeros(len(plays) - len(self._q))))
        if plays[placement.edge] > 1:
            t = int(plays.sum() - np.count_nonzero(plays))
            s = np.sqrt(np.array([2 * math.log(t) / plays[placement.edge]]))
            self._q[placement.edge] = self._bonus(s)[0]

    def state(self) -> State:
        """Return a copy of everything learnt."""
        state = self._history.state()
        return {**state, "q": self._q.copy()} if self._literal else state

    def restore(self, state: State) -> None:
        """Continue from `state` exactly.

        Raises:
            StateError: The state is another policy's, or of the other variant.
        """
        rest = dict(state)
        q = rest.pop("q", None) if self._literal else np.zeros(0)
        if q is None or q.dtype != np.float64:
            raise StateError(_NAME, "has no float64 q")
        if self._literal and q.shape != rest.get("plays", q).shape:
            raise StateError(_NAME, "has q of another length than plays")
        if np.isnan(q.astype(np.float64)).any():
            raise StateError(_NAME, "has q that is no number")
        self._history.restore(_NAME, rest)
        self._q = np.array(q, dtype=np.float64)

    def _bonus(self, s: FloatArray) -> FloatArray:
        """Return q of the radii `s`; +inf where the denominator vanishes."""
        gap = self._r_min - s
        bonus = np.full(s.shape, np.inf)
        np.divide(s * (1 + 1 / self._r_min), gap, out=bonus, where=gap != 0)
        return bonus
