"""`ucb` over subsets, the baseline of GDA."""

import math
from itertools import combinations

import numpy as np

from fedagent_coordinator.policies.sets.quick_init import UcbPolicy
from tests.fakes.rounds import SEED, chosen, play, town


def test_ucb_pulls_every_arm_once_first_in_a_seeded_order() -> None:
    def order(seed: int) -> list[tuple[int, ...]]:
        policy = UcbPolicy(clients_per_round=3)
        return [tuple(play(policy, town(t, 6), 0.5, seed=seed)) for t in range(1, 21)]

    assert sorted(order(SEED)) == sorted(combinations(range(6), 3))
    assert order(SEED) == order(SEED) != order(SEED + 1)


def test_ucb_starts_where_arms_cannot_be_counted() -> None:
    assert len(play(UcbPolicy(clients_per_round=50), town(1, 100_000), 0.5)) == 50


def test_ucb_then_takes_the_largest_index() -> None:
    policy = UcbPolicy(clients_per_round=2, mu=0.4)
    rng = np.random.default_rng(2)
    pulls: dict[tuple[int, ...], list[float]] = {arm: [] for arm in combinations(range(4), 2)}
    for t in range(1, 60):
        arm = tuple(chosen(policy, town(t, 4)))
        if t > len(pulls):

            def key(arm: tuple[int, ...], t: int = t) -> tuple[float, tuple[int, ...]]:
                got = pulls[arm]
                return -(sum(got) / len(got) + 0.4 * math.sqrt(math.log(t) / len(got))), arm

            assert arm == min(pulls, key=key)
        reward = round(float(rng.random()), 3)
        pulls[arm].append(reward)
        assert tuple(play(policy, town(t, 4), reward)) == arm
    assert min(map(len, pulls.values())) < max(map(len, pulls.values()))


def test_ucb_pulls_only_arms_of_who_is_there() -> None:
    policy = UcbPolicy(clients_per_round=2)
    away = [True, True, False, True]
    arms = [tuple(play(policy, town(t, 4, there=away), 0.5)) for t in (1, 2, 3)]
    assert sorted(arms) == [(0, 1), (0, 3), (1, 3)]
    assert play(policy, town(4, 4, there=[False, True, False, False]), 0.5) == [1]
