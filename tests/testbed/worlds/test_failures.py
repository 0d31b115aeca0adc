"""What goes wrong in a world: who fails, how it looks from the edge, and that it is composable."""

import numpy as np
import pytest

from fedagent_coordinator.policies import Feedback, RoundView
from fedagent_coordinator.policies.base import BoolArray, Ending
from fedagent_testbed.study import TestbedRecipe as Study
from fedagent_testbed.study import World, load_recipe, make_world

SMALL = ("world.clients=20", "world.edges=3", "rounds.count=100", "rounds.deadline_s=30")


def study(*sets: str) -> Study:
    return load_recipe("cocs-decisions", (*SMALL, *sets))


def everybody(world: World, t: int) -> tuple[RoundView, Feedback]:
    view = world.view(t)
    return view, world.play(view, np.arange(len(view.pair_client)))


def of_clients(view: RoundView, pairs: BoolArray) -> BoolArray:
    """bool[N], clients with such a pair."""
    found = np.zeros(len(view.client_price), dtype=np.bool_)
    found[view.pair_client[pairs]] = True
    return found


@pytest.mark.parametrize("world", ["radio", "chances"])
def test_nothing_arrives_of_the_dead_until_they_heal_and_say_so(world: str) -> None:
    sets = (
        "world.dying.share=0.3",
        "world.dying.after=0.2",
        "world.dying.heal=30",
        f"world.kind={world}",
    )
    made = make_world(study(*sets), 1)
    silent = make_world(study(*sets, "world.dying.says=false"), 1)
    for t in (1, 20, 21, 50, 51, 100):
        view, feedback = everybody(made, t)
        gone = feedback.endings == Ending.GONE
        assert of_clients(view, gone).sum() == (6 if 20 < t <= 50 else 0)
        assert (view.known_truth().chance[gone] == 0).all()
        assert feedback.unpaid[gone].all()
        assert view.client_starts is not None
        assert view.client_starts.tolist().count(2) == (6 if t > 50 else 0)
        quiet = silent.view(t)
        assert quiet.client_starts is not None
        assert quiet.client_starts.tolist() == [1] * 20


def test_half_of_the_clients_change_their_speed_and_not_what_they_claim() -> None:
    changed = make_world(study("world.speeds.share=0.5", "world.speeds.factor=[0.2, 0.5]"), 3)
    plain = make_world(study(), 3)
    for t in (50, 51):
        view, slow = everybody(changed, t)
        same, usual = everybody(plain, t)
        assert view.pair_features.tolist() == same.pair_features.tolist()
        assert view.client_price.tolist() == same.client_price.tolist()
        known = ~(slow.censored | usual.censored)
        ratio = (slow.lc_s / usual.lc_s)[known]
        moved = np.unique(view.pair_client[known][ratio > 1.5])
        assert len(moved) == (10 if t > 50 else 0)
        assert ratio.max() <= 5.001


def test_two_halves_take_turns() -> None:
    world = make_world(study("world.flips.every=5", "world.flips.loss=1"), 5)
    bad = []
    for t in (1, 5, 6, 10, 11):
        view, feedback = everybody(world, t)
        hit = view.known_truth().chance == 0
        assert not feedback.X[hit].any()
        bad.append(of_clients(view, hit))
    assert bad[0].sum() == 10
    assert bad[0].tolist() == bad[1].tolist() == bad[4].tolist()
    assert bad[2].tolist() == bad[3].tolist() == (~bad[0]).tolist()


def test_the_bad_edge_fails_as_often_as_it_should_and_says_so() -> None:
    world, failed = make_world(study("world.bad_edge.fails=0.5"), 6), 0
    for t in range(1, 101):
        view, feedback = everybody(world, t)
        silent = feedback.endings == Ending.EDGE
        if silent.any():
            failed += 1
            assert len(set(view.pair_edge[silent].tolist())) == 1
            assert silent.sum() == 20
            assert feedback.unpaid[silent].all()
    assert 35 <= failed <= 65


@pytest.mark.parametrize("by", ["edge", "group"])
def test_orders_fail_together(by: str) -> None:
    sets = ("world.correlated.chance=0.5", f"world.correlated.by={by}", "world.correlated.groups=4")
    world = make_world(study(*sets, "world.kind=chances", "world.chances.sure=1"), 8)
    together, rounds = 0, 60
    for t in range(1, rounds + 1):
        view, feedback = everybody(world, t)
        assert set(feedback.endings.tolist()) <= {Ending.IN_TIME, Ending.MISSED}
        assert view.known_truth().chance == pytest.approx(0.5)
        lost = view.pair_edge if by == "edge" else view.pair_client
        for one in np.unique(lost).tolist():
            mine = feedback.X[lost == one]
            assert mine.all() or not mine.any()
        together += int((~feedback.X).sum())
    assert together / (rounds * 60) == pytest.approx(0.5, abs=0.12)


def test_a_cold_start_is_everybodys_and_ends() -> None:
    world = make_world(study("world.cold.rounds=4", "world.cold.extra_s=40"), 9)
    shares = [everybody(world, t)[1].X.mean() for t in (1, 4, 5, 12)]
    assert shares[:2] == [0.0, 0.0]
    assert shares[2] > 0
    assert shares[3] > 0.5


def test_features_are_missing_by_value_and_by_column() -> None:
    sets = ("world.missing.share=0.3", 'world.missing.columns=["distance_km"]', "world.clients=200")
    views = [make_world(study(*sets), 10).view(t) for t in (1, 2)]
    assert "distance_km" not in views[0].feature_names
    for view in views:
        assert np.isnan(view.pair_features).mean() == pytest.approx(0.3, abs=0.03)
    assert np.isnan(views[0].pair_features).tolist() != np.isnan(views[1].pair_features).tolist()
