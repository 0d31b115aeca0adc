"""Where the edge models are averaged into the global one (ALGORITHMS section 7).

Each edge asks a rent for one aggregation; a placement looks at the live edges whose rent fits
what is left of the run's budget, so it can never overspend. If edges are live but none fits,
training stops cleanly (`exhausted`); if none is live, the coordinator averages for no rent.
"""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from fedagent_coordinator.errors import InvalidViewError
from fedagent_coordinator.policies.base import (
    MAX_MICRO,
    BoolArray,
    FloatArray,
    IntArray,
    State,
    check_columns,
)
from fedagent_coordinator.policies.state import ArrayState
from fedagent_protocol.registry import require

TRANSFER = "edge_transfer_s"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlacementView:
    """One round as a placement policy sees it. Edge indices are run-wide and only grow."""

    round: int  # from 1
    edge_live: npt.NDArray[np.bool_]  # bool[M], the edge answers
    edge_rent: npt.NDArray[np.int64]  # int64[M], micro-credits for aggregating this round
    budget_micro: int  # what is left for rent in the whole run
    edge_transfer_s: npt.NDArray[np.float64] | None = None
    """float64[M], expected seconds to move the models to and from each edge, NaN where unknown."""

    def __post_init__(self) -> None:
        shape = (len(self.edge_live),)
        check_columns(self, np.bool_, shape, "edge_live")
        check_columns(self, np.int64, shape, "edge_rent")
        check_columns(self, np.float64, shape, TRANSFER, optional=True)
        if self.round < 1:
            raise InvalidViewError("round", f"is {self.round}, rounds count from 1")
        if ((self.edge_rent < 0) | (self.edge_rent > MAX_MICRO)).any():
            raise InvalidViewError("edge_rent", f"has a value outside 0..{MAX_MICRO}")

    @property
    def fits(self) -> BoolArray:
        """bool[M], the live edges whose rent what is left still pays."""
        left = min(max(self.budget_micro, -1), MAX_MICRO)
        return np.asarray(self.edge_live & (self.edge_rent <= left), dtype=np.bool_)


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where to aggregate: an edge's index, or None for the coordinator itself.

    `exhausted`: no live edge's rent fits what is left, and the run ends (stopping time).
    """

    edge: int | None = None
    rent_micro: int = 0
    exhausted: bool = False

    def __post_init__(self) -> None:
        if self.rent_micro < 0 or (self.edge is None and self.rent_micro):
            raise InvalidViewError("rent_micro", f"is {self.rent_micro} at edge {self.edge}")
        if self.exhausted and self.edge is not None:
            raise InvalidViewError("exhausted", f"is set, but edge {self.edge} is rented")


@runtime_checkable
class PlacementPolicy(Protocol):
    """Which edge aggregates. Deterministic: all chance comes from `rng`."""

    def choose(self, view: PlacementView, rng: np.random.Generator) -> Placement:
        """Decide one round. Changes no state."""

    def learn(self, placement: Placement, psi: float | None) -> None:
        """Take in the cost `psi` observed at the chosen edge; None if it showed no result.

        To be called once for every placement whose rent was charged, so that what was paid and what
        is left add up to the budget.
        """

    def state(self) -> State:
        """Return a copy of everything learnt."""

    def restore(self, state: State) -> None:
        """Continue from `state` exactly; raise `PolicyError` if it is not one of this policy."""


def rented(view: PlacementView, edge: int) -> Placement:
    """Return the placement at `edge` for the rent it asks."""
    return Placement(edge=edge, rent_micro=int(view.edge_rent[edge]))


def unplaced(view: PlacementView) -> Placement:
    """Return what to do when no edge can be rented: stop, or wait for a live edge."""
    return Placement(exhausted=bool(view.edge_live.any()))


def first_by(view: PlacementView, *keys: FloatArray | IntArray) -> Placement:
    """Rent the edge that fits and comes first by `keys` (major key first), then by index."""
    edges = np.flatnonzero(view.fits)
    if not len(edges):
        return unplaced(view)
    order = np.lexsort([key[edges] for key in reversed(keys)])
    return rented(view, int(edges[order[0]]))


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
        require(self.name, "edge", edge, edge >= 0, "an edge's index")
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
        seconds = view.edge_transfer_s
        if seconds is None:
            raise InvalidViewError(TRANSFER, "is missing")
        known = np.where(np.isnan(seconds), np.inf, seconds)
        return first_by(view, known, view.edge_rent)


class RandomPlacement(StatelessPlacement):
    """Rent an edge drawn uniformly from the live ones whose rent fits."""

    name = "random"

    def choose(self, view: PlacementView, rng: np.random.Generator) -> Placement:
        """Decide one round."""
        edges = np.flatnonzero(view.fits)
        return rented(view, int(rng.choice(edges))) if len(edges) else unplaced(view)
