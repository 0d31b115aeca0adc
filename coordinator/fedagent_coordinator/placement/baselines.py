"""Placements that learn nothing: `coordinator`, and the baselines of BAS.

`fixed` (always the same edge), `min-cost`, `min-trans` and `random`.
"""

import numpy as np

from fedagent_coordinator.policies.state import ArrayState
from fedagent_protocol.registry import require

from .base import Placement, PlacementView, first_by, rented, unplaced


class StatelessPlacement(ArrayState):
    """Base of placements that learn nothing."""

    def learn(self, placement: Placement, psi: float | None) -> None:
        """Learn nothing."""


class CoordinatorPlacement(StatelessPlacement):
    """Aggregate at the coordinator, always, for no rent."""

    name = "coordinator"

    def choose(self, view: PlacementView, rng: np.random.Generator) -> Placement:  # noqa: ARG002 - the interface's arguments
        """Decide one round."""
        return Placement()


class FixedPlacement(StatelessPlacement):
    """Rent one edge in every round.

    While it is away or not seen yet the coordinator averages, for no rent; when its rent
    no longer fits what is left, the run ends, whatever others ask.
    """

    name = "fixed"

    def __init__(self, *, edge: int = 0) -> None:
        known = isinstance(edge, int) and not isinstance(edge, bool) and edge >= 0
        require(self.name, "edge", edge, known, "an edge's index")
        self._edge = edge

    def choose(self, view: PlacementView, rng: np.random.Generator) -> Placement:  # noqa: ARG002 - the interface's arguments
        """Decide one round."""
        if self._edge >= len(view.edge_live) or not view.edge_live[self._edge]:
            return Placement()
        if not view.fits[self._edge]:
            return Placement(exhausted=True)
        return rented(view, self._edge)


class MinCostPlacement(StatelessPlacement):
    """Rent the cheapest edge; ties go to the lowest index."""

    name = "min-cost"

    def choose(self, view: PlacementView, rng: np.random.Generator) -> Placement:  # noqa: ARG002 - the interface's arguments
        """Decide one round."""
        return first_by(view, view.edge_rent)


class MinTransPlacement(StatelessPlacement):
    """Rent the edge of least expected transmission time; needs `edge_transfer_s`.

    Edges of unknown time come last, ties go to the cheaper edge.
    """

    name = "min-trans"

    def choose(self, view: PlacementView, rng: np.random.Generator) -> Placement:  # noqa: ARG002 - the interface's arguments
        """Decide one round."""
        seconds = view.known_transfer()
        known = np.where(np.isnan(seconds), np.inf, seconds)
        return first_by(view, known, view.edge_rent)


class RandomPlacement(StatelessPlacement):
    """Rent an edge drawn uniformly from the live ones whose rent fits."""

    name = "random"

    def choose(self, view: PlacementView, rng: np.random.Generator) -> Placement:
        """Decide one round."""
        edges = np.flatnonzero(view.fits)
        return rented(view, int(rng.choice(edges))) if len(edges) else unplaced(view)
