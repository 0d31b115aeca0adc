"""`random`: any edge that can be paid (BAS, baseline ran)."""

import numpy as np

from .base import Placement, PlacementView, StatelessPlacement, rented, unplaced


class RandomPlacement(StatelessPlacement):
    """Rent an edge drawn uniformly from the live ones whose rent fits."""

    def choose(self, view: PlacementView, rng: np.random.Generator) -> Placement:
        """Decide one round."""
        edges = np.flatnonzero(view.fits)
        return rented(view, int(rng.choice(edges))) if len(edges) else unplaced(view)
