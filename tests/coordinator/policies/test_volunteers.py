"""Volunteers: whoever fits, in an order that chance decides, and never more than wanted."""

from dataclasses import replace

import numpy as np

from fedagent_coordinator.policies.baselines import VolunteersPolicy
from tests.fakes.rounds import chosen, town


def take(policy: VolunteersPolicy, seed: int, *, budget: int) -> set[int]:
    """Whom it takes of six clients, of whom the last four volunteer and each asks 10."""
    available = np.array([False, False, True, True, True, True])
    view = replace(town(1, 6, price=10, budget=budget), volunteers=available)
    return set(chosen(policy, view, seed=seed))


def test_all_that_fit_are_taken_and_chance_decides_who_does_not() -> None:
    assert take(VolunteersPolicy(), 0, budget=100) == {2, 3, 4, 5}
    taken = [take(VolunteersPolicy(), seed, budget=25) for seed in range(30)]
    assert {len(some) for some in taken} == {2}
    assert set.union(*taken) == {2, 3, 4, 5}


def test_no_more_are_taken_than_wanted() -> None:
    taken = [take(VolunteersPolicy(clients_per_round=3), seed, budget=100) for seed in range(30)]
    assert {len(some) for some in taken} == {3}
    assert set.union(*taken) == {2, 3, 4, 5}
