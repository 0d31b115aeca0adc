"""RBCS-F: its queues, its choices, and the reference table of ALGORITHMS section 4 in short."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.rbcs import TABLE, run
from fedagent_coordinator.policies import Bound, Purpose, SelectionPolicy, round_rng
from fedagent_coordinator.policies.fastest import FastestPolicy
from fedagent_coordinator.policies.rbcs_f import FairnessQueues, RbcsFPolicy, capacity
from fedagent_coordinator.policies.selection import fill
from fedagent_protocol.errors import ParameterError
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
    queues(beta=0.2).require_room(column_view(clients=40), 8)


def test_a_share_that_the_budgets_cannot_pay_is_one_too() -> None:
    q = queues(beta=0.5)
    with pytest.raises(ParameterError) as caught:
        q.require_room(column_view(clients=9, budget=3), 6)
    assert "5 of 9 clients a round and only 3 can be paid" in str(caught.value)
    q.require_room(column_view(clients=9, budget=5), 6)
    q.require_room(column_view(clients=9, budget=0), 6)


def test_who_can_never_be_paid_is_owed_nothing_at_the_start() -> None:
    """N of beta N <= m counts the clients that can be chosen; who is only away now is one."""
    price, away = [1] * 4 + [99] * 5, [False] * 4 + [True] * 5
    queues(beta=0.4).require_room(column_view(price=price, budget=9), 2)
    with pytest.raises(ParameterError, match="owes 2 of 4 clients a round and only 1 take part"):
        queues(beta=0.4).require_room(column_view(price=price, budget=9, available=away), 1)


def test_only_the_first_round_is_refused() -> None:
    q = queues(beta=0.25)
    eight, nine = column_view(clients=8), column_view(clients=9)
    q.require_room(eight, 2)
    assert not q.over_capacity(eight, 2, 2)
    q.step(ended(eight, [0, 1]))
    q.require_room(nine, 2)
    assert q.over_capacity(nine, 2, 2)
    assert not q.over_capacity(nine, 3, 2)


@pytest.mark.parametrize(
    ("price", "budget", "edges", "most", "room"),
    [
        ([5, 1, 3], 4, 1, None, 2),
        ([5, 1, 3], 9, 1, None, 3),
        ([5, 1, 3], 9, 1, 2, 2),
        ([5, 6, 7], 4, 1, None, 0),
        ([2, 2, 2], 2, 2, None, 2),
        ([1, 1, 2], 2, 2, None, 3),
        ([0, 0], 0, 1, None, 2),
        ([10**15] * 3, 10**15, 2, None, 2),
        ([], 5, 2, None, 0),
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


def test_the_first_round_is_a_draw_by_the_seed() -> None:
    policy, view = RbcsFPolicy(), column_view(clients=30)
    draws = [policy.select(view, round_rng(s, 1, Purpose.SELECT)).pairs for s in range(60)]
    assert {len(d) for d in draws} == {8}
    assert len(np.unique(np.concatenate(draws))) == 30


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


def test_the_larger_v_the_faster_and_the_less_fair() -> None:
    seconds, rates = zip(
        *((run(TABLE[f"rbcs-f({v})"], 1, 120)[:2]) for v in (1, 20, 100)), strict=True
    )
    assert seconds[0] > seconds[1] > seconds[2]
    assert rates[0] > rates[1] >= rates[2]


@pytest.mark.parametrize(
    ("name", "tolerance"),
    [("random", 0.05), ("fedcs(3)", 0.05), ("rbcs-f(1)", 0.05), ("rbcs-f(5)", 0.05)],
)
def test_the_reference_table_in_short(name: str, tolerance: float) -> None:
    """The whole table, 500 rounds and 20 seeds, is `python -m bench.rbcs`."""
    entry = TABLE[name]
    seconds, rate, clients = np.mean([run(entry, seed, 200) for seed in range(3)], axis=0)
    assert entry.seconds is not None
    assert seconds == pytest.approx(entry.seconds, rel=tolerance)
    assert clients == pytest.approx(entry.clients or 8, rel=tolerance)
    if name == "rbcs-f(1)":
        assert rate == pytest.approx(0.147, abs=0.02)


def test_a_client_takes_its_fastest_edge_and_the_next_if_that_is_full() -> None:
    policy = RbcsFPolicy(clients_per_round=2, V=1.0)
    compute, rate = [1.0] * 4, [1e6, 4e6, 1e6, 4e6]
    view = column_view(edges_seen=2, compute=compute, upload_bps=rate)
    policy.learn(ended(view, [0, 2], tau_s=[20.0, 20.0]))
    assert choice(policy, view) == [1, 3]
    tight = column_view(edges_seen=2, budget=1, compute=compute, upload_bps=rate)
    assert choice(policy, tight) in ([0, 3], [1, 2])


def test_who_no_budget_pays_blocks_no_place() -> None:
    policy = RbcsFPolicy(clients_per_round=2, beta=0.3)
    view = column_view(price=[100, 1, 1], budget=10)
    for _ in range(20):
        policy.learn(ended(view, [1, 2]))
    selection = policy.select(view, round_rng(0, 1, Purpose.SELECT))
    assert sorted(selection.pairs.tolist()) == [1, 2]
    assert selection.bound[0] == Bound.EDGE_BUDGET


def test_what_does_not_fit_is_dropped_shortest_queue_first() -> None:
    policy = RbcsFPolicy(clients_per_round=3, beta=0.3)
    view = column_view(price=[6, 6, 6], budget=13)
    policy.learn(ended(view, [1]))
    selection = policy.select(view, round_rng(0, 2, Purpose.SELECT))
    assert sorted(selection.pairs.tolist()) == [0, 2]
    assert selection.notes["dropped"] == 1
    policy.learn(ended(view, selection.pairs.tolist()))
    assert policy.state()["queue"].tolist() == pytest.approx([0, 0.3, 0])


def test_too_large_a_share_is_a_configuration_error() -> None:
    view = column_view(clients=60)
    with pytest.raises(ParameterError) as caught:
        choice(RbcsFPolicy(beta=0.15, clients_per_round=8), view)
    assert caught.value.parameter == "beta"
    assert len(choice(RbcsFPolicy(beta=0.13, clients_per_round=8), view)) == 8


def test_who_fails_early_does_not_pass_for_fast() -> None:
    view = column_view(clients=3, deadline_s=10.0)
    policies: list[SelectionPolicy] = [
        RbcsFPolicy(clients_per_round=1, beta=0.0, V=1.0),
        FastestPolicy(clients_per_round=1),
    ]
    for policy in policies:
        for _ in range(5):
            feedback = ended(view, [0, 1, 2], tau_s=[0.1, 4.0, 5.0], x=[False, True, True])
            policy.learn(feedback)
        policy.learn(ended(view, []))
        assert choice(policy, view, 7) == [1]


def test_a_budget_below_the_share_is_a_configuration_error_too() -> None:
    view = column_view(clients=40, budget=5)
    with pytest.raises(ParameterError, match="of 40 clients a round and only 5 can be paid"):
        choice(RbcsFPolicy(beta=0.15), view)


def test_who_joins_a_live_run_does_not_end_it() -> None:
    policy = RbcsFPolicy(beta=0.13, clients_per_round=8)
    view = column_view(clients=60)
    first = policy.select(view, round_rng(0, 1, Purpose.SELECT))
    assert first.notes["over_capacity"] == 0
    policy.learn(ended(view, first.pairs.tolist()))
    more = column_view(clients=90)
    selection = policy.select(more, round_rng(0, 2, Purpose.SELECT))
    assert len(selection.pairs) == 8
    assert selection.notes["over_capacity"] == 1
