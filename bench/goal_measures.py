"""Of goal-directed selection: the time of a slot's decision, and opinions by kind of data."""

import statistics
import time

import numpy as np
import numpy.typing as npt

from fedagent_coordinator import policies
from fedagent_coordinator.policies import RoundView
from fedagent_coordinator.policies.base import FloatArray
from fedagent_testbed.learning.trainer import FederatedLearner
from fedagent_testbed.study import load_recipe, make_world

from .decisions import outcome

MEASURED = 60
SLOTS, FIRST = 60, 5
"""Slots, and those at the start that do not count."""


def slot_ms(policy_name: str, clients: int, size: int, *, mu: float, seed: int) -> float:
    """Return the median milliseconds of a slot's decision after the cold start, by one thread.

    Everybody is there and has an opinion; every slot is one round. Of K = N / 4 the cold start
    is four slots, of K = 5 it is N / 5.
    """
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


def opinions(seed: int) -> dict[str, object]:
    """Return what clients think of a model just trained: with all labels or not, trained or not.

    Random sets of five, a new one for each slot of `gda-mnist`, 200 samples a client.
    """
    recipe = load_recipe("gda-mnist", ("world.training.samples_per_client=200",))
    training = recipe.world.training
    learner, world = FederatedLearner(recipe, seed), make_world(recipe, seed)
    rng = np.random.default_rng(seed)
    iid = np.arange(recipe.world.clients) < training.iid_clients
    found: dict[tuple[bool, bool], list[float]] = {}
    for slot in range(SLOTS):
        chosen = np.sort(rng.choice(recipe.world.clients, training.iid_clients, replace=False))
        for round_ in range(training.slot_rounds):
            view = world.view(slot * training.slot_rounds + round_ + 1)
            learner.advance(world.play(view, chosen))
        opinion = learner.opinions()
        trained = np.isin(np.arange(recipe.world.clients), chosen)
        for client in range(recipe.world.clients) if slot >= FIRST else ():
            kind = bool(iid[client]), bool(trained[client])
            found.setdefault(kind, []).append(float(opinion[client]))
    return {
        f"{'iid' if kind else 'other'}_{'trained' if trained else 'waited'}": round(
            float(np.mean(values)), 4
        )
        for (kind, trained), values in sorted(found.items())
    }
