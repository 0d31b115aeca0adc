"""`min-cost`: the edge of least rent (BAS, baseline minCost)."""

import numpy as np

from .base import Placement, PlacementView, StatelessPlacement, first_by


class MinCostPlacement(StatelessPlacement):
    """Rent the cheapest edge; ties go to the lowest index."""

    def choose(self, view: PlacementView, rng: np.random.Generator) -> Placement:  # noqa: ARG002 - the interface's arguments
        """Decide one round."""
        return first_by(view, view.edge_rent)
