"""Why each pair is in or out, who can be paid at all, and near-equals that are tried by chance."""

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fedagent_coordinator import policies
from fedagent_coordinator.core.decision import affordable, solved
from fedagent_coordinator.policies import Bound, Purpose, RoundView, Selection, explained, round_rng
from fedagent_coordinator.policies.exploration import GIVEN_UP, SWAPPED, explored
from fedagent_coordinator.policies.selection import check_selection
from fedagent_coordinator.policies.sets.arms import candidates
from tests.fakes.rounds import random_view


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


DRAWS = 4000


def chosen(view: RoundView, name: str = "linucb", free_micro: int | None = None) -> Selection:
    return solved(policies.create(name), view, seed=3, free_micro=free_micro)


def scored(view: RoundView, seed: int, budget_share: float) -> Selection:
    """A selection that leaves some that fit out, by scores of all signs, some of them unknown."""
    rng = np.random.default_rng(seed)
    selection = chosen(view, "random")
    keep = rng.random(len(selection.pairs)) < budget_share
    scores = rng.normal(1.0, 1.0, len(view.pair_client))
    scores[rng.random(len(scores)) < 0.1] = np.nan
    scores[rng.random(len(scores)) < 0.1] = np.inf
    return replace(selection, pairs=selection.pairs[keep], scores=scores)


rounds = st.builds(
    lambda seed, clients, edges, budget: random_view(
        np.random.default_rng(seed), 1, clients=clients, edges=edges, budget=budget
    ),
    st.integers(0, 2**32),
    st.integers(1, 15),
    st.integers(1, 4),
    st.sampled_from([0, 1_200_000, 3_500_000, 10**15]),
)


@given(
    view=rounds,
    seed=st.integers(0, 2**32),
    share=st.floats(0.01, 1),
    bound=st.sampled_from([0.0, 0.2, 1.0, 1e6]),
    spare=st.integers(0, 3_000_000) | st.none(),
)
def test_constraints_hold_whatever_is_swapped(
    view: RoundView, seed: int, share: float, bound: float, spare: int | None
) -> None:
    selection = scored(view, seed, 0.7)
    cost = int(view.pair_price[selection.pairs].sum())
    free = None if spare is None else cost + spare
    found = explored(
        view, selection, np.random.default_rng(seed), share=share, bound=bound, free_micro=free
    )
    check_selection(view, found.pairs)
    assert len(affordable(view, found, free).pairs) == len(selection.pairs)
    assert (view.pair_edge[found.pairs] == view.pair_edge[selection.pairs]).all()
    assert found.propensities is not None
    assert np.isclose(found.propensities.sum(), len(selection.pairs))
    assert found.propensities.min(initial=0) >= -1e-12
    assert (found.propensities[found.pairs] > 0).all()
    assert (found.pairs != selection.pairs).sum() == found.notes[SWAPPED]


@given(view=rounds, seed=st.integers(0, 2**32))
@settings(max_examples=8)
def test_propensities_are_the_frequencies_over_seeds(view: RoundView, seed: int) -> None:
    selection = scored(view, seed, 0.7)
    counts, given_up = np.zeros(len(view.pair_client)), 0.0
    scores = np.where(np.isfinite(selection.scores), selection.scores, 0.0)
    for draw in range(DRAWS):
        rng = round_rng(seed, draw, Purpose.EXPLORE)
        found = explored(view, selection, rng, share=0.6, bound=1.0)
        counts[found.pairs] += 1
        given_up += float((scores[selection.pairs] - scores[found.pairs]).sum()) / DRAWS
    assert found.propensities is not None
    # 15 pairs a round, a few rounds: five standard deviations are never seen.
    error = 5 * np.sqrt(found.propensities * (1 - found.propensities) / DRAWS) + 1e-9
    assert (np.abs(counts / DRAWS - found.propensities) <= error).all()
    assert abs(given_up - found.notes[GIVEN_UP]) <= 0.3


@given(view=rounds, seed=st.integers(0, 2**32), bound=st.sampled_from([0.0, 0.1, 0.5]))
def test_only_near_equals_are_ever_taken(view: RoundView, seed: int, bound: float) -> None:
    selection = scored(view, seed, 0.7)
    found = explored(view, selection, np.random.default_rng(seed), share=1.0, bound=bound)
    for was, now in zip(selection.pairs.tolist(), found.pairs.tolist(), strict=True):
        mine, its = selection.scores[was], selection.scores[now]
        if was != now and np.isfinite(mine):
            assert its >= mine - bound * abs(mine)
