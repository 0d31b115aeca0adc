"""Processor time of a slot's decision, by the number of clients: `select` at its start, `learn`.

Everybody is there and has an opinion; every slot is one round. Medians of the slots after the
cold start, one thread; of K = N / 4 the cold start is four slots, of K = 5 it is N / 5.
"""

import statistics
import time

import numpy as np
import numpy.typing as npt

from fedagent_coordinator import policies
from fedagent_coordinator.policies import RoundView
from fedagent_coordinator.policies.base import FloatArray

from .decisions import outcome

MEASURED = 60


def slot_ms(policy_name: str, clients: int, size: int, *, mu: float, seed: int) -> float:
    """Return the median milliseconds of a slot after the cold start."""
    policy = policies.create(policy_name, clients_per_round=size, mu=mu)
    rng = np.random.default_rng(seed)
    places, worth = rng.random((clients, 2)).astype(np.float32), rng.uniform(0.4, 0.9, clients)
    took = []
    cold = -(-clients // size)
    for t in range(1, cold + MEASURED + 1):
        # Whoever trains moves what everybody thinks, as in training.
        view = _view(t, places, np.clip(rng.normal(worth, 0.02), 0, 1), size)
        began = time.thread_time()
        pairs = policy.select(view, np.random.default_rng((seed, t))).pairs
        decided = time.thread_time() - began
        feedback = outcome(rng, view, pairs)
        began = time.thread_time()
        policy.learn(feedback)
        took.append(1e3 * (decided + time.thread_time() - began))
    return statistics.median(took[cold:])


def _view(t: int, places: npt.NDArray[np.float32], opinions: FloatArray, size: int) -> RoundView:
    clients = len(opinions)
    return RoundView(
        round=t,
        pair_client=np.arange(clients, dtype=np.int32),
        pair_edge=np.zeros(clients, dtype=np.int32),
        pair_features=places,
        feature_names=("x_km", "y_km"),
        client_price=np.full(clients, 1_000_000, dtype=np.int64),
        client_available=np.ones(clients, dtype=np.bool_),
        edge_budget=np.array([size * 1_000_000], dtype=np.int64),
        opinions=opinions,
    )
