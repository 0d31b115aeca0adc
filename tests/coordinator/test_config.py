"""Settings of a coordinator: overrides of the recipe, and what does not go together."""

import json

import pytest

from fedagent_coordinator.config import CoordinatorConfig
from fedagent_node.settings import SettingError


def load(**given: object) -> CoordinatorConfig:
    return CoordinatorConfig.load(json.dumps({"data_dir": "d", "recipe": "r", **given}), {})


def test_defaults_and_overrides() -> None:
    config = load()
    assert (config.broker, config.wait_edges) == ("auto", 1)
    config = load(policy="cheapest", seed=4, sets=["a.b=1"])
    assert config.recipe_sets == ("a.b=1", "policy.name=cheapest", "seed=4")


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"recipe": None}, "recipe"),
        ({"wait_edges": 0}, "wait_edges"),
        ({"new_run": True, "more_rounds": 3}, "more_rounds"),
        ({"more_rounds": -1}, "more_rounds"),
    ],
)
def test_what_cannot_be_is_refused_by_its_key(change: dict[str, object], key: str) -> None:
    with pytest.raises(SettingError) as caught:
        load(**change)
    assert caught.value.key == key


def test_without_a_page_none_is_served() -> None:
    assert load().page() is not None
    assert load(no_web=True).page() is None
    with pytest.raises(SettingError, match="cannot be combined with no_web"):
        load(no_web=True, web="127.0.0.1:0")
