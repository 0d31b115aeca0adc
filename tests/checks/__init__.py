"""What decides, as it lives through seeded rounds of a growing town."""

from typing import Any

import numpy as np

from fedagent_coordinator import iterations, placement, policies, solvers
from fedagent_coordinator.placement import PlacementView
from fedagent_coordinator.policies import Purpose, round_rng
from fedagent_coordinator.policies.selection import check_selection
from fedagent_coordinator.solvers import AssignmentProblem
from fedagent_protocol.registry import Registry
from tests.fakes.rounds import random_feedback, random_view

SEED = 11
KINDS: dict[str, Registry[Any]] = {
    "policies": policies.registry,
    "placements": placement.registry,
    "solvers": solvers.registry,
    "iterations": iterations.registry,
}


def live(kind: str, thing: Any, rounds: range, **town: Any) -> list[list[int]]:
    """Let something decide and learn; return what a policy, or a random one, chose each time."""
    policy = thing if kind == "policies" else policies.create("random")
    every = []
    for t in rounds:
        rng = np.random.default_rng((SEED, t))
        view = random_view(rng, t, **{"clients": 8 + t, **town})
        chosen = policy.select(view, round_rng(SEED, t, Purpose.SELECT))
        check_selection(view, chosen.pairs)
        assert len(chosen.scores) == len(chosen.bound) == len(view.pair_client)
        every.append(chosen.pairs.tolist())
        feedback = random_feedback(rng, view, chosen)
        if kind == "policies":
            thing.learn(feedback)
        elif kind == "placements":
            offers = PlacementView(
                round=t,
                edge_live=np.ones(4, dtype=np.bool_),
                edge_rent=np.array([5, 3, 9, 2], dtype=np.int64),
                budget_micro=1000,
                edge_transfer_s=rng.random(4),
            )
            thing.learn(thing.choose(offers, rng), float(rng.random()))
        elif kind == "solvers":
            thing.solve(
                AssignmentProblem(
                    value=rng.random(len(view.pair_client)),
                    cost=view.pair_price,
                    client=view.pair_client,
                    edge=view.pair_edge,
                    budget=view.edge_budget,
                )
            )
        else:
            thing.choose(view.pair_client[chosen.pairs].astype(np.int64), rng)
            thing.learn(feedback, horizon=20.0)
    return every
