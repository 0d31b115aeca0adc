"""`cocs` and COCS to the letter: constants, two phases, and the failure they lead to."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fedagent_coordinator.policies import (
    Feedback,
    Purpose,
    RoundView,
    Selection,
    SelectionPolicy,
    create,
    parameters,
    round_rng,
)
from fedagent_coordinator.policies.cocs import CocsPaperPolicy, CocsPolicy
from fedagent_coordinator.solvers.density import DensitySolver
from tests.fakes.rounds import column_view, ended, random_feedback

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


def test_a_cell_that_was_played_once_is_explored_no_more_by_default() -> None:
    policy = CocsPolicy()
    first = column_view(**WIDE)
    policy.learn(ended(first, []))
    policy.learn(ended(first, [0, 1, 2, 3]))
    selection = policy.select(column_view(900, **WIDE), np.random.default_rng(0))
    assert selection.notes["explore"] == 0
    assert selection.scores.tolist() == [1.0] * 4


N, M = 20, 2


def radio_view(
    rng: np.random.Generator, t: int, price: np.ndarray[tuple[int], np.dtype[np.float64]]
) -> RoundView:
    """A small COCS city: rate and compute drawn per round, cost = price x compute."""
    y = rng.uniform(2, 4, N)
    client = np.repeat(np.arange(N, dtype=np.int32), M)
    rate = rng.exponential(1.0, N * M) * 1e6
    return RoundView(
        round=t,
        pair_client=client,
        pair_edge=np.tile(np.arange(M, dtype=np.int32), N),
        pair_features=np.column_stack((rate, y[client])).astype(np.float32),
        feature_names=("download_bps", "compute"),
        client_price=(price * y * 1e6).astype(np.int64),
        client_available=np.ones(N, dtype=np.bool_),
        edge_budget=np.full(M, 3_500_000, dtype=np.int64),
    )


def outcome(rng: np.random.Generator, view: RoundView, selection: Selection) -> Feedback:
    """In time if the download is fast enough and chance, the unknown upload, agrees."""
    feedback = random_feedback(rng, view, selection)
    rate = view.feature("download_bps")[selection.pairs]
    x = (rate > 3e5) & (rng.random(len(selection.pairs)) < 0.9)
    return replace(feedback, X=x, used=x, censored=~x, void=~x)


def live(policy: SelectionPolicy, seed: int, rounds: int) -> tuple[int, list[Selection]]:
    """Successes and selections in a seeded world."""
    world = np.random.default_rng(seed)
    price = world.uniform(0.5, 2, N)
    successes, selections = 0, []
    for t in range(1, rounds + 1):
        rng = round_rng(seed, t, Purpose.ENVIRONMENT)
        view = radio_view(rng, t, price)
        selection = policy.select(view, round_rng(seed, t, Purpose.SELECT))
        feedback = outcome(rng, view, selection)
        policy.learn(feedback)
        successes += int(feedback.X.sum())
        selections.append(selection)
    return successes, selections


def test_the_papers_constants_never_let_it_leave_exploration() -> None:
    """ALGORITHMS section 3 (b): it explores in every round and is `cheapest`."""
    plain = DensitySolver(max_visits=0)
    cocs, explored = live(create("cocs-paper", solver=plain), 1, 150)
    cheapest, reference = live(create("cheapest"), 1, 150)
    assert [s.notes["explore"] for s in explored] == [1.0] * 150
    assert all(s.notes["under_explored"] > 0 for s in explored)
    ours, theirs = (sum(len(s.pairs) for s in live_) for live_ in (explored, reference))
    assert ours == pytest.approx(theirs, rel=0.03)
    assert cocs == pytest.approx(cheapest, rel=0.1)


def test_cheapest_beats_random_and_both_are_reproducible() -> None:
    ratios = []
    for seed in range(20):
        cheapest, _ = live(create("cheapest"), seed, 20)
        random, _ = live(create("random"), seed, 20)
        ratios.append(cheapest / random)
    assert np.mean(ratios) > 1.1
    assert live(create("random"), 3, 5)[0] == live(create("random"), 3, 5)[0]


def test_h_follows_the_formula() -> None:
    cells = {(1000, 2): 4, (1, 2): 1, (32, 2): 2, (33, 2): 3, (1000, 4): 3}
    for (horizon, dimensions), h in cells.items():
        policy = CocsPaperPolicy(horizon=horizon, features=[f"f{i}" for i in range(dimensions)])
        assert policy._h == h == math.ceil(round(horizon ** (1 / (3 + dimensions)), 9))


def _one_pair(t: int, value: float) -> RoundView:
    return column_view(t, budget=1, x=[value])


def test_a_pair_is_explored_until_its_counter_passes_k() -> None:
    """By hand: D=1, z=1/2; K(1)=0, K(4)=2.77, K(9)=6.59."""
    policy = CocsPaperPolicy(horizon=1, features=["x"])
    notes = []
    for t in (1, 2, 4, 9):
        view = _one_pair(t, 0.5)
        selection = policy.select(view, round_rng(0, t, 0))
        notes.append((selection.notes["explore"], round(selection.notes["k"], 2)))
        policy.learn(ended(view, [0], x=[True]))
    assert notes == [(1.0, 0.0), (0.0, 0.98), (1.0, 2.77), (1.0, 6.59)]


def test_every_observation_counts_and_a_cell_that_always_fails_is_left() -> None:
    policy = CocsPaperPolicy(horizon=1, features=["x"])
    for x in (True, False, False, True):
        policy.learn(ended(_one_pair(1, 0.5), [0], x=[x]))
    selection = policy.select(_one_pair(2, 0.5), round_rng(0, 2, 0))
    assert selection.scores.tolist() == [0.5]
    assert selection.pairs.tolist() == [0]
    failing = CocsPaperPolicy(horizon=1, features=["x"])
    for _ in range(4):
        failing.learn(ended(_one_pair(1, 0.5), [0], x=[False]))
    assert failing.select(_one_pair(2, 0.5), round_rng(0, 2, 0)).pairs.tolist() == []


def test_contexts_fall_into_cells_by_the_bounds_seen_so_far() -> None:
    policy = CocsPaperPolicy(h=2, features=["x"])
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
    policy = CocsPaperPolicy(horizon=1, features=["x"])
    for x in ([True, True], [True, False], [True, False]):
        policy.learn(ended(view, [0, 1], x=x))
    selection = policy.select(view, round_rng(0, 2, 0))
    assert selection.pairs.tolist() == [2, 0]
    assert selection.notes["under_explored"] == 1.0
