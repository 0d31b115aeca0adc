"""`fixed`: always the same edge (BAS, baseline)."""

import numpy as np

from fedagent_coordinator.errors import ParameterError

from .base import Placement, PlacementView, StatelessPlacement, rented


class FixedPlacement(StatelessPlacement):
    """Rent one edge in every round.

    While it is away or not seen yet the coordinator averages, for no rent; when its rent
    no longer fits what is left, the run ends, whatever others ask.

    Args:
        edge: Its index.
    """

    def __init__(self, *, edge: int = 0) -> None:
        if isinstance(edge, bool) or not isinstance(edge, int) or edge < 0:
            raise ParameterError("fixed", "edge", f"is {edge!r}: must be an edge's index")
        self._edge = edge

    def choose(self, view: PlacementView, rng: np.random.Generator) -> Placement:  # noqa: ARG002 - the interface's arguments
        """Decide one round."""
        if self._edge >= len(view.edge_live) or not view.edge_live[self._edge]:
            return Placement()
        if not view.fits[self._edge]:
            return Placement(exhausted=True)
        return rented(view, self._edge)
