"""The baselines of GDA: ucb over subsets, round-robin, fixed."""

import math
from itertools import combinations

import numpy as np
import pytest

from fedagent_coordinator.errors import StateError
from fedagent_coordinator.policies.baselines import FixedPolicy, RandomPolicy, RoundRobinPolicy
from fedagent_coordinator.policies.ucb import UcbPolicy
from fedagent_coordinator.records import pack_arrays, unpack_arrays
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


def test_random_draws_a_set_for_each_slot() -> None:
    policy = RandomPolicy(slot_rounds=3)
    drawn = [frozenset(play(policy, town(t, 20, price=1, budget=5), 0.5)) for t in range(1, 61)]
    slots = [drawn[start : start + 3] for start in range(0, 60, 3)]
    assert all(len(set(slot)) == 1 for slot in slots)
    assert len({slot[0] for slot in slots}) > 10


def test_random_draws_anew_every_round_by_default() -> None:
    policy = RandomPolicy()
    assert (
        len({frozenset(play(policy, town(t, 20, price=1, budget=5), 0.5)) for t in range(1, 21)})
        > 10
    )


def test_random_continues_in_the_middle_of_a_slot() -> None:
    original, restored = RandomPolicy(slot_rounds=4), RandomPolicy(slot_rounds=4)
    first = play(original, town(1, 20, price=1, budget=5), 0.5)
    restored.restore(unpack_arrays(pack_arrays(original.state())))
    assert sorted(play(restored, town(2, 20, price=1, budget=5), 0.5)) == sorted(first)
    with pytest.raises(StateError):
        RandomPolicy(slot_rounds=1).restore(original.state())


def test_round_robin_takes_blocks_in_turn_for_a_slot_each() -> None:
    policy = RoundRobinPolicy(clients_per_round=3, slot_rounds=2)
    blocks = [chosen(policy, town(t, 7)) for t in range(1, 8)]
    assert blocks == [[0, 1, 2], [0, 1, 2], [3, 4, 5], [3, 4, 5], [6], [6], [0, 1, 2]]


def test_round_robin_takes_predefined_sets_and_nobody_instead_of_who_is_away() -> None:
    policy = RoundRobinPolicy(sets=[[0, 1, 10, 15, 19], [2, 3]])
    assert chosen(policy, town(1, 20)) == [0, 1, 10, 15, 19]
    assert chosen(policy, town(2, 20)) == [2, 3]
    assert chosen(policy, town(3, 12)) == [0, 1, 10]
    away = [c != 2 for c in range(20)]
    assert chosen(policy, town(4, 20, there=away)) == [3]


def test_fixed_takes_its_set_while_it_fits() -> None:
    assert chosen(FixedPolicy(), town(1, 20)) == [0, 1, 2, 3, 4]
    policy = FixedPolicy(clients=[7, 2, 5])
    assert chosen(policy, town(1, 8)) == [2, 5, 7]
    assert chosen(policy, town(1, 8, price=4, budget=9)) == [2, 7]
