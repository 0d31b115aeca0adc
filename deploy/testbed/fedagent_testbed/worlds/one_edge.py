"""Worlds of one edge that all clients reach; each costs a credit, so that K credits admit K."""

import numpy as np

from fedagent_coordinator.policies import Feedback, Purpose, RoundView, Truth, round_rng
from fedagent_coordinator.policies.base import IntArray
from fedagent_task.recipe.spec import MICRO
from fedagent_testbed.recipe import TestbedRecipe

from .base import NEVER, Times, arrived, outcome, spawned_rng

WORK_S = (1.0, 2.0, 3.0, 4.0)
SNR = (1000.0, 100.0, 10.0, 1.0)
"""By class of clients, as many of each: the numbers of RBCS-F, section 6.1."""
COLD_S, MODEL_BITS, AVAILABLE = 1.0, 20e6, 0.8


class OpenWorld:
    """Goal-directed analytics: all clients are there; an update arrives with probability theta."""

    def __init__(self, recipe: TestbedRecipe, seed: int) -> None:
        self._recipe, self._seed = recipe, seed
        self._arrives = np.zeros(0, dtype=np.bool_)
        n = recipe.world.clients
        self._positions = spawned_rng(seed, 1 << 20).random((n, 2)).astype(np.float32)
        self._pairs = np.arange(n, dtype=np.int32)
        self._edge = np.zeros(n, dtype=np.int32)
        self._price = np.full(n, MICRO, dtype=np.int64)
        self._available = np.ones(n, dtype=np.bool_)

    def view(self, round_: int) -> RoundView:
        """Draw who would arrive."""
        rng = round_rng(self._seed, round_, Purpose.ENVIRONMENT)
        n, swift = self._recipe.world.clients, min(1.0, self._recipe.rounds.deadline_s)
        self._arrives = rng.random(n) < self._recipe.world.success
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
                chance=np.full(n, self._recipe.world.success),
                tau_s=np.full(n, swift),
            ),
        )

    def play(self, view: RoundView, pairs: IntArray) -> Feedback:
        """Return who arrived; exchange takes a second at most, or for ever."""
        half = np.full(len(self._arrives), 0.5 * min(1.0, view.deadline_s))
        times = Times(half, half, np.where(self._arrives, 0.0, NEVER))
        return outcome(view, pairs, times, min_updates=1, max_wait_s=view.deadline_s)


class LinearExchange:
    """Exchange times as RBCS-F simulates them (ALGORITHMS section 4, the paper's 6.1).

    tau = tau_b / mu + tau_s s + M / (B eta) + noise, uniform within plus or minus the expectation;
    mu, B and the availability are drawn anew for every client in every round. Who trained in the
    last round starts warm; two worlds of one seed differ by that only. The edge waits for all.
    """

    def __init__(self, recipe: TestbedRecipe, seed: int) -> None:
        self._recipe, self._seed = recipe, seed
        per_class = recipe.world.clients // len(WORK_S)
        self._work_s = np.repeat(np.array(WORK_S), per_class)
        self._efficiency = np.log2(1 + np.repeat(np.array(SNR), per_class))
        self._tau_s = np.zeros(recipe.world.clients)
        self._warm = np.zeros(recipe.world.clients, dtype=np.bool_)

    def view(self, round_: int) -> RoundView:
        """Draw a round: one pair per client, and the truth for oracles."""
        rng, n = round_rng(self._seed, round_, Purpose.ENVIRONMENT), self._recipe.world.clients
        mu = rng.uniform(0.5, 2.0, n)
        bandwidth_hz = rng.uniform(2e6, 4e6, n)
        available = rng.random(n) < AVAILABLE
        send_s = MODEL_BITS / (bandwidth_hz * self._efficiency)
        expected_s = self._work_s / mu + COLD_S * ~self._warm + send_s
        self._tau_s = expected_s * rng.uniform(0.0, 2.0, n)
        return RoundView(
            round=round_,
            pair_client=np.arange(n, dtype=np.int32),
            pair_edge=np.zeros(n, dtype=np.int32),
            pair_features=np.column_stack((mu, bandwidth_hz)).astype(np.float32),
            feature_names=("compute", "bandwidth_hz"),
            client_price=np.full(n, MICRO, dtype=np.int64),
            client_available=available,
            edge_budget=np.array([self._recipe.budget_micro], dtype=np.int64),
            model_bytes=round(MODEL_BITS / 8),
            truth=Truth(arrives=np.ones(n, np.bool_), chance=np.ones(n), tau_s=expected_s),
        )

    def play(self, view: RoundView, pairs: IntArray) -> Feedback:
        """Let these pairs train, and remember them as warm."""
        clients = view.pair_client[pairs]
        self._warm = np.zeros(self._recipe.world.clients, dtype=np.bool_)
        self._warm[clients] = True
        return arrived(view, pairs, np.ones(len(pairs), np.bool_), self._tau_s[clients])
