"""Forecasts of devices: who is trusted, what is charged to whom, and what a restart forgets."""

from dataclasses import replace

import numpy as np
import pytest

from fedagent_coordinator.policies import Ending, Feedback
from fedagent_coordinator.policies.adaptive.forecasts import EXPERTS, Forecasts
from tests.fakes.rounds import column_view, ended

EVERY = slice(None)


def taught(rounds: int, ending: Ending | None = None) -> Forecasts:
    """Of six clients the first three always fail, by features that say nothing of it."""
    rng, forecasts = np.random.default_rng(1), Forecasts(33.0, 0.01)
    for t in range(1, rounds + 1):
        view = column_view(t, deadline_s=3.0, compute=rng.uniform(2, 4, 6).tolist())
        feedback = ended(view, list(range(6)), x=[i >= 3 for i in range(6)])
        forecasts.learn(feedback if ending is None else with_ending(feedback, ending))
    return forecasts


def with_ending(feedback: Feedback, failed: Ending) -> Feedback:
    ending = np.where(feedback.X, Ending.IN_TIME, failed).astype(np.int8)
    return replace(feedback, ending=ending)


def test_the_history_leads_where_the_context_says_nothing() -> None:
    forecasts = taught(40)
    weights = forecasts.weights
    assert weights["w_context"] < 0.02
    assert sum(weights[f"w_{name}"] for name in EXPERTS) == pytest.approx(1.0)
    view = column_view(41, deadline_s=3.0, compute=[3.0] * 6)
    chances = forecasts.chance(view, EVERY)[0]
    assert chances[:3].max() < 0.1
    assert chances[3:].min() > 0.8
    assert forecasts.never(np.arange(6), 41)[:3].min() > 0.8


@pytest.mark.parametrize("ending", [Ending.DECLINED, Ending.REJECTED, Ending.GONE])
def test_what_is_not_the_links_fault_teaches_the_context_nothing(ending: Ending) -> None:
    view = column_view(9, deadline_s=3.0, compute=[3.0] * 6)
    _, _, late = taught(8, Ending.LATE).chance(view, EVERY)
    told, _, other = taught(8, ending).chance(view, EVERY)
    assert other.min() > late.max()
    assert told[:3].max() < told[3:].min(), "of the device it tells all the same"


def test_a_restarted_device_is_taken_as_a_new_one_at_all_edges() -> None:
    forecasts = taught(40)
    forecasts.forget(np.array([0], dtype=np.int64), 41)
    view = column_view(41, clients=7, deadline_s=3.0, compute=[3.0] * 7)
    chances = forecasts.chance(view, EVERY)[0]
    assert chances[0] == pytest.approx(chances[6]), "as one that was never seen"
    assert chances[1] < 0.5 * chances[0]
    assert forecasts.plays(np.array([0, 1, 6], dtype=np.int64)) == pytest.approx([0, 40, 0], abs=3)
