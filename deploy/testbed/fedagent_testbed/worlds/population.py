"""Who lives in a world of pairs: prices, edges, churn, what is peculiar about some clients.

And what goes wrong there beside slow links: edges that fail, clients that are gone, flips. It is
drawn by seed and round, whatever is decided. How an order ends is what its edge would see.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedagent_coordinator.policies.base import BoolArray, Ending, FloatArray, IndexArray, IntArray
from fedagent_task.recipe.spec import MICRO
from fedagent_testbed.recipe import TestbedRecipe

from .base import spawned_rng

HALF = 0.5
"""Share of the rounds after which speeds and prices change."""
_BIRTH = 1 << 20
"""First word of the spawn keys of a population, beyond any round."""
_FAILURES = (1 << 20) + 4
_BAD_EDGE = (1 << 20) + 5
_TRAITS = ("late", "dying", "speeds", "factor", "repriced", "price", "flips", "group", "sure")


@dataclass(frozen=True, slots=True, eq=False)
class Failed:
    """Columns over the pairs of a round."""

    cause: npt.NDArray[np.int8]  # int8[P], the `Ending` of an order now; IN_TIME where it is safe
    safe: FloatArray  # float64[P], probability that nothing fails, by what is known before


class Population:
    """The clients of a run; indices are never reused, replaced clients stay away.

    `alive` is int64[n], the run-wide index of each of the n places; `pair_place` is int64[P], the
    place of each pair, and `pair_edge` is int32[P].
    """

    def __init__(self, recipe: TestbedRecipe, seed: int) -> None:
        self._recipe, self._world, self._seed = recipe, recipe.world, seed
        self.bad_edge = int(spawned_rng(seed, _BAD_EDGE).integers(recipe.world.edges))
        self.round = 0
        self.alive = np.arange(recipe.world.clients, dtype=np.int64)
        self._unit_price: FloatArray = np.zeros(0)
        self._liar: BoolArray = np.zeros(0, dtype=np.bool_)
        self._traits: dict[str, FloatArray] = {name: np.zeros(0) for name in _TRAITS}
        self._born(recipe.world.clients)
        self.pair_place, self.pair_edge = self._links()

    @property
    def total(self) -> int:
        """N, clients that have ever been there."""
        return len(self._unit_price)

    @property
    def unit_price(self) -> FloatArray:
        """float64[n], credits per unit of compute of those alive, in this round."""
        repriced, (low, high) = self._world.repriced, self._world.work.price
        price = self._unit_price[self.alive]
        if repriced.share and self.is_after(HALF):
            anew = low + (high - low) * self.trait("price")
            price = np.where(self.some("repriced", repriced.share), anew, price)
        late = self._world.late
        return np.where(self.some("late", late.share), late.price_factor, 1.0) * price

    @property
    def liar(self) -> BoolArray:
        """bool[n], who claims more compute than there is."""
        return self._liar[self.alive]

    def trait(self, name: str) -> FloatArray:
        """Return float64[n], a number in [0, 1) of each of those alive, fixed by the seed."""
        return self._traits[name][self.alive]

    def some(self, name: str, share: float) -> BoolArray:
        """Return bool[n]: this share of those born together, which of them by a trait."""
        # The trait is (rank + u) / born, so that the share is exact.
        return self.trait(name) < share

    def is_after(self, share: float) -> bool:
        """Whether this share of the rounds is over."""
        return self.round > share * self._recipe.rounds.count

    def slowness(self) -> FloatArray:
        """Return float64[n], the compute that each claims over what it has."""
        speeds, low_high = self._world.speeds, self._world.speeds.factor
        slow = np.where(self.liar, self._world.liars.factor, 1.0)
        if speeds.share and self.is_after(HALF):
            low, high = map(math.log, low_high)
            factor = np.exp(low + (high - low) * self.trait("factor"))
            slow = np.where(self.some("speeds", speeds.share), slow / factor, slow)
        return slow

    def extra_s(self) -> FloatArray:
        """Return float64[n], seconds beside the computation: of who is late, and while it is cold.

        Late is a deadline more, so that no such update is ever in time.
        """
        cold, late = self._world.cold, self._world.late
        extra = np.where(self.some("late", late.share), self._recipe.rounds.deadline_s, 0.0)
        if cold.rounds:
            extra += cold.extra_s * 0.5 ** max(0, min(self.round - cold.rounds, 1000))
        return extra

    def prices(self, compute: FloatArray) -> IntArray:
        """Return int64[N] micro-credits for these units of compute, 0 for who is gone."""
        price = np.zeros(self.total, dtype=np.int64)
        price[self.alive] = np.round(self.unit_price * compute * MICRO)
        return price

    def available(self) -> BoolArray:
        """Return bool[N], who is alive."""
        there = np.zeros(self.total, dtype=np.bool_)
        there[self.alive] = True
        return there

    def dead(self) -> BoolArray:
        """Return bool[n], those of which nothing arrives in this round."""
        dying = self._world.dying
        gone = self.is_after(dying.after) and not self._is_healed()
        return self.some("dying", dying.share if gone else 0.0)

    def starts(self) -> IntArray:
        """Return int64[N], how often each is known to have started; 0 for who is gone."""
        dying, starts = self._world.dying, np.zeros(self.total, dtype=np.int64)
        again = self._is_healed() and dying.says
        starts[self.alive] = 1 + self.some("dying", dying.share if again else 0.0)
        return starts

    def begin(self, round_: int) -> None:
        """Replace some clients by new ones, when it is time; once per round."""
        churn = self._world.churn
        leaving = round(churn.share * len(self.alive))
        again, self.round = round_ == self.round, round_
        if again or not leaving or round_ == 1 or (round_ - 1) % churn.every:
            return
        rng = spawned_rng(self._seed, _BIRTH + 1, round_)
        places = rng.choice(len(self.alive), leaving, replace=False)
        self.alive = self.alive.copy()
        self.alive[places] = self.total + np.arange(leaving)
        self._born(leaving)

    def failed(self) -> Failed | None:
        """Draw what fails in this round beside slow links; None where nothing can."""
        world, place, edge = self._world, self.pair_place, self.pair_edge
        shares = (world.dying.share, world.bad_edge.fails, world.correlated.chance)
        if not (any(shares) or world.flips.every):
            return None
        rng = spawned_rng(self._seed, _FAILURES, self.round)
        lost = self._lost()
        cause = np.full(len(place), Ending.IN_TIME, dtype=np.int8)
        cause[(rng.random(len(lost)) < lost)[place]] = Ending.MISSED
        safe = 1.0 - lost[place]
        if world.correlated.chance:
            cause[self._together(rng)] = Ending.MISSED
            safe *= 1.0 - world.correlated.chance
        dead = self.dead()[place]
        cause[dead], safe[dead] = Ending.GONE, 0.0
        bad, fails = edge == self.bad_edge, world.bad_edge.fails
        safe[bad] *= 1.0 - fails
        if rng.random() < fails:
            cause[bad] = Ending.EDGE
        return Failed(cause, safe)

    def _lost(self) -> FloatArray:
        """Return float64[n], the chance that each client's update is lost by itself."""
        flips = self._world.flips
        if not flips.every:
            return np.zeros(len(self.alive))
        swapped = (self.round - 1) // flips.every % 2 == 1
        return np.where(self.some("flips", 0.5) == swapped, flips.loss, 0.0)

    def _together(self, rng: np.random.Generator) -> BoolArray:
        """Return bool[P], the pairs that are lost with all others of their edge or group."""
        correlated = self._world.correlated
        if correlated.by == "edge":
            return (rng.random(self._world.edges) < correlated.chance)[self.pair_edge]
        group = (self.trait("group") * correlated.groups).astype(np.int64)
        return (rng.random(correlated.groups) < correlated.chance)[group][self.pair_place]

    def _is_healed(self) -> bool:
        dying = self._world.dying
        last = math.floor(dying.after * self._recipe.rounds.count) + dying.heal
        return dying.heal > 0 and self.round > last

    def _born(self, count: int) -> None:
        before = self.total
        rng = spawned_rng(self._seed, _BIRTH, before)
        low, high = self._world.work.price
        self._unit_price = np.concatenate((self._unit_price, rng.uniform(low, high, count)))
        liars = rng.random(count) < self._world.liars.share
        self._liar = np.concatenate((self._liar, liars))
        rng = spawned_rng(self._seed, _BIRTH + 3, before)
        for name in _TRAITS:
            drawn = (rng.permutation(count) + rng.random(count)) / count
            self._traits[name] = np.concatenate((self._traits[name], drawn))

    def _links(self) -> tuple[IntArray, IndexArray]:
        clients, edges = self._world.clients, self._world.edges
        visible = self._world.visible or edges
        place = np.repeat(np.arange(clients, dtype=np.int64), visible)
        if visible == edges:
            return place, np.tile(np.arange(edges, dtype=np.int32), clients)
        rng = spawned_rng(self._seed, _BIRTH + 2, 0)
        start = rng.integers(0, edges, clients)
        steps = _distinct(rng, clients, edges, visible - 1)
        offsets = np.concatenate((np.zeros((clients, 1), dtype=np.int64), steps), axis=1)
        return place, ((start[:, None] + offsets) % edges).astype(np.int32).ravel()


def _distinct(rng: np.random.Generator, rows: int, top: int, count: int) -> IntArray:
    """Return int64[rows, count], distinct values of 1..top-1 in each row, by redrawing."""
    if 2 * count >= top:
        every = np.tile(np.arange(1, top, dtype=np.int64), (rows, 1))
        return rng.permuted(every, axis=1)[:, :count]
    drawn = rng.integers(1, top, (rows, count))
    while True:
        ranked = np.sort(drawn, axis=1)
        twice = np.flatnonzero((ranked[:, 1:] == ranked[:, :-1]).any(axis=1))
        if not len(twice):
            return drawn
        drawn[twice] = rng.integers(1, top, (len(twice), count))
