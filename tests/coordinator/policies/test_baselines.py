"""The policies that learn nothing, and `cucb`, UCB1 over a pool of super-arms."""

import math
from dataclasses import replace

import numpy as np
import pytest

from fedagent_coordinator.policies.baselines import (
    CucbPolicy,
    FixedPolicy,
    RandomPolicy,
    RoundRobinPolicy,
    VolunteersPolicy,
)
from tests.fakes.rounds import chosen, column_view, ended, play, town


@pytest.mark.parametrize(
    ("policy", "rounds"), [(RandomPolicy(), 1), (RandomPolicy(slot_rounds=3), 3)]
)
def test_random_draws_a_set_for_each_slot(policy: RandomPolicy, rounds: int) -> None:
    drawn = [frozenset(play(policy, town(t, 20, price=1, budget=5), 0.5)) for t in range(1, 61)]
    slots = [drawn[start : start + rounds] for start in range(0, 60, rounds)]
    assert all(len(set(slot)) == 1 for slot in slots)
    assert len({slot[0] for slot in slots}) > 10


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


def take(policy: VolunteersPolicy, seed: int, *, budget: int) -> set[int]:
    """Whom it takes of six clients, of whom the last four volunteer and each asks 10."""
    available = np.array([False, False, True, True, True, True])
    view = replace(town(1, 6, price=10, budget=budget), volunteers=available)
    return set(chosen(policy, view, seed=seed))


@pytest.mark.parametrize(("most", "budget", "count"), [(None, 100, 4), (None, 25, 2), (3, 100, 3)])
def test_all_that_fit_are_taken_and_chance_decides_who_does_not(
    most: int | None, budget: int, count: int
) -> None:
    policy = VolunteersPolicy() if most is None else VolunteersPolicy(clients_per_round=most)
    taken = [take(policy, seed, budget=budget) for seed in range(30)]
    assert {len(some) for some in taken} == {count}
    assert set.union(*taken) == {2, 3, 4, 5}


ONE_FITS = column_view(clients=6, budget=1)


def at_round(t: int, plays: list[int], wins: list[float], mu: float) -> int:
    """The arm that is played at round t with these counters, 4 the most ever won."""
    policy = CucbPolicy(pool=len(plays), mu=mu)
    policy.restore(
        {"plays": np.array(plays, dtype=np.int64), "wins": np.array(wins), "best": np.array([4.0])}
    )
    view = column_view(t, clients=6)
    return int(policy.select(view, np.random.default_rng(0)).notes["arm"])


def test_every_arm_is_tried_once_first() -> None:
    policy = CucbPolicy(pool=5)
    played = []
    for t in range(1, 6):
        view = column_view(t, clients=6, budget=1)
        selection = policy.select(view, np.random.default_rng(t))
        played.append(selection.notes["arm"])
        policy.learn(ended(view, selection.pairs.tolist()))
    assert sorted(played) == [0, 1, 2, 3, 4]
    assert policy.state()["plays"].tolist() == [1] * 5


def test_the_bonus_returns_to_arms_that_were_played_little() -> None:
    plays, wins = [50, 2], [120.0, 4.0]  # means 0.6 and 0.5 of 4
    assert at_round(53, plays, wins, mu=0.0) == 0
    assert at_round(53, plays, wins, mu=math.sqrt(2)) == 1
    few = 0.1 / (math.sqrt(math.log(53) / 2) - math.sqrt(math.log(53) / 50))
    assert at_round(53, plays, wins, mu=0.99 * few) == 0
    assert at_round(53, plays, wins, mu=1.01 * few) == 1


def test_an_arm_is_a_fixed_order_and_is_credited_with_its_successes() -> None:
    policy = CucbPolicy(pool=1, mu=0.0)
    view = column_view(clients=6, budget=3)
    first = policy.select(view, np.random.default_rng(1)).pairs.tolist()
    assert policy.select(view, np.random.default_rng(2)).pairs.tolist() == first
    policy.learn(ended(view, first, x=[True, False, True]))
    state = policy.state()
    assert (state["wins"].tolist(), state["best"].tolist()) == ([2.0], [2.0])
