"""The fairness queue around other policies: everybody gets beta, the inner choice the rest."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedagent_coordinator.policies import Purpose, round_rng
from fedagent_coordinator.policies.base import RoundView
from fedagent_coordinator.policies.fair import FairPolicy
from fedagent_coordinator.policies.fastest import FastestPolicy
from fedagent_coordinator.policies.selection import check_selection
from fedagent_protocol.errors import ParameterError
from tests.fakes.rounds import column_view, ended


@settings(max_examples=15)
@given(
    seed=st.integers(0, 2**32),
    clients=st.integers(2, 14),
    beta=st.sampled_from([0.05, 0.15, 0.3]),
    v=st.sampled_from([0.0, 0.5, 2.0, 8.0]),
    inner=st.sampled_from(["cheapest", "random"]),
    chance=st.sampled_from([0.7, 1.0]),
)
def test_everybody_gets_beta_when_the_budget_pays_for_it(
    seed: int, clients: int, beta: float, v: float, inner: str, chance: float
) -> None:
    """The budget pays for any ceil(beta N) + 1 clients, the dearest too."""
    world = np.random.default_rng(seed)
    price = world.integers(1, 100, clients)
    owed = math.ceil(beta * clients) + 1
    budget = int(np.sort(price)[-owed:].sum())
    policy, rounds = FairPolicy(policy=inner, beta=beta, V=v), 400
    plays = np.zeros(clients)
    for t in range(1, rounds + 1):
        view = column_view(
            t,
            price=price.tolist(),
            budget=budget,
            available=(world.random(clients) < chance).tolist(),
        )
        selection = policy.select(view, round_rng(seed, t, Purpose.SELECT))
        check_selection(view, selection.pairs)
        policy.learn(ended(view, selection.pairs.tolist()))
        plays[view.pair_client[selection.pairs]] += 1
    queue = policy.state()["queue"].astype(np.float64)
    assert queue.max() <= v + 2 * beta * clients + 12
    assert (plays >= beta * rounds - queue - 1e-6).all()
    assert plays.min() / rounds >= beta - (v + 2 * beta * clients + 12) / rounds


@pytest.mark.parametrize(("v", "waits"), [(0.0, 1), (1.0, 5), (3.0, 13)])
def test_v_is_how_many_rounds_of_debt_a_choice_is_worth(v: float, waits: int) -> None:
    fair = FairPolicy(policy=FastestPolicy(clients_per_round=1), beta=0.25, V=v)
    view = column_view(clients=2)
    fair.learn(ended(view, [0], tau_s=[1.0]))
    fair.learn(ended(view, [1], tau_s=[50.0]))
    served: list[list[int]] = []
    while not served or served[-1] == [0]:
        served.append(fair.select(view, round_rng(0, len(served), Purpose.SELECT)).pairs.tolist())
        fair.learn(ended(view, served[-1], tau_s=[[1.0, 50.0][p] for p in served[-1]]))
    assert len(served) - 1 == waits


def test_the_size_of_a_round_is_the_inner_policys_or_what_is_owed() -> None:
    view: RoundView = column_view(clients=10)
    for size, beta, expected in ((3, 0.1, 3), (1, 0.5, 5)):
        fair = FairPolicy(policy=FastestPolicy(clients_per_round=size), beta=beta)
        assert len(fair.select(view, round_rng(0, 1, 0)).pairs) == expected
    capped = FairPolicy(policy="cheapest", beta=0.1, clients_per_round=2)
    assert len(capped.select(view, round_rng(0, 1, 0)).pairs) == 2
    with pytest.raises(ParameterError):
        FairPolicy(beta=0.5, clients_per_round=2).select(view, round_rng(0, 1, 0))
    tight = column_view(clients=10, budget=2)
    free = FairPolicy(beta=0.5).select(tight, round_rng(0, 1, 0))
    assert (len(free.pairs), free.notes["over_capacity"]) == (2, 1.0)
