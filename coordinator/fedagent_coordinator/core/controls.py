"""What is decided of a round besides who trains: how often, and at which edge."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from fedagent_coordinator.placement.base import Placement, PlacementView

HERE = Placement()
"""The coordinator averages, for no rent."""


@dataclass(frozen=True, slots=True, eq=False)
class Controls:
    """What was decided of a round besides who trains.

    Attributes:
        iterations: Local iterations ordered; 0 leaves them to the learner.
        horizon: How many rounds the run may have, as far as the budget goes.
        notes: What iteration control went by, named.
        view: What the placement saw; None in a run that is not placed.
        placement: What it decided.
    """

    iterations: int = 0
    horizon: float = 1.0
    notes: Mapping[str, float] = field(default_factory=dict)
    view: PlacementView | None = None
    placement: Placement = HERE

    @property
    def plain(self) -> bool:
        """Whether there is nothing to keep: a round as it always was."""
        return not self.iterations and not self.notes and self.view is None


PLAIN = Controls()
"""A round that is not placed, with the learner's own iterations."""
