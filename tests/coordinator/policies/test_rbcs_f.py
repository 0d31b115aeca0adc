"""RBCS-F and `fair`: queues, sets, choices; the table of ALGORITHMS section 4 in short."""

import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedagent_coordinator.policies import Purpose, round_rng
from fedagent_coordinator.policies.base import RoundView
from fedagent_coordinator.policies.fair import FairPolicy
from fedagent_coordinator.policies.fastest import FastestPolicy
from fedagent_coordinator.policies.rbcs_f import FairnessQueues, RbcsFPolicy, capacity, fair_set
from fedagent_coordinator.policies.selection import check_selection, fill
from fedagent_protocol.errors import ParameterError
from fedagent_testbed.study import load_recipe, play
from tests.fakes.rounds import choice, column_view, ended, random_view


def queues(beta: float = 0.25, freeze_after: int = 3) -> FairnessQueues:
    return FairnessQueues("test", beta=beta, freeze_after=freeze_after)


def test_a_queue_grows_by_beta_falls_by_one_and_stops_at_zero() -> None:
    q = queues()
    view = column_view(clients=2, available=[True, False])
    for expected in (0.25, 0.5, 0.75, 1.0, 1.25):
        q.step(ended(view, []))
        assert q.lengths(2).tolist() == [expected, expected]
    q.step(ended(view, [0]))
    assert q.lengths(2).tolist() == [0.5, 1.5]
    q.step(ended(view, [0], x=[False]))
    assert q.lengths(3).tolist() == [0.0, 1.75, 0.0]


def test_without_a_session_it_freezes_and_thaws() -> None:
    q = queues(freeze_after=3)
    both = column_view(clients=2)
    one = both.take(np.array([0]))
    for _ in range(3):
        q.step(ended(one, [0]))
    assert q.lengths(2)[1] == 0.75
    assert q.due(both) == 1
    for _ in range(5):
        q.step(ended(one, [0]))
    assert q.lengths(2)[1] == 0.75
    q.step(ended(both, [0]))
    assert q.lengths(2)[1] == 1.0


def test_a_share_that_rounds_cannot_give_is_a_configuration_error() -> None:
    q = queues(beta=0.25, freeze_after=2)
    nine = column_view(clients=9)
    q.require_room(nine, 3)
    with pytest.raises(ParameterError) as caught:
        q.require_room(nine, 2)
    assert caught.value.parameter == "beta"
    assert "owes 3 of 9 clients a round and only 2" in str(caught.value)
    q.require_room(nine.take(np.arange(8)), 2)
    q = queues(beta=0.5)
    with pytest.raises(ParameterError, match="5 of 9 clients a round and only 3 can be paid"):
        q.require_room(column_view(clients=9, budget=3), 6)
    q.require_room(column_view(clients=9, budget=5), 6)
    q.require_room(column_view(clients=9, budget=0), 6)
    q.step(ended(nine, [0]))
    q.require_room(column_view(clients=9, budget=3), 6)  # later rounds are not refused


@pytest.mark.parametrize(
    ("price", "budget", "edges", "most", "room"),
    [
        ([5, 1, 3], 4, 1, None, 2),
        ([5, 1, 3], 9, 1, 2, 2),
        ([1, 1, 2], 2, 2, None, 3),
        ([0, 0], 0, 1, None, 2),
        ([10**15] * 3, 10**15, 2, None, 2),
    ],
)
def test_capacity_is_what_the_budgets_pay_of_the_cheapest(
    price: list[int], budget: int, edges: int, most: int | None, room: int
) -> None:
    view = column_view(price=price, budget=budget, edges_seen=edges, clients=len(price))
    assert capacity(view, most) == room


@given(st.integers(0, 2**32), st.integers(0, 12), st.integers(0, 3), st.integers(0, 4_000_000))
def test_no_round_takes_more_than_the_capacity(
    seed: int, clients: int, edges: int, budget: int
) -> None:
    rng = np.random.default_rng(seed)
    view = random_view(rng, 1, clients=clients, edges=edges, budget=budget)
    taken = fill(view, rng.permutation(len(view.pair_client)).astype(np.int64))
    assert len(taken) <= capacity(view)


def test_it_learns_who_is_fast_and_still_serves_the_slow() -> None:
    policy, view = RbcsFPolicy(V=0.2, beta=0.1, clients_per_round=2), column_view(clients=6)
    slow = np.array([0, 0, 0, 0, 30.0, 30.0]) + 1
    plays = np.zeros(6)
    for t in range(1, 401):
        pairs = choice(policy, view, t)
        policy.learn(ended(view, pairs, tau_s=slow[pairs].tolist()))
        plays[pairs] += 1
    assert plays[4:].max() < plays[:4].min()
    assert plays.min() / 400 == pytest.approx(0.1, abs=0.02)
    assert policy.state()["queue"].max() < 10


def played(name: str, seed: int, rounds: int, *sets: str) -> tuple[float, float, float]:
    """Return seconds of a round, the smallest selection rate and clients of a round."""
    run = play(load_recipe("rbcs-f-numeric", [f"rounds.count={rounds}", *sets]), name, seed)
    return run["seconds"].mean(), run.rates().min(), run["selected"].mean()


@pytest.mark.parametrize(
    ("name", "sets", "seconds", "clients"),
    [
        ("random", "budget.per_edge=8", 15.4, 8.0),
        ("fedcs", "budget.per_edge=40", 3.98, 8.8),
        ("rbcs-f", "policies.rbcs-f.V=1.0", 10.0, 8.0),
        ("rbcs-f", "policies.rbcs-f.V=5.0", 8.97, 8.0),
    ],
)
def test_the_reference_table_in_short(name: str, sets: str, seconds: float, clients: float) -> None:
    """The whole table, 500 rounds and 20 seeds, is `python -m bench.experiments rbcs-table`."""
    took, rate, chosen = np.mean([played(name, seed, 200, sets) for seed in range(3)], axis=0)
    assert took == pytest.approx(seconds, rel=0.05)
    assert chosen == pytest.approx(clients, rel=0.05)
    if sets.endswith("V=1.0"):
        assert rate == pytest.approx(0.147, abs=0.02)


Column = list[float]

whole = st.integers(0, 6).map(float)
fine = st.floats(0, 50, allow_nan=False)
clients = st.one_of(
    st.lists(st.tuples(whole, whole), min_size=1, max_size=12),
    st.lists(st.tuples(fine, fine), min_size=1, max_size=12),
)


def objective(tau: Column, queue: Column, v: float, members: list[int]) -> float:
    return v * max(tau[i] for i in members) - sum(queue[i] for i in members)


@given(clients, st.data(), st.sampled_from([0.0, 0.3, 1.0, 3.0, 100.0]), st.integers(0, 99))
def test_the_objective_equals_brute_force(
    columns: list[tuple[float, float]], data: st.DataObject, v: float, seed: int
) -> None:
    tau, queue = [c[0] for c in columns], [c[1] for c in columns]
    k = data.draw(st.integers(1, len(tau)))
    members = fair_set(np.array(tau), np.array(queue), k, v, np.random.default_rng(seed)).tolist()
    assert len(set(members)) == k == len(members)
    best = min(objective(tau, queue, v, list(s)) for s in combinations(range(len(tau)), k))
    assert objective(tau, queue, v, members) == pytest.approx(best, rel=1e-9, abs=1e-9)


def test_equals_are_chosen_by_the_seed_and_not_by_their_index() -> None:
    plays = np.zeros(20)
    for seed in range(400):
        plays[fair_set(np.zeros(20), np.zeros(20), 5, 20.0, np.random.default_rng(seed))] += 1
    assert plays.min() > 60
    assert plays.max() < 140
    draws = [
        fair_set(np.zeros(20), np.zeros(20), 5, 20.0, np.random.default_rng(3)).tolist()
        for _ in range(2)
    ]
    assert draws[0] == draws[1]


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
