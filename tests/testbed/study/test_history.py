"""Who is ordered, held against who could deliver."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from fedagent_coordinator.policies import RoundView, Truth
from fedagent_testbed.study import compare, load_recipe
from fedagent_testbed.study.history import Coverage
from tests.fakes.rounds import column_view


def seen(chance: Sequence[float], *, price: int = 1) -> RoundView:
    """Clients with one pair each, of these chances, each of which the edge can pay."""
    n = len(chance)
    view = column_view(clients=n, edges_seen=1)
    return replace(
        view,
        client_price=np.full(n, price, dtype=np.int64),
        truth=Truth(arrives=np.ones(n, np.bool_), chance=np.array(chance, float), tau_s=np.ones(n)),
    )


def covered(rounds: Sequence[tuple[Sequence[float], Sequence[int]]], price: int = 1) -> Coverage:
    coverage = Coverage()
    for chance, ordered in rounds:
        coverage.count(seen(chance, price=price), np.array(ordered, dtype=np.int32))
    return coverage


def test_orders_of_who_has_no_chance_count_after_twenty_rounds() -> None:
    rounds = [([0.0, 0.5], [0] if t <= 20 or t == 25 else [1]) for t in range(1, 31)]
    assert covered(rounds).never_rate == pytest.approx(0.1)
    assert covered(rounds[:20]).never_rate is None
    assert covered([([0.5, 0.5], [0])] * 30).never_rate is None


@pytest.mark.parametrize(("at", "rounds"), [(0, 0), (3, 3), (None, 10)])
def test_back_is_the_first_order_after_healing(at: int | None, rounds: int) -> None:
    ill = [([0.0, 0.5], [1])] * 30
    well = [([0.5, 0.5], [0] if t == at else [1]) for t in range(10)]
    assert covered([*ill, *well]).back_rounds == rounds
    assert covered([*ill, *well], price=10**12).back_rounds == 0
    assert covered(ill).back_rounds is None


def test_left_out_is_of_those_that_always_deliver_and_can_be_paid() -> None:
    rounds = [([1.0, 1.0, 0.9], [0] if t % 7 == 0 else [1]) for t in range(30)]
    assert covered(rounds).left_out == 6
    assert covered([*rounds, ([0.9, 1.0, 0.9], [1])]).left_out == 1
    assert covered(rounds, price=10**12).left_out is None
    assert not covered(rounds, price=10**12).payable.any()


def test_the_smallest_rate_is_of_those_that_can_be_paid() -> None:
    """At the defaults of both recipes: it was 0 whoever decided, by `min(initial=0.0)`."""
    fair = compare(load_recipe("rbcs-f-numeric", ["rounds.count=100"]), ["random"], seeds=1)
    assert fair.figures("random")["min_rate"].mean == pytest.approx(0.15, abs=0.07)
    result = compare(load_recipe("cocs-decisions", ["rounds.count=200"]), ["random"], seeds=1)
    history = result.histories["random"][0]
    assert history.coverage is not None
    payable = history.coverage.payable
    assert 0 < payable.sum() < 50
    assert not history.counts[~payable].any()
    assert history.min_rate == history.rates()[payable].min()
