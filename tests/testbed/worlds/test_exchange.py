"""The reference world of RBCS-F: its distributions, and who is cold."""

import numpy as np
import pytest

from fedagent_testbed.worlds import LinearExchange


def test_times_are_what_the_setting_says() -> None:
    world = LinearExchange(seed=1, per_class=2000)
    draw = world.draw(1)
    assert 0.5 <= draw.mu.min() < 0.51
    assert 1.99 < draw.mu.max() <= 2
    assert 2e6 <= draw.bandwidth_hz.min() < 2.01e6
    assert draw.available.mean() == pytest.approx(0.8, abs=0.02)
    inverse_mu, on_air = np.log(4) / 1.5, 20 * np.log(2) / 2
    for i, (work, snr) in enumerate(((1, 1000), (2, 100), (3, 10), (4, 1))):
        own = slice(2000 * i, 2000 * (i + 1))
        expected = work * inverse_mu + 1 + on_air / np.log2(1 + snr)
        assert draw.expected_s[own].mean() == pytest.approx(expected, rel=0.02)
        assert draw.tau_s[own].mean() == pytest.approx(expected, rel=0.05)
    assert (draw.tau_s <= 2 * draw.expected_s).all()
    assert (draw.tau_s >= 0).all()


def test_whoever_trained_starts_warm_once() -> None:
    world = LinearExchange(seed=2)
    cold = world.draw(2).expected_s
    first = world.draw(1)
    feedback = world.play(world.view(1), np.array([3, 7]))
    assert feedback.tau_s.tolist() == first.tau_s[[3, 7]].tolist()
    saved = cold - world.draw(2).expected_s
    assert np.flatnonzero(saved).tolist() == [3, 7]
    assert saved[[3, 7]] == pytest.approx([1, 1])
    world.play(world.view(1), np.array([], dtype=np.int64))
    assert world.draw(2).expected_s.tolist() == cold.tolist()


def test_a_view_holds_the_features_and_the_truth() -> None:
    world = LinearExchange(seed=3, deadline_s=3.0, credits_=8)
    draw, view = world.draw(1), world.view(1)
    assert view.feature("compute") == pytest.approx(draw.mu, rel=1e-6)
    assert view.edge_budget.tolist() == [8_000_000]
    truth = view.known_truth()
    assert truth.tau_s.tolist() == draw.expected_s.tolist()
    assert truth.chance.max() <= 1
    assert truth.arrives.tolist() == (draw.tau_s <= 3).tolist()
    feedback = world.play(view, np.arange(40))
    assert feedback.X.tolist() == truth.arrives.tolist()
    assert feedback.void.tolist() == (~truth.arrives).tolist()


def test_the_chance_to_arrive_is_the_frequency() -> None:
    world, chance, arrived = LinearExchange(seed=4, deadline_s=5.0), [], []
    for t in range(1, 400):
        truth = world.view(t).known_truth()
        chance.append(truth.chance.mean())
        arrived.append(truth.arrives.mean())
    assert np.mean(arrived) == pytest.approx(np.mean(chance), abs=0.02)
