"""Bins of features: any shape is found, missing values are a bin of their own."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedagent_coordinator.policies.adaptive.feature_bins import (
    BinnedContext,
    _quantiles_of,
)
from fedagent_coordinator.policies.adaptive.upload_demand import Reported
from fedagent_coordinator.policies.base import FloatArray, RoundView
from tests.fakes.rounds import column_view


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


@given(st.integers(1, 40), st.integers(1, 5), st.integers(0, 2**32 - 1))
def test_quantiles_are_numpys(size: int, rows: int, seed: int) -> None:
    values = np.random.default_rng(seed).normal(size=(rows, size)).round(1)
    shares = np.arange(1, 8) / 8
    found = _quantiles_of(np.sort(values, axis=1), shares)
    assert np.array_equal(found, np.quantile(values, shares, axis=1).T)
