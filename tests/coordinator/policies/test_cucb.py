"""`cucb`: UCB1 over a pool of super-arms."""

import math

import numpy as np

from fedagent_coordinator.policies.baselines import CucbPolicy
from tests.fakes.rounds import column_view, ended

ONE_FITS = column_view(clients=6, budget=1)


def at_round(t: int, plays: list[int], wins: list[float], mu: float) -> int:
    """The arm that is played at round t with these counters, 4 the most ever won."""
    policy = CucbPolicy(pool=len(plays), mu=mu)
    policy.restore(
        {
            "plays": np.array(plays, dtype=np.int64),
            "wins": np.array(wins),
            "best": np.array([4.0]),
        }
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
