"""Every index against the same formula written out one edge at a time."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedagent_coordinator.errors import InvalidViewError
from fedagent_coordinator.placement.base import Placement, PlacementView
from fedagent_coordinator.placement.budgeted_ucb import (
    BudgetedUcbPaperPlacement,
    BudgetedUcbPlacement,
)

from .world import Scalar, play, view

RICH = 10**12
R_MIN = st.sampled_from([0.05, 0.1, 0.5, 0.9])
Plays = list[tuple[int, float | None]]


@st.composite
def histories(draw: st.DrawFn) -> tuple[int, Plays]:
    """M edges, each played at least once, in any order, some plays without a result."""
    edges = draw(st.integers(1, 5))
    psi = st.one_of(st.none(), st.floats(0, 100))
    more = draw(st.lists(st.integers(0, edges - 1), max_size=40))
    order = draw(st.permutations([*range(edges), *more]))
    return edges, [(edge, draw(psi)) for edge in order]


def _seen(draw: st.DataObject, edges: int) -> PlacementView:
    rent = draw.draw(st.lists(st.integers(0, 1000), min_size=edges, max_size=edges))
    live = draw.draw(st.lists(st.booleans(), min_size=edges, max_size=edges))
    return view(draw.draw(st.integers(1, 10**6)), rent, RICH, live=live)


def _expect_best(placement: Placement, seen: PlacementView, index: dict[int, float]) -> None:
    """The chosen edge's index is the greatest of the live ones, up to rounding."""
    if not seen.edge_live.any():
        assert placement == Placement()
        return
    best = max(index[e] for e in index if seen.edge_live[e])
    assert placement.edge is not None
    assert placement.rent_micro == seen.edge_rent[placement.edge]
    assert seen.edge_live[placement.edge]
    chosen = index[placement.edge]
    assert chosen == best or chosen >= best - 1e-9 * max(1.0, abs(best))


@pytest.mark.parametrize("which", ["tuned", "paper", "literal"])
@settings(max_examples=50)
@given(histories(), R_MIN, st.floats(0.01, 3), st.data())
def test_the_index_is_that_of_the_formula(
    which: str, history: tuple[int, Plays], r_min: float, kappa: float, data: st.DataObject
) -> None:
    edges, plays = history
    policy: BudgetedUcbPlacement | BudgetedUcbPaperPlacement
    if which == "tuned":
        policy = BudgetedUcbPlacement(r_min=r_min, kappa=kappa)
    else:
        policy = BudgetedUcbPaperPlacement(r_min=r_min, literal=which == "literal")
    scalar = Scalar.of(edges, r_min, kappa)
    for edge, psi in plays:
        policy.learn(Placement(edge=edge), psi)
        scalar.learn(edge, psi)
    seen = _seen(data, edges)
    expected = {e: getattr(scalar, which)(e, seen) for e in range(edges)}
    np.testing.assert_allclose(policy.index(seen), list(expected.values()), rtol=1e-9, atol=1e-9)
    placement = policy.choose(seen, np.random.default_rng(0))
    unbounded = [e for e in expected if seen.edge_live[e] and math.isinf(expected[e])]
    if unbounded:
        assert placement.edge == min(unbounded, key=lambda e: (len(scalar.plays[e]), e))
    else:
        _expect_best(placement, seen, expected)


def test_the_paper_is_a_round_robin_in_practice() -> None:
    """Its denominator stays non-positive, whatever the edges cost."""
    cost = [1.0, 5.0, 50.0, 100.0, 500.0]
    policy = BudgetedUcbPaperPlacement()

    run = play(
        policy,
        lambda t, left: view(t, [10, 1000, 10, 1000, 500], left),
        lambda _t, edge: cost[edge],
        budget=RICH,
        rounds=1000,
    )
    plays = np.bincount([e for e in run.edges if e is not None], minlength=5)
    assert plays.tolist() == [200] * 5
    assert np.isposinf(policy.index(view(1000, [1] * 5, RICH))).all()
    needed = 2 * math.log(1000) / 0.1**2
    assert 1300 < needed < 1400


def test_the_tuned_index_finds_the_good_cheap_edge_and_the_paper_does_not() -> None:
    psi, rent = [4.0, 1.0, 4.0, 2.0], [100, 100, 1000, 1000]
    noise = np.random.default_rng(3)

    def share(policy: BudgetedUcbPlacement | BudgetedUcbPaperPlacement) -> float:
        run = play(
            policy,
            lambda t, left: view(t, rent, left),
            lambda _t, edge: psi[edge] * noise.uniform(0.8, 1.2),
            budget=RICH,
            rounds=500,
        )
        return sum(e == 1 for e in run.edges) / 500

    assert share(BudgetedUcbPlacement()) > 0.8
    assert share(BudgetedUcbPaperPlacement()) == pytest.approx(0.25, abs=0.01)


@pytest.mark.parametrize("psi", [math.nan, math.inf, -1.0, 1e300])
def test_an_impossible_cost_is_refused_and_changes_nothing(psi: float) -> None:
    policy = BudgetedUcbPaperPlacement(literal=True)
    policy.learn(Placement(edge=1, rent_micro=7), 2.0)
    before = policy.state()
    with pytest.raises(InvalidViewError, match="psi"):
        policy.learn(Placement(edge=3, rent_micro=7), psi)
    after = policy.state()
    for key, column in before.items():
        np.testing.assert_array_equal(column, after[key])
