"""Rules that every selection policy obeys, whoever wrote it."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedagent_coordinator import policies
from fedagent_coordinator.books.records import pack, unpack_arrays
from fedagent_coordinator.errors import InvalidViewError
from fedagent_coordinator.policies import Bound, Purpose, round_rng
from fedagent_coordinator.policies.base import NOT_FEATURES, State
from fedagent_coordinator.policies.selection import check_selection, spent_per_edge
from fedagent_protocol.errors import ParameterError
from tests.fakes.rounds import FEATURES, random_feedback, random_view

from . import SEED, live

every_policy = pytest.mark.parametrize("name", policies.names())


def same(left: State, right: State) -> bool:
    """Whether two states are the same to the bit."""
    return pack(left) == pack(right)


@every_policy
@settings(max_examples=30)
@given(
    seed=st.integers(0, 2**32),
    clients=st.integers(0, 15),
    edges=st.integers(0, 4),
    budget=st.sampled_from([0, 1, 400_000, 3_500_000, 10**15]),
    seen=st.floats(0, 1),
)
def test_constraints_hold_whatever_the_round(
    name: str, seed: int, clients: int, edges: int, budget: int, seen: float
) -> None:
    policy = policies.create(name)
    rng = np.random.default_rng(seed)
    for t in (1, 2, 3):
        view = random_view(rng, t, clients=clients, edges=edges, budget=budget, seen=seen)
        try:
            selection = policy.select(view, round_rng(seed, t, Purpose.SELECT))
        except ParameterError as refusal:
            # A share that a run's first round cannot pay is a wrong configuration.
            assert (t, refusal.parameter) == (1, "beta")
            return
        check_selection(view, selection.pairs)
        policy.learn(random_feedback(rng, view, selection))


@every_policy
def test_select_changes_no_state_and_does_not_touch_the_view(name: str) -> None:
    policy = policies.create(name)
    live("policies", policy, range(1, 10), clients=12)
    view = random_view(np.random.default_rng(5), 10)
    for column in (view.pair_features, view.client_price, view.edge_budget, view.pair_client):
        column.flags.writeable = False
    before = {key: value.copy() for key, value in policy.state().items()}
    first = policy.select(view, round_rng(SEED, 10, 0))
    second = policy.select(view, round_rng(SEED, 10, 0))
    assert first.pairs.tolist() == second.pairs.tolist()
    assert same(before, policy.state())


@pytest.mark.parametrize(
    ("name", "params"),
    [
        *((name, {}) for name in policies.names()),
        ("bp-ucb", {"clients_per_round": 3, "slot_rounds": 2, "mu": 0.2}),
        ("fair", {"policy": "fastest", "beta": 0.01, "freeze_after": 4}),
        ("quick-init-ucb", {"clients_per_round": 3, "slot_rounds": 2, "mu": 0.1}),
        ("random", {"slot_rounds": 4}),
        ("rbcs-f", {"V": 1.0, "clients_per_round": 3, "beta": 0.01, "freeze_after": 3}),
        ("ucb", {"clients_per_round": 2, "slot_rounds": 3, "mu": 0.1}),
    ],
)
def test_restored_in_any_round_it_continues_bit_equal(name: str, params: dict[str, Any]) -> None:
    original, other = (policies.create(name, **params) for _ in range(2))
    for t in range(1, 25):
        rng = np.random.default_rng((SEED, t))
        view = random_view(rng, t, clients=8 + t // 5)
        restored = policies.create(name, **params)
        restored.restore(unpack_arrays(pack(other.state())))
        selection = original.select(view, round_rng(SEED, t, 0))
        assert (
            restored.select(view, round_rng(SEED, t, 0)).pairs.tolist() == selection.pairs.tolist()
        )
        feedback = random_feedback(rng, view, selection)
        if rng.random() < 0.3:
            unknown = np.full(len(view.client_price), np.nan)
            feedback = replace(feedback, opinions=unknown)
        for policy in (original, restored):
            policy.learn(feedback)
        other = restored
        assert same(original.state(), restored.state())


@every_policy
def test_one_client_that_fits_is_chosen_sooner_or_later(name: str) -> None:
    world = {"clients": 1, "edges": 1, "seen": 1.0, "available": 1.0}
    assert [0] in live("policies", policies.create(name), range(1, 10), **world)


@every_policy
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_feature_that_is_not_finite_is_named(name: str, bad: float) -> None:
    policy = policies.create(name)
    for feature in sorted(policy.needs - NOT_FEATURES):
        view = random_view(np.random.default_rng(1), 1)
        features = view.pair_features.copy()
        features[2, FEATURES.index(feature)] = bad
        view = replace(view, pair_features=features)
        with pytest.raises(InvalidViewError, match="first in 2") as caught:
            policy.select(view, round_rng(SEED, 1, 0))
        assert caught.value.column == f"feature {feature!r}"
        kept = view.take(view.reported(policy.needs))
        assert len(kept.pair_client) == len(view.pair_client) - 1
        check_selection(kept, policy.select(kept, round_rng(SEED, 1, 0)).pairs)


@every_policy
def test_a_feature_that_is_missing_is_named(name: str) -> None:
    policy = policies.create(name)
    needed = policy.needs - NOT_FEATURES
    if not needed:
        return
    view = random_view(np.random.default_rng(1), 1)
    bare = replace(view, feature_names=(), pair_features=view.pair_features[:, :0])
    with pytest.raises(InvalidViewError) as caught:
        policy.select(bare, round_rng(SEED, 1, 0))
    assert caught.value.column in needed


@every_policy
def test_why_names_the_constraint_that_bound(name: str) -> None:
    policy = policies.create(name)
    view = random_view(np.random.default_rng(3), 1)
    selection = policy.select(view, round_rng(SEED, 1, 0))
    chosen = selection.bound == Bound.CHOSEN
    assert sorted(selection.pairs.tolist()) == np.flatnonzero(chosen).tolist()
    assert np.array_equal(selection.bound == Bound.UNAVAILABLE, ~view.eligible)
    busy = set(view.pair_client[selection.pairs].tolist())
    for pair in np.flatnonzero(selection.bound == Bound.CLIENT_TAKEN).tolist():
        assert int(view.pair_client[pair]) in busy
    left = view.edge_budget - np.array(spent_per_edge(view, selection.pairs))
    for pair in np.flatnonzero(selection.bound == Bound.EDGE_BUDGET).tolist():
        assert view.pair_price[pair] > left[view.pair_edge[pair]]
