"""Why each pair is in or out, and who can be paid at all, pair by pair as they are defined."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedagent_coordinator.policies import Bound, RoundView, explained
from fedagent_coordinator.policies.sets.arms import candidates


@st.composite
def towns(draw: st.DrawFn) -> RoundView:
    """Some of the pairs of up to five clients and three edges; money may be short anywhere."""
    clients, edges = draw(st.integers(0, 5)), draw(st.integers(0, 3))
    every = [(client, edge) for client in range(clients) for edge in range(edges)]
    pairs = draw(st.lists(st.sampled_from(every), unique=True)) if every else []
    prices = draw(st.lists(st.integers(0, 3), min_size=clients, max_size=clients))
    budgets = draw(st.lists(st.integers(0, 6), min_size=edges, max_size=edges))
    there = draw(st.lists(st.booleans(), min_size=clients, max_size=clients))
    return RoundView(
        round=1,
        pair_client=np.array([client for client, _ in pairs], dtype=np.int32),
        pair_edge=np.array([edge for _, edge in pairs], dtype=np.int32),
        pair_features=np.zeros((len(pairs), 0), dtype=np.float32),
        feature_names=(),
        client_price=np.array(prices, dtype=np.int64),
        client_available=np.array(there, dtype=np.bool_),
        edge_budget=np.array(budgets, dtype=np.int64),
    )


def literal(view: RoundView, chosen: list[int]) -> list[Bound]:
    """What `Bound` says of each pair; the last reason that holds is the one."""
    left = view.edge_budget.tolist()
    for pair in chosen:
        left[view.pair_edge[pair]] -= int(view.client_price[view.pair_client[pair]])
    taken = {int(view.pair_client[pair]) for pair in chosen}
    bounds = []
    for pair, (client, edge) in enumerate(
        zip(view.pair_client.tolist(), view.pair_edge.tolist(), strict=True)
    ):
        bound = Bound.RANK
        if view.client_price[client] > max(left[edge], -1):
            bound = Bound.EDGE_BUDGET
        if client in taken:
            bound = Bound.CLIENT_TAKEN
        if not view.client_available[client]:
            bound = Bound.UNAVAILABLE
        bounds.append(Bound.CHOSEN if pair in chosen else bound)
    return bounds


@given(view=towns(), data=st.data())
def test_every_pair_is_told_which_constraint_kept_it_out(
    view: RoundView, data: st.DataObject
) -> None:
    every = range(len(view.pair_client))
    chosen = data.draw(st.lists(st.sampled_from(every), unique=True)) if every else []
    selection = explained(view, np.array(chosen, dtype=np.int64))
    assert selection.bound.tolist() == literal(view, chosen)


@given(view=towns())
def test_candidates_are_there_and_some_edge_can_pay_them(view: RoundView) -> None:
    payable = {
        client
        for client, edge in zip(view.pair_client.tolist(), view.pair_edge.tolist(), strict=True)
        if view.client_available[client] and view.client_price[client] <= view.edge_budget[edge]
    }
    assert np.flatnonzero(candidates(view)).tolist() == sorted(payable)
