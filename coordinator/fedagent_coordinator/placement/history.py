"""What bandit placements remember of the edges: plays, costs and rents.

Raw sums of psi are kept, because the bounds that scale psi to 0..1 move: the index
scales means by the bounds of the moment (ALGORITHMS section 7).
"""

from collections.abc import Iterator

import numpy as np

from fedagent_coordinator.errors import InvalidViewError
from fedagent_coordinator.policies.base import MAX_MICRO, BoolArray, FloatArray, IntArray
from fedagent_coordinator.policies.state import ArrayState, floats, grown, ints

from .base import Placement, PlacementView, rented, unplaced

MAX_PSI = 1e15
"""Largest psi that is believed; sums of it stay finite."""


class EdgeHistory(ArrayState):
    """Plays and costs of every edge chosen so far.

    Attributes:
        plays: int64[E], how often each edge was rented; edges from E on never were.
        observed: int64[E], how many of these plays showed their psi.
        psi_sum: float64[E], sum of the psi shown.
        psi_bounds: float64[2], least and greatest psi ever shown.
        paid: int64[2], micro-credits paid so far: in all, and for edges' first plays.
    """

    plays = ints("edges")
    observed = ints("edges")
    psi_sum = floats("edges", least=0)
    psi_bounds = floats(2, start=np.array([np.inf, -np.inf]), infinite=True)
    paid = ints(2)

    def add(self, placement: Placement, psi: float | None) -> None:
        """Count one play; a placement without an edge counts nothing.

        Raises:
            InvalidViewError: `psi` is not a number from 0 to `MAX_PSI`; nothing changed.
        """
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
        """Return int64[M], the plays of the first M edges.

        Raises:
            InvalidViewError: Edges were forgotten; their indices only grow.
        """
        if edges < len(self.plays):
            raise InvalidViewError("edge_live", f"has {edges} edges, {len(self.plays)} were known")
        return grown(self.plays, edges)

    def scaled_mean(self, edges: int) -> FloatArray:
        """Return psi-tilde, float64[M] in 0..1: each edge's mean psi by the bounds of now.

        A play that showed no psi counts as the worst, 1, so that an edge which takes the
        rent and fails is not tried for ever. An edge never played has 0.
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
    """Play an unplayed edge if one is due, else the played edge of greatest `rank`.

    Args:
        history: What is known of the edges.
        view: The round.
        rank: float64[M], the index of each edge; ties go to the lowest edge.
        rng: The round's chance.
    """
    first = history.first_play(view, rng)
    if first is not None:
        return rented(view, first)
    played = np.flatnonzero(history.played(view))
    if not len(played):
        return unplaced(view)
    return rented(view, int(played[np.argmax(rank[played])]))
