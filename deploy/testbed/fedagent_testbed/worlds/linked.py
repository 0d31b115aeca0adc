"""Worlds whose pairs have a download, a computation and an upload."""

from abc import ABC, abstractmethod

import numpy as np

from fedagent_coordinator.policies import Feedback, RoundView, Truth
from fedagent_coordinator.policies.base import FloatArray, IntArray
from fedagent_testbed.recipe import TestbedRecipe

from .base import Times, outcome
from .population import Population


class LinkedWorld(ABC):
    """What the worlds of radio and of recorded links share.

    Attributes:
        times: Stages of every pair of the last view; None before the first.
    """

    def __init__(self, recipe: TestbedRecipe, seed: int) -> None:
        self._recipe, self._seed = recipe, seed
        self._people = Population(recipe, seed)
        self._budget = np.full(recipe.edges, recipe.budget_micro, dtype=np.int64)
        self.times: Times | None = None

    @abstractmethod
    def view(self, round_: int) -> RoundView:
        """Draw a round."""

    def play(self, view: RoundView, pairs: IntArray) -> Feedback:
        """Return how these pairs ended."""
        assert self.times is not None, "a round is seen before it is played"
        limits = self._recipe.rounds
        return outcome(
            view,
            pairs,
            self.times,
            min_updates=limits.min_updates,
            max_wait_s=limits.max_wait_s,
        )

    def _computation(self, compute: FloatArray) -> FloatArray:
        """Return the seconds of every pair, float64[P]; liars have less than they claim."""
        people, factor = self._people, self._recipe.liars.factor
        true = np.where(people.liar, compute / factor, compute)
        return np.asarray((self._recipe.work.work / true)[people.pair_place], dtype=np.float64)

    def _shown(
        self, round_: int, features: dict[str, FloatArray], compute: FloatArray, truth: Truth
    ) -> RoundView:
        """Return the view of these features, float64[P] by name."""
        people = self._people
        return RoundView(
            round=round_,
            pair_client=people.alive[people.pair_place].astype(np.int32),
            pair_edge=people.pair_edge,
            pair_features=np.stack(list(features.values()), axis=1).astype(np.float32),
            feature_names=tuple(features),
            client_price=people.prices(compute),
            client_available=people.available(),
            edge_budget=self._budget,
            deadline_s=self._recipe.rounds.deadline_s,
            model_bytes=round(self._recipe.work.download_mbit * 1e6 / 8),
            truth=truth,
        )
