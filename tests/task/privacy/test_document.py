"""The recipe of docs/privacy.md is read, and its figures are what comes out of it."""

import re
from pathlib import Path

import pytest

from fedagent_task.privacy.accountant import epsilon_spent, noise_multiplier
from fedagent_task.recipe.text import parse_recipe, task_of

PAGE = (Path(__file__).parents[3] / "docs" / "privacy.md").read_text()


def test_the_recipe_of_the_page_has_the_figures_of_the_page() -> None:
    pytest.importorskip("opendp", reason="opendp is not installed")
    (text,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    task = task_of(parse_recipe(text))
    assert task.secure_aggregation.minimum_cohort == 5
    privacy = task.privacy
    assert privacy.releases == 60
    noise, half, whole = map(float, re.findall(r"\*\*([0-9.]+)\*\*", PAGE)[:3])
    assert noise_multiplier(8.0, 1e-5, 60) == pytest.approx(noise, abs=0.005)
    assert epsilon_spent(privacy, 30) == pytest.approx(half, abs=0.005)
    assert epsilon_spent(privacy, 60) == pytest.approx(whole, abs=1e-6)
