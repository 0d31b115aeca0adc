"""The clients of a world: prices, liars, visible edges, and churn."""

import numpy as np

from fedagent_coordinator.policies.base import BoolArray, FloatArray, IndexArray, IntArray
from fedagent_task.spec import MICRO
from fedagent_testbed.recipe import TestbedRecipe

from .base import spawned_rng

_BIRTH = 1 << 20
"""First word of the spawn keys of a population, beyond any round."""


class Population:
    """The clients of a run; indices are never reused, replaced clients stay away.

    `alive` is int64[n], the run-wide index of each of the n places.
    """

    def __init__(self, recipe: TestbedRecipe, seed: int) -> None:
        self._recipe, self._seed = recipe, seed
        self._begun = 0
        self.alive = np.arange(recipe.clients, dtype=np.int64)
        self._unit_price: FloatArray = np.zeros(0)
        self._liar: BoolArray = np.zeros(0, dtype=np.bool_)
        self._born(recipe.clients)
        self.pair_place, self.pair_edge = self._links()

    @property
    def total(self) -> int:
        """N, clients that have ever been there."""
        return len(self._unit_price)

    @property
    def unit_price(self) -> FloatArray:
        """float64[n], credits per unit of compute of those alive."""
        return self._unit_price[self.alive]

    @property
    def liar(self) -> BoolArray:
        """bool[n], who claims more compute than there is."""
        return self._liar[self.alive]

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

    def begin(self, round_: int) -> None:
        """Replace some clients by new ones, when it is time; once per round."""
        churn = self._recipe.churn
        leaving = round(churn.share * len(self.alive))
        again, self._begun = round_ == self._begun, round_
        if again or not leaving or round_ == 1 or (round_ - 1) % churn.every:
            return
        rng = spawned_rng(self._seed, _BIRTH + 1, round_)
        places = rng.choice(len(self.alive), leaving, replace=False)
        self.alive = self.alive.copy()
        self.alive[places] = self.total + np.arange(leaving)
        self._born(leaving)

    def _born(self, count: int) -> None:
        rng = spawned_rng(self._seed, _BIRTH, self.total)
        low, high = self._recipe.work.price
        self._unit_price = np.concatenate((self._unit_price, rng.uniform(low, high, count)))
        liars = rng.random(count) < self._recipe.liars.share
        self._liar = np.concatenate((self._liar, liars))

    def _links(self) -> tuple[IndexArray, IndexArray]:
        clients, edges = self._recipe.clients, self._recipe.edges
        visible = self._recipe.links.visible or edges
        place = np.repeat(np.arange(clients, dtype=np.int32), visible)
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
