"""Epsilon is the library's, to the last digits, and never falls."""

import math
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedagent_task.errors import NotInstalledError
from fedagent_task.privacy import accountant
from fedagent_task.privacy.accountant import (
    epsilon_of,
    epsilon_spent,
    noise_multiplier,
)
from fedagent_task.recipe.text import parse_recipe, task_of

PAGE = (Path(__file__).parents[3] / "docs" / "privacy.md").read_text()
dp = pytest.importorskip("opendp.prelude")


@pytest.mark.parametrize("noise", [0.7, 3.0, 40.0])
@pytest.mark.parametrize("releases", [1, 7, 60])
def test_epsilon_equals_the_librarys_own_composition(noise: float, releases: int) -> None:
    dp.enable_features("contrib")
    space = dp.atom_domain(T=float, nan=False), dp.absolute_distance(T=float)
    one = dp.m.make_gaussian(*space, scale=noise)
    composed = dp.c.make_composition([one] * releases)
    expected = dp.c.make_zCDP_to_approxDP(composed).map(1.0).epsilon(1e-5)
    assert epsilon_of(noise, 1e-5, releases) == pytest.approx(expected, abs=1e-6)


@settings(max_examples=8, deadline=None)
@given(st.floats(0.2, 50), st.sampled_from([1e-7, 1e-5, 1e-3]), st.integers(1, 500))
def test_the_noise_is_the_least_that_keeps_the_budget(
    epsilon: float, delta: float, releases: int
) -> None:
    noise = noise_multiplier(epsilon, delta, releases)
    assert epsilon_of(noise, delta, releases) <= epsilon
    assert epsilon_of(noise * (1 - 1e-6), delta, releases) > epsilon * (1 - 1e-6)


def test_without_the_library_there_is_a_mend_and_no_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(accountant, "find_spec", lambda _: None)
    with pytest.raises(NotInstalledError, match=r"\[privacy\]"):
        epsilon_of(math.e, 1e-5, 3)


def test_the_recipe_of_the_page_has_the_figures_of_the_page() -> None:
    (text,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    task = task_of(parse_recipe(text))
    assert task.secure_aggregation.minimum_cohort == 5
    privacy = task.privacy
    assert privacy.releases == 60
    noise, half, whole = map(float, re.findall(r"\*\*([0-9.]+)\*\*", PAGE)[:3])
    assert noise_multiplier(8.0, 1e-5, 60) == pytest.approx(noise, abs=0.005)
    assert epsilon_spent(privacy, 30) == pytest.approx(half, abs=0.005)
    assert epsilon_spent(privacy, 60) == pytest.approx(whole, abs=1e-6)
