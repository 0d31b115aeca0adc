"""Sums in the ring are exact, and come back as the weighted mean."""

import secrets
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedagent_protocol.tensors import Manifest
from fedagent_task.recipe.spec import SecureAggregationSpec
from fedagent_task.secure_aggregation.ring import add_masks, ring_of, sums_of, vector_of

SPEC = SecureAggregationSpec(minimum_cohort=3, largest=2.0)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(1, 1000), min_size=1, max_size=12), st.booleans(), st.integers(0, 9))
def test_the_sum_is_exactly_that_of_the_rounded_updates(
    weights: list[int], uniform: bool, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    weights = [1] * len(weights) if uniform else weights
    ring = ring_of(SPEC, 1 if uniform else 1000)
    updates: list[dict[str, npt.NDArray[Any]]] = [
        {
            "a": rng.normal(size=(2, 3)).astype(np.float32),
            "b": rng.normal(size=5).astype(np.float32),
            "n": np.array([9], np.int64),
        }
        for _ in weights
    ]
    updates[0]["b"][:] = -2.0  # all of it as large as it may be
    base = Manifest.of(updates[0])
    total = sum(
        (vector_of(u, w, ring, {"n"}) for u, w in zip(updates, weights, strict=True)),
        np.zeros(12, ring.word),
    )
    sums, weight = sums_of(total, base, ring, {"n"})
    assert weight == sum(weights)
    assert sums["n"].tolist() == [0]
    for name in "ab":
        exact = sum(
            np.rint(np.clip(u[name].astype(float), -2, 2) * ring.steps) * w
            for u, w in zip(updates, weights, strict=True)
        )
        assert np.array_equal(sums[name] * ring.steps, np.asarray(exact).reshape(-1))


@pytest.mark.parametrize("most_weight", [1, 1_000_000])
def test_the_largest_sum_does_not_wrap_around(most_weight: int) -> None:
    ring = ring_of(SPEC, most_weight)
    one = vector_of({"w": np.full(3, 99.0)}, most_weight, ring)
    total = one * np.array(256, ring.word)
    sums, weight = sums_of(total, Manifest.of({"w": np.zeros(3)}), ring)
    assert weight == 256 * most_weight
    assert (sums["w"] / weight).tolist() == [2.0] * 3
    assert ring.steps >= 2**20


def test_a_mask_hides_every_number_and_comes_off_again() -> None:
    for most_weight in (1, 1000):
        ring = ring_of(SPEC, most_weight)
        plain = vector_of({"w": np.zeros(100_000)}, 1, ring)
        masked = plain.copy()
        key = secrets.token_bytes(32)
        add_masks(masked, [(key, 1)], ring)
        assert (masked == plain).sum() <= 3
        high = masked.astype(np.float64) / 2.0**ring.bits
        assert high.mean() == pytest.approx(0.5, abs=0.01)
        add_masks(masked, [(key, -1)], ring)
        assert np.array_equal(masked, plain)
