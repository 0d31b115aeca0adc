"""A fleet that is trained once for all placements: what fixed iterations teach needs no edge.

Which edge aggregates changes what a round costs and when the rent is gone, not what is learnt. So
thirty pairs of ``all`` train six fleets a seed.
"""

import functools

import msgspec

from fedagent_coordinator.policies.base import FloatArray, IntArray
from fedagent_task.recipe.spec import IterationsSpec, PlacementSpec
from fedagent_testbed.recipe import TestbedRecipe

from .fleet import Fleet, FleetRound


class FixedFleet:
    """The rounds of a fleet at a fixed number of iterations, from the first on, as one asks."""

    def __init__(self, fleet: "Trained") -> None:
        self._trained, self._round = fleet, 0
        self.model_bytes = fleet.model_bytes

    def train(self, round_: int, rho: int | IntArray, most: FloatArray | None = None) -> FleetRound:
        """Return a round as `Fleet.train`; rounds are asked for in order, from 1."""
        self._round = round_
        return self._trained.round(round_, rho, most)

    def loss(self) -> float:
        """Return the loss after the last round that was asked for."""
        return self._trained.losses[self._round]


class Trained:
    """A fleet and all of its rounds so far."""

    def __init__(self, recipe: TestbedRecipe, seed: int) -> None:
        self._fleet = Fleet(recipe, seed)
        self.model_bytes = self._fleet.model_bytes
        self.losses = [self._fleet.loss()]
        self._rounds: list[FleetRound] = []

    def round(self, round_: int, rho: int | IntArray, most: FloatArray | None) -> FleetRound:
        """Return a round; the next one is trained."""
        if round_ > len(self._rounds):
            self._rounds.append(self._fleet.train(round_, rho, most))
            self.losses.append(self._fleet.loss())
        return self._rounds[round_ - 1]


def fixed_fleet(recipe: TestbedRecipe, seed: int, iterations: int) -> FixedFleet:
    """Return the fleet of a recipe and seed at a fixed number, trained before as far as it was."""
    return FixedFleet(_trained(_learning(recipe), seed, iterations))


def _learning(recipe: TestbedRecipe) -> bytes:
    """Return a recipe without what only placements and controls go by, as JSON."""
    return msgspec.json.encode(
        msgspec.structs.replace(
            recipe,
            policies={},
            iterations=IterationsSpec(),
            placement=PlacementSpec(),
            world=msgspec.structs.replace(recipe.world, compare=()),
        )
    )


@functools.lru_cache(maxsize=1)
def _trained(recipe: bytes, seed: int, _iterations: int) -> Trained:
    return Trained(msgspec.json.decode(recipe, type=TestbedRecipe), seed)
