"""RBCS-F as a policy, and the reference table of ALGORITHMS section 4 at a short horizon."""

import numpy as np
import pytest

from bench.rbcs import TABLE, run
from fedagent_coordinator.errors import MissingFeatureError
from fedagent_coordinator.policies import Bound, Purpose, SelectionPolicy, round_rng
from fedagent_coordinator.policies.base import TRUTH
from fedagent_coordinator.policies.baselines import FedCsPolicy
from fedagent_coordinator.policies.exchange_time import FastestPolicy
from fedagent_coordinator.policies.rbcs_f import RbcsFPolicy
from fedagent_coordinator.policies.selection import check_selection
from fedagent_protocol.errors import ParameterError
from tests.fakes.rounds import column_view, ended


def choice(policy: SelectionPolicy, view: object, t: int = 1) -> list[int]:
    pairs = policy.select(view, round_rng(0, t, Purpose.SELECT)).pairs  # type: ignore[arg-type]
    check_selection(view, pairs)  # type: ignore[arg-type]
    return sorted(pairs.tolist())


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
    with pytest.raises(ParameterError, match="6 clients a round and only 5 can be paid"):
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


def test_fastest_tries_everybody_and_then_keeps_the_fastest() -> None:
    policy, view = FastestPolicy(clients_per_round=2), column_view(clients=6)
    tau = np.array([9.0, 1.0, 8.0, 7.0, 2.0, 6.0])
    played = []
    for t in range(1, 30):
        played.append(choice(policy, view, t))
        policy.learn(ended(view, played[-1], tau_s=tau[played[-1]].tolist()))
    assert sorted(client for pairs in played[:3] for client in pairs) == list(range(6))
    assert played[-1] == [1, 4]
    again = FastestPolicy(clients_per_round=2)
    again.restore(policy.state())
    assert choice(again, view, 30) == [1, 4]


def test_fedcs_takes_all_that_are_expected_in_time() -> None:
    view = column_view(clients=4, tau_s=[2.9, 3.0, 0.5, 1.0], available=[True, True, True, False])
    assert choice(FedCsPolicy(deadline_s=3.0), view) == [0, 2]
    tight = column_view(clients=4, tau_s=[2.9, 3.0, 0.5, 1.0], budget=1)
    assert choice(FedCsPolicy(deadline_s=3.0), tight) == [2]
    with pytest.raises(MissingFeatureError) as caught:
        choice(FedCsPolicy(), column_view(clients=4))
    assert caught.value.feature == TRUTH


def test_fedcs_takes_the_faster_of_two_edges() -> None:
    view = column_view(clients=2, edges_seen=2, tau_s=[2.0, 1.0, 1.0, 9.0])
    assert choice(FedCsPolicy(), view) == [1, 2]
