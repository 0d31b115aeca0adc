"""BP-UCB: index, pulls, beliefs of the last slot, positions."""

import math

import numpy as np
import pytest

from fedagent_coordinator.errors import MissingFeatureError
from fedagent_coordinator.policies import Purpose, round_rng
from fedagent_coordinator.policies.beliefs import propagate, propagate_literal, wire
from fedagent_coordinator.policies.bp_ucb import BpUcbPolicy
from fedagent_coordinator.policies.neighbours import declared, k_nearest, within_radius
from tests.fakes.rounds import SEED, chosen, ended, play, town

NAN = math.nan


def spots(clients: int, seed: int = 0) -> list[tuple[float, float]]:
    points = np.random.default_rng(seed).random((clients, 2)).astype(np.float32).astype(float)
    return [(x, y) for x, y in points.tolist()]


def test_the_index_is_the_one_of_the_paper() -> None:
    policy = BpUcbPolicy(clients_per_round=2, mu=0.3, neighbours=2)
    clients, where = 7, spots(7)
    rng = np.random.default_rng(3)
    initial = rng.random(clients)
    mean, count = initial.copy(), np.ones(clients)
    wiring = wire(k_nearest("test", np.array(where), 2))
    belief = propagate(wiring, initial).belief
    for t in range(1, 60):
        opinions = initial if t == 1 else None
        view = town(t, clients, places=where, opinions=opinions)  # type: ignore[arg-type]
        selection = policy.select(view, round_rng(SEED, t, Purpose.SELECT))
        index = mean + belief / clients + 0.3 * np.sqrt(math.log(t + 1) / count)
        assert selection.scores == pytest.approx(index, abs=1e-9)
        best = np.argsort(-selection.scores, kind="stable")[:2].tolist()
        assert selection.pairs.tolist() == best
        now = rng.random(clients)
        policy.learn(ended(view, best, opinions=now.tolist()))
        mean[best] = (mean[best] * count[best] + now[best]) / (count[best] + 1)
        count[best] += 1
        belief = propagate(wiring, now).belief
    assert count.min() < count.max()


def test_without_opinions_k_random_clients_train() -> None:
    where = spots(9)
    draws = [
        [tuple(chosen(BpUcbPolicy(), town(1, 9, places=where), seed)) for seed in range(9)]
        for _ in range(2)
    ]
    drawn = set(draws[0])
    assert draws[0] == draws[1]
    assert len(drawn) > 1
    assert {len(clients) for clients in drawn} == {5}


def test_a_first_opinion_is_the_first_pull_and_later_ones_need_training() -> None:
    policy = BpUcbPolicy(clients_per_round=1, graph="declared")
    policy.learn(ended(town(1, 3), [0], opinions=[0.5, 0.7, NAN]))
    policy.learn(ended(town(2, 3), [0], opinions=[0.9, 0.1, 0.4]))
    state = policy.state()
    assert state["mean"].tolist() == pytest.approx([0.7, 0.7, 0.4])
    assert state["count"].tolist() == [2, 1, 1]
    policy.learn(ended(town(3, 3), [0], opinions=[NAN, NAN, 0.2]))
    assert policy.state()["count"].tolist() == [2, 1, 1]
    assert policy.state()["last"].tolist() == [0.9, 0.1, 0.2]


def test_clients_without_opinion_rank_like_the_mean() -> None:
    policy = BpUcbPolicy(clients_per_round=1, graph="declared", mu=0.0)
    policy.learn(ended(town(1, 3), [0], opinions=[0.9, 0.1, NAN]))
    scores = policy.select(town(2, 4), np.random.default_rng(0)).scores
    assert scores[2:] == pytest.approx([0.5 + 0.5 / 4] * 2)


def test_the_first_set_is_chosen_with_the_beliefs_of_the_initial_opinions() -> None:
    initial = [0.6, 0.6, 0.9, 0.1]
    policy = BpUcbPolicy(
        clients_per_round=1, graph="declared", edges=[(0, 2), (1, 3)], mu=0.5, slot_rounds=3
    )
    view = town(1, 4, opinions=initial)
    selection = policy.select(view, round_rng(SEED, 1, Purpose.SELECT))
    wiring = wire(declared("test", [(0, 2), (1, 3)], 4))
    expected = np.array(initial) + propagate(wiring, np.array(initial)).belief / 4
    expected += 0.5 * math.sqrt(math.log(2))
    assert selection.scores == pytest.approx(expected, abs=1e-12)
    assert selection.scores[0] > selection.scores[1] + 0.005
    policy.learn(ended(view, [2], opinions=None))
    later = policy.select(town(2, 4), round_rng(SEED, 2, Purpose.SELECT))
    assert later.pairs.tolist() == [2]
    for t in (2, 3):
        policy.learn(ended(town(t, 4), [2], opinions=None))
    unheard = policy.select(town(4, 4), round_rng(SEED, 4, Purpose.SELECT))
    expected += 0.5 * (math.sqrt(math.log(3)) - math.sqrt(math.log(2)))
    assert unheard.scores == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("how", ["plain", "local_weights", "literal"])
def test_beliefs_are_of_the_kind_asked_for(how: str) -> None:
    where, opinions = spots(20), np.random.default_rng(1).uniform(0.6, 0.9, 20)
    policy = BpUcbPolicy(literal=how == "literal", local_weights=how == "local_weights")
    policy.learn(ended(town(1, 20, places=where), [0], opinions=opinions.tolist()))
    graph = k_nearest("test", np.array(where), 4)
    belief = policy.state()["belief"]
    if how == "literal":
        assert belief == pytest.approx(propagate_literal(graph, opinions).belief)
        assert belief.sum() == pytest.approx(1.0)
        assert belief.max() > 0.99, "the beliefs of the paper's constants saturate"
    else:
        wiring = wire(graph, local=how == "local_weights")
        assert belief == pytest.approx(propagate(wiring, opinions).belief, abs=1e-12)
        assert belief.max() < 0.95


def test_neighbours_decide_between_equals() -> None:
    policy = BpUcbPolicy(clients_per_round=1, graph="declared", edges=[(1, 3)], mu=0.0)
    policy.learn(ended(town(1, 4), [0], opinions=[0.5, 0.6, 0.6, 0.6]))
    assert chosen(policy, town(2, 4)) == [2]
    close = BpUcbPolicy(clients_per_round=1, graph="declared", edges=[(2, 3)], mu=0.0)
    close.learn(ended(town(1, 4), [0], opinions=[0.5, 0.6, 0.6, 0.61]))
    state = close.state()
    assert state["belief"][2] < state["belief"][3] < 0.61**2 + 1e-3
    assert state["belief"][1] == pytest.approx(0.36)


def test_positions_of_who_is_out_of_sight_are_remembered() -> None:
    policy = BpUcbPolicy(graph="radius", radius_km=0.4)
    where = spots(6)
    opinions = [0.9, 0.2, 0.5, 0.6, 0.7, 0.3]
    policy.learn(ended(town(1, 6, places=where), [0], opinions=opinions))
    view = town(2, 6, places=where).take(np.array([0, 4]))
    policy.learn(ended(view, [0], opinions=opinions))
    expected = propagate(wire(within_radius("test", np.array(where), 0.4)), np.array(opinions))
    assert policy.state()["belief"] == pytest.approx(expected.belief, abs=1e-12)


def test_notes_report_convergence() -> None:
    policy = BpUcbPolicy()
    play(policy, town(1, 20, places=spots(20)), 0.5)
    notes = policy.select(town(2, 20, places=spots(20)), np.random.default_rng(0)).notes
    assert 0 < notes["bp_contraction"] < 1
    assert 0 < notes["bp_sweeps"] < 200
    assert notes["bp_residual"] <= 1e-9


def test_positions_are_needed_unless_neighbours_are_declared() -> None:
    assert BpUcbPolicy().needs == {"opinions", "x_km", "y_km"}
    assert BpUcbPolicy(graph="declared").needs == {"opinions"}
    with pytest.raises(MissingFeatureError):
        chosen(BpUcbPolicy(), town(1, 3))
