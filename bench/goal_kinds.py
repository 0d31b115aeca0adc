"""What clients think of a model that they have just trained, by the kind of their data.

Random sets of five, a new one for each slot of `gda-mnist`, 200 samples a client.
"""

import numpy as np

from fedagent_testbed.learning.trainer import FederatedLearner
from fedagent_testbed.study import load_recipe, make_world

SLOTS, FIRST = 60, 5
"""Slots, and those at the start that do not count."""


def opinions(seed: int) -> dict[str, object]:
    """Return mean opinions of clients with all labels, and of others, by who trained."""
    recipe = load_recipe("gda-mnist", ("training.samples_per_client=200",))
    training = recipe.training
    learner, world = FederatedLearner(recipe, seed), make_world(recipe, seed)
    rng = np.random.default_rng(seed)
    iid = np.arange(recipe.clients) < training.iid_clients
    said: dict[tuple[bool, bool], list[float]] = {}
    for slot in range(SLOTS):
        chosen = np.sort(rng.choice(recipe.clients, training.iid_clients, replace=False))
        for round_ in range(training.slot_rounds):
            view = world.view(slot * training.slot_rounds + round_ + 1)
            learner.advance(world.play(view, chosen))
        opinion = learner.opinions()
        trained = np.isin(np.arange(recipe.clients), chosen)
        for client in range(recipe.clients) if slot >= FIRST else ():
            kind = bool(iid[client]), bool(trained[client])
            said.setdefault(kind, []).append(float(opinion[client]))
    return {
        f"{'iid' if kind else 'other'}_{'trained' if trained else 'waited'}": round(
            float(np.mean(values)), 4
        )
        for (kind, trained), values in sorted(said.items())
    }
