"""What every placement keeps: the budget, the stop, chance by seed, and its state."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedagent_coordinator.errors import InvalidViewError
from fedagent_coordinator.placement.base import (
    FixedPlacement,
    MinCostPlacement,
    MinTransPlacement,
    Placement,
    PlacementPolicy,
    PlacementView,
    RandomPlacement,
)
from fedagent_coordinator.placement.budgeted_ucb import (
    BudgetedUcbPaperPlacement,
    BudgetedUcbPlacement,
)

from .world import Run, play, view

BANDITS: dict[str, Callable[[], PlacementPolicy]] = {
    "budgeted-ucb": BudgetedUcbPlacement,
    "budgeted-ucb-paper": BudgetedUcbPaperPlacement,
    "literal": lambda: BudgetedUcbPaperPlacement(literal=True),
}
CHOOSERS = BANDITS | {
    "min-trans": MinTransPlacement,
    "min-cost": MinCostPlacement,
    "random": RandomPlacement,
}
ALL = CHOOSERS | {"fixed": FixedPlacement}
SEEDS = st.integers(0, 2**32)


def churn(seed: int, edges: int) -> Callable[[int, int], PlacementView]:
    """Edges come and go, rents move, new edges are seen over time; some rounds have none."""

    def of(t: int, left: int) -> PlacementView:
        chance = np.random.default_rng((seed, t))
        m = min(edges, t // 3)
        return PlacementView(
            round=t,
            edge_live=chance.random(m) < 0.7,
            edge_rent=chance.integers(0, 1000, m),
            budget_micro=left,
            edge_transfer_s=np.where(chance.random(m) < 0.2, np.nan, chance.random(m)),
        )

    return of


def noisy(seed: int) -> Callable[[int, int], float | None]:
    def psi(t: int, edge: int) -> float | None:
        chance = np.random.default_rng((seed, t, edge))
        return None if chance.random() < 0.1 else float(edge + chance.random())

    return psi


def steady(name: str, rent: list[int], *, budget: int, rounds: int, seed: int = 1) -> Run:
    """A bandit among edges that stay, and ask the same in every round."""

    def views(t: int, left: int) -> PlacementView:
        return view(t, rent, left)

    return play(BANDITS[name](), views, noisy(seed), budget=budget, rounds=rounds, seed=seed)


@pytest.mark.parametrize("name", ALL)
@settings(max_examples=40)
@given(seed=SEEDS)
def test_never_over_budget_only_live_edges_and_the_stop_is_exact(name: str, seed: int) -> None:
    def check(seen: PlacementView, placement: Placement) -> None:
        fits = [
            e
            for e in range(len(seen.edge_live))
            if seen.edge_live[e] and seen.edge_rent[e] <= seen.budget_micro
        ]
        if placement.edge is not None:
            assert placement.edge in fits
            assert placement.rent_micro == seen.edge_rent[placement.edge]
        elif name == "fixed":
            here = bool(len(seen.edge_live)) and bool(seen.edge_live[0])
            assert placement.exhausted == (here and 0 not in fits)
        else:
            assert not fits
            assert placement.exhausted == bool(seen.edge_live.any())

    run = play(
        ALL[name](), churn(seed, 6), noisy(seed), budget=5_000, rounds=60, seed=seed, watch=check
    )
    assert run.left == 5_000 - sum(p.rent_micro for p in run.placements)
    assert run.left >= 0


@pytest.mark.parametrize("name", ALL)
@settings(max_examples=25)
@given(seed=SEEDS, cut=st.integers(1, 40))
def test_a_restored_policy_continues_bit_equal(name: str, seed: int, cut: int) -> None:
    views, psi = churn(seed, 6), noisy(seed)
    whole = ALL[name]()
    head = play(whole, views, psi, budget=20_000, rounds=cut, seed=seed)
    fresh = ALL[name]()
    fresh.restore(whole.state())
    if head.stopped:
        return
    tails = [
        play(p, views, psi, budget=head.left, rounds=40, first=cut + 1, seed=seed)
        for p in (whole, fresh)
    ]
    assert tails[0].placements == tails[1].placements
    for key, column in whole.state().items():
        assert column.tobytes() == fresh.state()[key].tobytes()


@pytest.mark.parametrize("name", BANDITS)
@settings(max_examples=40)
@given(seed=SEEDS, rent=st.lists(st.integers(1, 100), min_size=1, max_size=8))
def test_every_edge_is_tried_once_if_a_quarter_pays_for_it(
    name: str, seed: int, rent: list[int]
) -> None:
    run = steady(name, rent, budget=4 * sum(rent), rounds=len(rent), seed=seed)
    assert sorted(e for e in run.edges if e is not None) == list(range(len(rent)))


@pytest.mark.parametrize("name", BANDITS)
@settings(max_examples=40)
@given(seed=SEEDS, rent=st.lists(st.integers(50, 100), min_size=4, max_size=8))
def test_otherwise_a_random_subset_starts_within_a_quarter(
    name: str, seed: int, rent: list[int]
) -> None:
    budget = 4 * sum(rent) - 1
    run = steady(name, rent, budget=budget, rounds=len(rent) + 1, seed=seed)
    tried = {e for e in run.edges if e is not None}
    assert 0 < len(tried) < len(rent)
    assert set(run.edges[: len(tried)]) == tried
    assert 4 * sum(rent[e] for e in tried) <= budget
    untried = set(range(len(rent))) - tried
    assert all(4 * (sum(rent[e] for e in tried) + rent[u]) > budget for u in untried)


@pytest.mark.parametrize("name", BANDITS)
def test_an_untried_edge_replaces_tried_ones_that_are_away_and_the_cheapest_starts(
    name: str,
) -> None:
    policy = BANDITS[name]()
    placement = policy.choose(view(1, [70, 60, 80], 100), np.random.default_rng(0))
    assert placement == Placement(edge=1, rent_micro=60)
    policy.learn(Placement(edge=0, rent_micro=50), 1.0)
    both = policy.choose(view(2, [50, 50], 50), np.random.default_rng(0))
    assert both.edge == 0
    alone = policy.choose(view(2, [50, 50], 50, live=[False, True]), np.random.default_rng(0))
    assert alone.edge == 1


def test_baselines_rank_by_what_they_say() -> None:
    seen = view(1, [3, 2, 2, 9], 8, transfer=[0.2, np.nan, 0.9, 0.1])
    rng = np.random.default_rng(0)
    assert MinCostPlacement().choose(seen, rng).edge == 1
    assert MinTransPlacement().choose(seen, rng).edge == 0
    assert FixedPlacement(edge=2).choose(seen, rng).edge == 2
    assert FixedPlacement(edge=3).choose(seen, rng) == Placement(exhausted=True)
    assert FixedPlacement(edge=9).choose(seen, rng) == Placement()
    unknown = view(1, [3, 2, 4], 8, transfer=[np.nan] * 3)
    assert MinTransPlacement().choose(unknown, rng).edge == 1
    with pytest.raises(InvalidViewError, match="edge_transfer_s"):
        MinTransPlacement().choose(view(1, [1], 8), rng)
    draws = [RandomPlacement().choose(seen, np.random.default_rng(i)).edge for i in range(60)]
    assert set(draws) == {0, 1, 2}


def test_contradictions_are_refused() -> None:
    with pytest.raises(InvalidViewError, match="edge_rent"):
        view(1, [-1], 5)
    with pytest.raises(InvalidViewError, match="rent_micro"):
        Placement(rent_micro=3)
    policy = BudgetedUcbPlacement()
    policy.learn(Placement(edge=4), 1.0)
    with pytest.raises(InvalidViewError, match="edge_live"):
        policy.choose(view(2, [1], 5), np.random.default_rng(0))


@pytest.mark.parametrize("name", BANDITS)
def test_later_plays_leave_the_quarter_to_edges_that_join(name: str) -> None:
    run = play(
        BANDITS[name](),
        lambda t, left: view(t, [100] if t <= 12 else [100, 100], left),
        noisy(1),
        budget=4000,
        rounds=13,
    )
    assert run.edges == [0] * 12 + [1]
