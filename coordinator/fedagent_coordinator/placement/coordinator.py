"""`coordinator`: the coordinator averages the edge models itself, for no rent."""

import numpy as np

from fedagent_coordinator.errors import StateError
from fedagent_coordinator.policies.base import State

from .base import Placement, PlacementView


class CoordinatorPlacement:
    """Aggregate at the coordinator, always."""

    def choose(self, view: PlacementView, rng: np.random.Generator) -> Placement:  # noqa: ARG002 - the interface's arguments
        """Decide one round."""
        return Placement()

    def learn(self, placement: Placement, psi: float | None) -> None:
        """Learn nothing."""

    def state(self) -> State:
        """Return the empty state."""
        return {}

    def restore(self, state: State) -> None:
        """Accept the empty state only.

        Raises:
            StateError: The state is another policy's.
        """
        if state:
            raise StateError("coordinator", f"has nothing to keep, got {sorted(state)}")
