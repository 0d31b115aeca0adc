"""`cocs` and COCS to the letter: constants, two phases, and the failure they lead to."""

import math
from typing import Any

import numpy as np
import pytest

from fedagent_coordinator.policies import (
    RoundView,
    parameters,
    round_rng,
)
from fedagent_coordinator.policies.cocs import CocsPolicy
from fedagent_testbed.study import load_recipe, play
from tests.fakes.rounds import column_view, ended


def literal(**params: Any) -> CocsPolicy:
    """COCS as the recipes' `cocs-paper`."""
    paper: dict[str, Any] = load_recipe("cocs-decisions").policies["cocs-paper"]
    given = {key: value for key, value in paper.items() if key not in {"base", "h"}}
    return CocsPolicy(**{**given, **params})


WIDE: dict[str, Any] = {"download_bps": [1e6, 1e3, 1e9, 1e5], "compute": [3.0, 9.0, 0.5, 1.0]}


def test_bounds_follow_all_pairs_that_were_seen_not_only_the_played() -> None:
    policy = CocsPolicy()
    policy.learn(ended(column_view(**WIDE), [0]))
    state = policy.state()
    assert state["low"] == pytest.approx([3.0, 0.5], rel=1e-6)
    assert state["high"] == pytest.approx([9.0, 9.0], rel=1e-6)
    policy.learn(ended(column_view(download_bps=[1e2, 1e12], compute=[2.0, 2.0]), []))
    assert policy.state()["low"][0] == pytest.approx(2.0)
    assert policy.state()["high"][0] == pytest.approx(12.0)


def test_the_default_explores_until_cells_have_0_005_t_to_the_z_ln_t() -> None:
    assert parameters("cocs")["k_scale"] == 0.005
    notes = CocsPolicy().select(column_view(900, **WIDE), np.random.default_rng(0)).notes
    assert notes["k"] == pytest.approx(0.005 * 900 ** (2 / 5) * math.log(900))
    assert notes["k"] < 1


def test_the_papers_constants_never_let_it_leave_exploration() -> None:
    """ALGORITHMS section 3 (b): it explores in every round and is `cheapest`."""
    recipe = load_recipe("cocs-decisions", ["rounds.count=150"])
    cocs, cheapest, random = (
        play(recipe, name, 1) for name in ("cocs-paper", "cheapest", "random")
    )
    assert cocs["explored"].all()
    assert cocs["wins"].sum() == pytest.approx(cheapest["wins"].sum(), rel=0.1)
    assert cheapest["wins"].sum() > 1.1 * random["wins"].sum()


def test_h_follows_the_formula() -> None:
    cells = {(1000, 2): 4, (1, 2): 1, (32, 2): 2, (33, 2): 3, (1000, 4): 3}
    for (horizon, dimensions), h in cells.items():
        policy = literal(horizon=horizon, features=[f"f{i}" for i in range(dimensions)])
        assert policy._h == h == math.ceil(round(horizon ** (1 / (3 + dimensions)), 9))


def _one_pair(t: int, value: float) -> RoundView:
    return column_view(t, budget=1, x=[value])


def test_a_pair_is_explored_until_its_counter_passes_k() -> None:
    """By hand: D=1, z=1/2; K(1)=0, K(4)=2.77, K(9)=6.59."""
    policy = literal(horizon=1, features=["x"])
    notes = []
    for t in (1, 2, 4, 9):
        view = _one_pair(t, 0.5)
        selection = policy.select(view, round_rng(0, t, 0))
        notes.append((selection.notes["explore"], round(selection.notes["k"], 2)))
        policy.learn(ended(view, [0], x=[True]))
    assert notes == [(1.0, 0.0), (0.0, 0.98), (1.0, 2.77), (1.0, 6.59)]


def test_every_observation_counts_and_a_cell_that_always_fails_is_left() -> None:
    policy = literal(horizon=1, features=["x"])
    for x in (True, False, False, True):
        policy.learn(ended(_one_pair(1, 0.5), [0], x=[x]))
    selection = policy.select(_one_pair(2, 0.5), round_rng(0, 2, 0))
    assert selection.scores.tolist() == [0.5]
    assert selection.pairs.tolist() == [0]
    failing = literal(horizon=1, features=["x"])
    for _ in range(4):
        failing.learn(ended(_one_pair(1, 0.5), [0], x=[False]))
    assert failing.select(_one_pair(2, 0.5), round_rng(0, 2, 0)).pairs.tolist() == []


def test_by_default_a_cell_that_always_failed_is_tried_again() -> None:
    policy = CocsPolicy(horizon=1, features=["x"])
    for _ in range(4):
        policy.learn(ended(_one_pair(1, 0.5), [0], x=[False]))
    selection = policy.select(_one_pair(2, 0.5), round_rng(0, 2, 0))
    assert selection.scores.tolist() == [pytest.approx(1 / 6)]
    assert selection.pairs.tolist() == [0]


@pytest.mark.parametrize("policy", [CocsPolicy(logs=False), literal()])
def test_a_feature_beyond_every_bound_is_in_the_last_cell(policy: CocsPolicy) -> None:
    """Its place is no integer: cast before it is clipped, it would be in the first cell."""
    policy.learn(ended(column_view(download_bps=[0.0, 1.0], compute=[0.0, 1.0]), []))
    for huge in (1.0, 1e30):
        policy.learn(ended(column_view(download_bps=[huge], compute=[0.0]), [0], x=[True]))
        if huge == 1.0:
            last = policy.state()["keys"].tolist()
            policy.restore({**policy.state(), "high": np.ones(2)})
    assert policy.state()["keys"].tolist() == last
    assert policy.state()["counts"].tolist() == [2]


def test_contexts_fall_into_cells_by_the_bounds_seen_so_far() -> None:
    policy = literal(h=2, features=["x"])
    for value in (0.0, 10.0):
        policy.learn(ended(_one_pair(1, value), [], x=[]))
    low, high = _one_pair(1, 4.9), _one_pair(1, 5.1)
    policy.learn(ended(low, [0], x=[False]))
    policy.learn(ended(high, [0], x=[True]))
    policy.learn(ended(_one_pair(1, 99.0), [0], x=[True]))  # beyond the bounds: the last cell
    assert policy.state()["counts"].tolist() == [1, 2]
    assert policy.state()["successes"].tolist() == [0, 2]
    assert policy.state()["high"].tolist() == [99.0]


def test_exploration_comes_first_and_the_rest_is_filled_by_p() -> None:
    """Pair 0 is known and perfect, pair 1 known and bad, pair 2 new; the budget buys two."""
    view = column_view(2, budget=2, x=[0.0, 0.0, 0.0])
    policy = literal(horizon=1, features=["x"])
    for x in ([True, True], [True, False], [True, False]):
        policy.learn(ended(view, [0, 1], x=x))
    selection = policy.select(view, round_rng(0, 2, 0))
    assert selection.pairs.tolist() == [2, 0]
    assert selection.notes["under_explored"] == 1.0
