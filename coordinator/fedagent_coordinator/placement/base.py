"""Where the edge models are averaged into the global one (ALGORITHMS section 7)."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from fedagent_coordinator.policies.base import State


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlacementView:
    """One round as a placement policy sees it.

    Attributes:
        round: From 1.
        edge_live: bool[M], the edge answers.
        edge_rent: int64[M], micro-credits for aggregating this round.
        budget_micro: What is left for rent in the whole run.
    """

    round: int
    edge_live: npt.NDArray[np.bool_]
    edge_rent: npt.NDArray[np.int64]
    budget_micro: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where to aggregate: an edge's index, or None for the coordinator itself."""

    edge: int | None = None
    rent_micro: int = 0


@runtime_checkable
class PlacementPolicy(Protocol):
    """Which edge aggregates. Deterministic: all chance comes from `rng`."""

    def choose(self, view: PlacementView, rng: np.random.Generator) -> Placement:
        """Decide one round. Changes no state."""

    def learn(self, placement: Placement, psi: float | None) -> None:
        """Take in the cost `psi` observed at the chosen edge, if any."""

    def state(self) -> State:
        """Return a copy of everything learnt."""

    def restore(self, state: State) -> None:
        """Continue from `state` exactly.

        Raises:
            StateError: The state is not one of this policy.
        """
