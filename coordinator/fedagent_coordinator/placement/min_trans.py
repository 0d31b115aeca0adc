"""`min-trans`: the edge that the models reach soonest (BAS, baseline minTrans)."""

import numpy as np

from .base import Placement, PlacementView, StatelessPlacement, first_by


class MinTransPlacement(StatelessPlacement):
    """Rent the edge of least expected transmission time; needs `edge_transfer_s`."""

    def choose(self, view: PlacementView, rng: np.random.Generator) -> Placement:  # noqa: ARG002 - the interface's arguments
        """Decide one round; edges of unknown time come last, ties go to the cheaper edge.

        Raises:
            MissingFeatureError: Nobody estimates transmission times in this run.
        """
        seconds = view.known_transfer()
        known = np.where(np.isnan(seconds), np.inf, seconds)
        return first_by(view, known, view.edge_rent)
