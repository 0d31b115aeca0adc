"""RBCS-F: its queues, its choices, and the reference table of ALGORITHMS section 4 in short."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedagent_coordinator.policies.rbcs_f import FairnessQueues, RbcsFPolicy, capacity
from fedagent_coordinator.policies.selection import fill
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
