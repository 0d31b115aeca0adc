"""The open world of goal-directed analytics: every client reaches the one edge, at any time."""

import numpy as np

from fedagent_coordinator.policies import Feedback, Purpose, RoundView, Truth, round_rng
from fedagent_coordinator.policies.base import IntArray
from fedagent_task.spec import MICRO
from fedagent_testbed.recipe import TestbedRecipe

from .base import Times, outcome

_NEVER = 1e15
"""Seconds beyond every deadline that a recipe can set."""


class OpenWorld:
    """All clients are there and cost a credit each; an update arrives with probability theta."""

    def __init__(self, recipe: TestbedRecipe, seed: int) -> None:
        self._recipe, self._seed = recipe, seed
        self._arrives = np.zeros(0, dtype=np.bool_)
        n = recipe.clients
        where = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(1 << 20,)))
        self._positions = where.random((n, 2)).astype(np.float32)
        self._pairs = np.arange(n, dtype=np.int32)
        self._edge = np.zeros(n, dtype=np.int32)
        self._price = np.full(n, MICRO, dtype=np.int64)
        self._available = np.ones(n, dtype=np.bool_)

    def view(self, round_: int) -> RoundView:
        """Draw who would arrive."""
        rng = round_rng(self._seed, round_, Purpose.ENVIRONMENT)
        n, swift = self._recipe.clients, min(1.0, self._recipe.rounds.deadline_s)
        self._arrives = rng.random(n) < self._recipe.success
        return RoundView(
            round=round_,
            pair_client=self._pairs,
            pair_edge=self._edge,
            pair_features=self._positions,
            feature_names=("x_km", "y_km"),
            client_price=self._price,
            client_available=self._available,
            edge_budget=np.array([self._recipe.budget_micro], dtype=np.int64),
            deadline_s=self._recipe.rounds.deadline_s,
            truth=Truth(
                arrives=self._arrives,
                chance=np.full(n, self._recipe.success),
                tau_s=np.full(n, swift),
            ),
        )

    def play(self, view: RoundView, pairs: IntArray) -> Feedback:
        """Return who arrived; exchange takes a second at most, or for ever."""
        half = np.full(len(self._arrives), 0.5 * min(1.0, view.deadline_s))
        times = Times(half, half, np.where(self._arrives, 0.0, _NEVER))
        return outcome(view, pairs, times, min_updates=1, max_wait_s=view.deadline_s)
