"""What `adaptive` is made of: slack of the deadline, reliability, regression of success."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fedagent_coordinator.policies.adaptive import Reliability
from fedagent_coordinator.policies.experts import Prior, Slack, chance, definite, start, updated
from tests.fakes.rounds import column_view, ended

CLOCK: dict[str, Any] = {"download_bps": [2e6, 2e6, 4e6], "compute": [2.0, 2.0, 4.0]}


def test_what_is_left_of_the_deadline_is_download_and_own_work_less() -> None:
    slack, view = Slack(), column_view(deadline_s=10.0, **CLOCK)
    feedback = ended(view, [0, 2])
    for _ in range(200):
        slack.learn(replace(feedback, dt_s=np.array([1.0, 0.5]), lc_s=np.array([1.0, 0.5])))
    left, demand = slack.required(view)
    # 2 Mbit, and work 2 of everybody, by everybody's own rate and pace.
    assert left == pytest.approx([8.0, 8.0, 9.0], rel=1e-6)
    assert demand == pytest.approx(np.log(2e6 / left), rel=1e-6)


def test_a_client_that_overstates_its_compute_has_less_time_left() -> None:
    slack, view = Slack(), column_view(deadline_s=10.0, **CLOCK)
    feedback = ended(view, [0, 1])
    for _ in range(30):
        slack.learn(replace(feedback, dt_s=np.ones(2), lc_s=np.array([1.0, 4.0])))
    left = slack.required(view)[0]
    assert left[0] == pytest.approx(8.0, abs=0.3)
    assert left[1] == pytest.approx(5.0, abs=0.3)
    # Of who never played nothing is known but the common work, 5, at its own pace.
    assert left[2] == pytest.approx(10 - 0.5 - 5 / 4, abs=0.1)


def test_waits_for_arrivals_do_not_grow_with_less_compute() -> None:
    slack, view = Slack(), column_view(deadline_s=1.5, **CLOCK)
    # Half a second of arrival steps, two hundredths of computation at 2 cores.
    heard = replace(
        ended(view, [0, 1]),
        dt_s=np.full(2, 0.01),
        lc_s=np.full(2, 0.52),
        train_s=np.full(2, 0.02),
    )
    for _ in range(30):
        slack.learn(heard)
    busy = column_view(deadline_s=1.5, **{**CLOCK, "compute": [0.2, 0.2, 0.2]})
    left = slack.required(busy)[0]
    assert left == pytest.approx([0.79, 0.79, 0.795], abs=0.01)
    again = Slack()
    again.restore(slack.state())
    assert again.required(busy)[0].tolist() == left.tolist()


def test_a_pair_without_time_for_its_upload_is_hopeless() -> None:
    slack = Slack()
    assert slack.hopeless(np.array([0.19, 0.21, -3.0]), 10.0).tolist() == [True, False, True]
    left = slack.required(column_view(clients=2))[0]
    assert left.tolist() == [math.inf, math.inf]
    assert slack.hopeless(left, math.inf).tolist() == [False, False]


def test_the_factor_is_deeds_over_forecasts_and_leans_to_1() -> None:
    deeds, both = Reliability(), np.array([0, 1], dtype=np.int32)
    assert deeds.factor(both).tolist() == [1.0, 1.0]
    deeds.learn(both, np.array([0.5, 0.5]), np.array([True, False]), 3)
    assert deeds.factor(np.arange(4, dtype=np.int32)) == pytest.approx([2 / 1.5, 1 / 1.5, 1, 1])
    deeds.learn(both, np.array([0.5, 0.5]), np.array([True, False]), 3)
    left = 0.98 * 0.8
    expected = [(left + 2) / (0.5 * left + 1.5), 1 / (0.5 * left + 1.5)]
    assert deeds.factor(both) == pytest.approx(expected)
    nobody = np.empty(0, dtype=np.int32)
    for _ in range(300):
        deeds.learn(nobody, np.empty(0), np.empty(0, dtype=np.bool_), 3)
    assert deeds.factor(both) == pytest.approx([1.0, 1.0], abs=0.01)


def prior(*, logit: bool, keep: float = 1.0) -> Prior:
    return Prior(mean=np.array([0.2, -0.4]), precision=np.array([1.0, 2.0]), keep=keep, logit=logit)


def test_the_links_are_logit_and_complementary_log_log() -> None:
    x, theta = np.array([[1.0, 0.0], [1.0, 2.0]]), np.array([0.3, -0.5])
    eta = np.array([0.3, -0.7])
    assert chance(prior(logit=True), theta, x) == pytest.approx(1 / (1 + np.exp(eta)))
    assert chance(prior(logit=False), theta, x) == pytest.approx(np.exp(-np.exp(eta)))


@pytest.mark.parametrize("logit", [True, False])
def test_one_round_moves_to_the_most_likely_theta(logit: bool) -> None:
    rng, model = np.random.default_rng(4), prior(logit=logit)
    x = np.column_stack((np.ones(30), rng.normal(size=30)))
    success = rng.random(30) < 0.6
    belief = updated(model, start(model), x, success)

    def loss(theta: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float:
        p = chance(model, theta, x)
        fit = np.where(success, np.log(p), np.log1p(-p)).sum()
        return float(-fit + 0.5 * (model.precision * (theta - model.mean) ** 2).sum())

    around = [
        loss(belief.theta + np.array([a, b]) / 50) for a in range(-25, 26) for b in range(-25, 26)
    ]
    before, after, best = loss(model.mean), loss(belief.theta), min(around)
    # Newton's steps; those of the other link use its expected curvature, which takes more.
    assert before - after > (0.999 if logit else 0.95) * (before - best)
    assert before - best > 0.5
    assert (np.diag(belief.precision) > model.precision).all()


def test_evidence_fades_towards_the_prior() -> None:
    x, wins = np.array([[1.0, 0.0]]), np.array([True])
    keeps, precisions = {}, {}
    for keep in (1.0, 0.5):
        model = prior(logit=True, keep=keep)
        belief = start(model)
        for _ in range(40):
            belief = updated(model, belief, x, wins)
        keeps[keep] = float(chance(model, belief.theta, x)[0])
        precisions[keep] = float(belief.precision[0, 0])
    first = float(chance(prior(logit=True), start(prior(logit=True)).theta, x)[0])
    assert keeps[1.0] > keeps[0.5] > first
    # A logit says a quarter at most each time, and half of it is gone a round later.
    assert precisions[1.0] > 1.5 >= precisions[0.5] > 1.0
    model = prior(logit=True)
    assert updated(model, start(model), x[:0], wins[:0]).theta.tolist() == [0.2, -0.4]


def test_a_precision_is_definite() -> None:
    assert definite(np.eye(3))
    assert not definite(-np.eye(3))
    assert not definite(np.zeros((2, 2)))
