"""What goes wrong in a round beside slow links: edges that fail, clients that are gone, flips.

Drawn by seed and round, whatever is decided. How an order ends is what its edge would see.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedagent_coordinator.policies.base import Ending, FloatArray
from fedagent_testbed.recipe import TestbedRecipe

from .base import spawned_rng
from .population import Population

_FAILURES = (1 << 20) + 4
_BAD_EDGE = (1 << 20) + 5


@dataclass(frozen=True, slots=True, eq=False)
class Failed:
    """Columns over the pairs of a round."""

    cause: npt.NDArray[np.int8]  # int8[P], the `Ending` of an order now; IN_TIME where it is safe
    safe: FloatArray  # float64[P], probability that nothing fails, by what is known before


class Failures:
    """Draws what fails; None where the recipe has nothing that can."""

    def __init__(self, recipe: TestbedRecipe, seed: int, people: Population) -> None:
        self._recipe, self._seed, self._people = recipe, seed, people
        self.bad_edge = int(spawned_rng(seed, _BAD_EDGE).integers(recipe.world.edges))

    def draw(self) -> Failed | None:
        """Return what fails in the population's round."""
        recipe, people, world = self._recipe, self._people, self._recipe.world
        shares = (world.dying.share, world.bad_edge.fails, world.correlated.chance)
        if not (any(shares) or world.flips.every):
            return None
        place, edge = people.pair_place, people.pair_edge
        rng = spawned_rng(self._seed, _FAILURES, people.round)
        safe = np.ones(len(place))
        cause = np.full(len(place), Ending.IN_TIME, dtype=np.int8)
        lost = self._lost()
        cause[(rng.random(len(lost)) < lost)[place]] = Ending.MISSED
        safe *= 1.0 - lost[place]
        if recipe.world.correlated.chance:
            cause[self._together(rng)] = Ending.MISSED
            safe *= 1.0 - recipe.world.correlated.chance
        dead = people.dead()[place]
        cause[dead], safe[dead] = Ending.GONE, 0.0
        fails = recipe.world.bad_edge.fails
        bad = edge == self.bad_edge
        safe[bad] *= 1.0 - fails
        if rng.random() < fails:
            cause[bad] = Ending.EDGE
        return Failed(cause, safe)

    def _lost(self) -> FloatArray:
        """Return float64[n], the chance that each client's update is lost by itself."""
        flips, people = self._recipe.world.flips, self._people
        if not flips.every:
            return np.zeros(len(people.alive))
        first = people.some("flips", 0.5)
        swapped = (people.round - 1) // flips.every % 2 == 1
        return np.where(first == swapped, flips.loss, 0.0)

    def _together(self, rng: np.random.Generator) -> npt.NDArray[np.bool_]:
        correlated, people = self._recipe.world.correlated, self._people
        if correlated.by == "edge":
            return (rng.random(self._recipe.world.edges) < correlated.chance)[people.pair_edge]
        group = (people.trait("group") * correlated.groups).astype(np.int64)
        return (rng.random(correlated.groups) < correlated.chance)[group][people.pair_place]
