"""What the context promises: physics by signal and demand, bins of features, their weights."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fedagent_coordinator.policies.adaptive.context_experts import ContextExperts, mixed
from fedagent_coordinator.policies.adaptive.feature_bins import BinnedContext
from fedagent_coordinator.policies.adaptive.upload_demand import Reported
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


def seen(rng: np.random.Generator, count: int = 40) -> RoundView:
    columns: dict[str, Any] = {
        "compute": rng.uniform(2, 4, count).tolist(),
        "battery": rng.random(count).tolist(),
    }
    return column_view(deadline_s=3.0, **columns)


def taught(shape: str, rounds: int = 150) -> tuple[BinnedContext, np.random.Generator]:
    rng, bins = np.random.default_rng(3), BinnedContext(0.998)
    for _ in range(rounds):
        view = seen(rng)
        demand = np.zeros(len(view.pair_client))
        some = np.arange(0, 40, 5)
        success = rng.random(len(some)) < truth(shape, view)[some]
        reported = Reported.of(view)
        bins.learn(bins.read(reported.take(some), demand[some]), success, np.ones(len(some)))
        bins.observe(reported, demand)
    return bins, rng


def truth(shape: str, view: RoundView) -> FloatArray:
    compute = view.feature("compute")
    if shape == "middling":
        return np.where(abs(compute - 3) < 0.4, 0.9, 0.1)
    return np.clip(compute - 2.5, 0.05, 0.95)


@pytest.mark.parametrize(("shape", "most"), [("middling", 0.2), ("slope", 0.1)])
def test_any_shape_of_one_feature_is_found(shape: str, most: float) -> None:
    bins, rng = taught(shape)
    view = seen(rng, 400)
    forecast = bins.chance(bins.read(Reported.of(view), np.zeros(400)))
    assert abs(forecast - truth(shape, view)).mean() < most


def test_a_missing_value_has_a_bin_of_its_own() -> None:
    bins, rng = taught("slope", 20)
    view = seen(rng)
    features = view.pair_features.copy()
    features[:, view.feature_names.index("compute")] = np.nan
    missing = Reported.of(replace(view, pair_features=features))
    demand = np.zeros(len(features))
    before = bins.chance(bins.read(missing, demand))
    for _ in range(40):
        count = len(demand)
        read = bins.read(missing, demand)
        bins.learn(read, np.zeros(count, dtype=np.bool_), np.ones(count))
    after = bins.chance(bins.read(missing, demand))
    assert after.max() < 0.5 * before.min()


def test_more_features_than_it_has_room_for_are_left_out() -> None:
    rng = np.random.default_rng(0)
    many: dict[str, Any] = {f"feature_{k}": rng.random(6).tolist() for k in range(25)}
    bins, reported = BinnedContext(0.99), Reported.of(column_view(**many))
    for _ in range(3):
        bins.observe(reported, np.zeros(6))
    read = bins.read(reported, np.zeros(6))
    assert read.shape == (18, 6)
    assert np.isfinite(bins.chance(read)).all()
