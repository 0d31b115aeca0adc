"""`budgeted-ucb`, `budgeted-ucb-paper`: bandits over edges (BAS; ALGORITHMS section 7).

Ours is reward per rent, optimistic. Reward g = 1 - psi~; index =
min(1, mean g + kappa sqrt(2 ln t / p_e)) / max(r_min, r~_e) with r~_e the rent that the
edge asks now over the greatest one asked by a live edge.

The paper's (Algorithm 3) is -psi~_e + q_e with

    q_e = s (1 + 1/r_min) / (r_min - s),    s = sqrt(2 ln t / p_e)

and +infinity where the denominator is not positive; there, fewest plays come first, in
practice a round-robin. It ignores the rent; dividing its negative -psi~ by rent would prefer
expensive edges. Page: docs/policies/placement.md.
"""

import math
from collections.abc import Iterator

import numpy as np

from fedagent_coordinator.errors import InvalidViewError
from fedagent_coordinator.policies.base import MAX_MICRO, BoolArray, FloatArray, IntArray
from fedagent_coordinator.policies.state import ArrayState, floats, grown, ints
from fedagent_protocol.registry import require

from .base import Placement, PlacementView, rented, unplaced

MAX_PSI = 1e15
"""Largest psi that is believed; sums of it stay finite."""


class EdgeHistory(ArrayState):
    """Plays and costs of every edge chosen so far.

    Sums of psi are raw, because the bounds that scale psi to 0..1 move: the index scales means
    by the bounds of the moment. Paid, in micro-credits: in all, and for edges' first plays.
    """

    plays = ints("edges")
    observed = ints("edges")
    psi_sum = floats("edges", least=0)
    psi_bounds = floats(2, start=np.array([np.inf, -np.inf]), infinite=True)
    paid = ints(2)

    def add(self, placement: Placement, psi: float | None) -> None:
        """Count one play; `InvalidViewError` if psi is not in 0..`MAX_PSI`, and nothing changes."""
        if placement.edge is None:
            return
        if psi is not None and not 0 <= psi <= MAX_PSI:
            raise InvalidViewError("psi", f"is {psi}, not a number in 0..{MAX_PSI:g}")
        edge, rent = placement.edge, placement.rent_micro
        self.grow(edges=edge + 1)
        self.paid = self.paid + np.array([rent, 0 if self.plays[edge] else rent])
        self.plays[edge] += 1
        if psi is not None:
            self.observed[edge] += 1
            self.psi_sum[edge] += psi
            low, high = self.psi_bounds
            self.psi_bounds = np.array([min(low, psi), max(high, psi)])

    def plays_of(self, edges: int) -> IntArray:
        """Return int64[M]; raise `InvalidViewError` if edges were forgotten: indices grow."""
        if edges < len(self.plays):
            raise InvalidViewError("edge_live", f"has {edges} edges, {len(self.plays)} were known")
        return grown(self.plays, edges)

    def scaled_mean(self, edges: int) -> FloatArray:
        """Return psi-tilde, float64[M] in 0..1: each edge's mean psi by the bounds of now.

        A play that showed no psi counts as the worst, 1, so that an edge which takes the
        rent and fails is not tried for ever.
        """
        plays = self.plays_of(edges)
        observed, total = grown(self.observed, edges), grown(self.psi_sum, edges)
        low, high = self.psi_bounds
        cost = (plays - observed).astype(np.float64)
        if high > low:
            cost += (total - observed * low) / (high - low)
        return np.clip(cost / np.maximum(plays, 1), 0.0, 1.0)

    def first_play(self, view: PlacementView, rng: np.random.Generator) -> int | None:
        """Return an edge to play for the first time, or None.

        First plays together stay within a quarter of B (what was paid plus what is left):
        their order is drawn at random, so where they do not all fit a random subset
        starts. Beyond the quarter an unplayed edge is played, the cheapest, only if no
        played one can be rented: the alternative is to stop.
        """
        fits, plays = view.fits, self.plays_of(len(view.edge_live))
        new = fits & (plays == 0)
        quarter = (max(view.budget_micro, 0) + int(self.paid[0])) // 4 - int(self.paid[1])
        early = np.flatnonzero(new & (view.edge_rent <= min(quarter, MAX_MICRO)))
        if len(early):
            return int(rng.choice(early))
        if new.any() and not (fits & (plays > 0)).any():
            return int(np.argmin(np.where(new, view.edge_rent, MAX_MICRO + 1)))
        return None

    def played(self, view: PlacementView) -> BoolArray:
        """Return bool[M]: edges played before that can be rented now."""
        return np.asarray(view.fits & (self.plays_of(len(view.edge_live)) > 0), dtype=np.bool_)

    def problems(self) -> Iterator[str]:
        """Refuse more costs than plays, and bounds that no costs have."""
        if (self.observed > self.plays).any():
            yield "has seen more costs than plays"
        low, high = self.psi_bounds
        if (low, high) != (np.inf, -np.inf) and not 0 <= low <= high <= MAX_PSI:
            yield "has bounds that are none"


def choose_by_index(
    history: EdgeHistory, view: PlacementView, rank: FloatArray, rng: np.random.Generator
) -> Placement:
    """Play an unplayed edge if one is due, else the played edge of greatest `rank`, float64[M].

    Ties go to the lowest edge.
    """
    first = history.first_play(view, rng)
    if first is not None:
        return rented(view, first)
    played = np.flatnonzero(history.played(view))
    if not len(played):
        return unplaced(view)
    return rented(view, int(played[np.argmax(rank[played])]))


class BudgetedUcbPlacement(ArrayState):
    """Rent the edge of greatest optimistic reward per rent.

    `kappa` is the width of the confidence radius, `r_min` the least relative rent, in (0, 1].
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
        """Count the play and its cost."""
        self._history.add(placement, psi)


class _LiteralBonus(ArrayState):
    q = floats("edges", infinite=True)


class BudgetedUcbPaperPlacement(ArrayState):
    """Algorithm 3 of BAS; `r_min` is the lower bound of the rents, each divided by the greatest.

    `literal` is as Algorithm 3 is printed: q starts at 0, only the chosen edge's is refreshed, and
    it may be negative. Its t counts plays after each edge's first.
    """

    name = "budgeted-ucb-paper"
    parts = ("_history", "_bonuses")

    def __init__(self, *, r_min: float = 0.1, literal: bool = False) -> None:
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
        """Count the play and its cost; `literal` refreshes the edge's q."""
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
