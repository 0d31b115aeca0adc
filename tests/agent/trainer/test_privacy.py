"""Local differential privacy of opinions, with OpenDP's noise and accounting."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedagent_agent.trainer.scoring import laplace, protect, shape
from fedagent_task.errors import NotInstalledError
from fedagent_task.privacy import accountant
from fedagent_task.recipe.spec import OpinionsSpec

SPECS = st.builds(
    OpinionsSpec,
    low=st.floats(0, 0.4),
    high=st.floats(0.5, 1),
    step=st.one_of(st.just(0.0), st.floats(0.01, 1)),
)


@given(score=st.floats(0, 1), spec=SPECS)
def test_an_opinion_is_clipped_and_rounded_inside_its_bounds(
    score: float, spec: OpinionsSpec
) -> None:
    said, cost = protect(score, spec)
    assert (said, cost) == (shape(score, spec), 0.0)
    assert spec.low <= said <= spec.high
    clipped = min(max(score, spec.low), spec.high)
    assert abs(said - clipped) <= spec.step / 2 + 1e-12 or said == spec.high
    assert shape(said, spec) == pytest.approx(said)


def test_without_opendp_there_is_no_noise_and_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    laplace.cache_clear()
    monkeypatch.setattr(accountant, "find_spec", lambda _name: None)
    with pytest.raises(NotInstalledError, match=r"\[privacy\]"):
        protect(0.5, OpinionsSpec(epsilon=1.0))
    assert protect(0.5, OpinionsSpec()) == (0.5, 0.0)


def test_noise_is_laplace_of_the_declared_scale() -> None:
    pytest.importorskip("opendp", reason="opendp is not installed")
    measurement = laplace(0.5, 2.0)
    # The sampler takes no seed: bounds at five standard errors fail once in a million runs.
    noise = np.array([measurement(0.25) - 0.25 for _ in range(1000)])
    assert abs(noise.mean()) < 5 * 0.25 * math.sqrt(2 / 1000)
    assert np.abs(noise).mean() == pytest.approx(0.25, abs=5 * 0.25 / math.sqrt(1000))


def test_what_an_opinion_costs_is_what_opendp_accounts() -> None:
    dp = pytest.importorskip("opendp.prelude", reason="opendp is not installed")
    spec = OpinionsSpec(low=0.2, high=0.9, epsilon=0.5)
    said, cost = protect(0.4, spec)
    assert 0 <= said <= 1
    assert cost == pytest.approx(0.5)
    assert cost >= 0.5 * (1 - 1e-12)
    ten = dp.c.make_composition([laplace(spec.high - spec.low, spec.epsilon)] * 10)
    assert ten.map(spec.high - spec.low) == pytest.approx(10 * cost)
