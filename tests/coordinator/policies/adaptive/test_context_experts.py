"""What the context promises: physics by signal and demand, what is missing, weights by log-loss."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fedagent_coordinator.policies.adaptive.context_experts import ContextExperts, mixed
from fedagent_coordinator.policies.base import FloatArray, RoundView
from tests.fakes.rounds import column_view, ended

EVERY = slice(None)


def link(**columns: Any) -> RoundView:
    rates = {"download_bps": [2e6, 2e6, 2e6], "compute": [2.0, 2.0, 2.0], **columns}
    return column_view(deadline_s=3.0, **rates)


def promised(experts: ContextExperts, view: RoundView) -> FloatArray:
    return experts.forecasts(experts.read(view, EVERY))


def settled(view: RoundView) -> ContextExperts:
    experts = ContextExperts(33.0, 0.01)
    experts.settle_centre(view)
    return experts


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("signal_dbm", [-90.0, -70.0, -50.0]),
        ("upload_bps", [1e5, 1e6, 1e7]),
        ("distance_km", [2.0, 0.5, 0.1]),
    ],
)
def test_a_better_link_promises_more_before_anything_is_learnt(
    name: str, values: list[float]
) -> None:
    view = link(**{name: values})
    physics = promised(settled(view), view)[0]
    assert physics[0] < physics[1] < physics[2]


def test_what_is_not_reported_moves_nothing() -> None:
    view = link(signal_dbm=[-80.0, -70.0, -60.0])
    experts = settled(view)
    features = view.pair_features.copy()
    features[0, view.feature_names.index("signal_dbm")] = np.nan
    missing = promised(experts, replace(view, pair_features=features))
    # The median of the others, not of all, stands in for it: -65.
    assert missing[0][1] < missing[0][0] < missing[0][2]
    without = link()
    plain = promised(settled(without), without)
    assert plain[0] == pytest.approx([plain[0][0]] * 3)


def test_the_expert_that_was_right_leads() -> None:
    rng, experts = np.random.default_rng(0), ContextExperts(33.0, 0.01)
    for t in range(1, 200):
        compute = rng.uniform(2, 4, 12)
        view = column_view(t, deadline_s=3.0, compute=compute.tolist())
        experts.settle_centre(view)
        context = experts.read(view, EVERY)
        success = abs(compute - 3.0) < 0.4
        experts.learn(context, experts.forecasts(context), success, np.ones(12))
        experts.observe(ended(view, list(range(12)), x=success.tolist()), context)
    assert experts.mixture[2] > 0.8, "only bins see that middling compute succeeds"
    assert experts.mixture.sum() == pytest.approx(1.0)


def test_weights_follow_the_log_loss_and_keep_a_share() -> None:
    forecasts = np.array([[0.9, 0.9], [0.1, 0.1]])
    weights = mixed(np.array([0.5, 0.5]), forecasts, np.array([True, True]), np.ones(2), 0.1)
    assert weights == pytest.approx([0.9 * 81 / 82 + 0.05, 0.9 / 82 + 0.05])
    nothing = mixed(np.array([0.3, 0.7]), forecasts, np.array([True, False]), np.zeros(2), 0.0)
    assert nothing == pytest.approx([0.3, 0.7])


def test_who_decided_on_a_round_learns_of_it_what_others_learn() -> None:
    """A small view is read once, and read anew as soon as something is learnt."""
    rng, decided, told = np.random.default_rng(4), *(ContextExperts(33.0, 0.01) for _ in range(2))
    for _ in range(6):
        view = link(upload_bps=rng.uniform(1e5, 1e7, 3).tolist())
        before = promised(decided, view)
        success, some = rng.random(2) < 0.5, np.array([2, 0], dtype=np.int64)
        for experts, read in ((decided, decided.read), (told, told._read)):
            experts.settle_centre(view)
            context = read(view, some)
            experts.learn(context, experts.forecasts(context), success, np.ones(2))
            experts.observe(ended(view, [2, 0], x=success.tolist()), context)
        after = told.state()
        assert all(after[key].tobytes() == its.tobytes() for key, its in decided.state().items())
        again = ContextExperts(33.0, 0.01)
        again.restore(decided.state())
        assert (promised(decided, view) == promised(again, view)).all()
        assert (promised(decided, view) != before).any()
