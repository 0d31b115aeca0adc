"""Recipes of studies: ours load, errors name the key and the hint, overrides win."""

import pytest

from fedagent_coordinator import policies
from fedagent_task.errors import RecipeError
from fedagent_testbed.study import load_recipe, make_policy, recipe_names
from fedagent_testbed.study.selection import policy_names
from fedagent_testbed.study.streams import SETS, controls_of


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_of_ours_loads(name: str) -> None:
    recipe = load_recipe(name)
    assert recipe.name == name
    assert recipe.world.about
    if recipe.of_streams:
        for pair in {recipe.decides, *recipe.world.compare} - {*SETS}:
            controls_of(pair)
        return
    assert recipe.decides in policies.names()
    assert set(recipe.world.compare) <= set(policy_names(recipe))
    for policy in recipe.policies:
        make_policy(recipe, policy)


def test_overrides_win_and_are_exact() -> None:
    recipe = load_recipe(
        "cocs-decisions",
        [
            "budget.per_edge=0.1",
            "rounds.count=7",
            "policies.cocs.h=3",
            "world.clients = 8",
            "world.clients=9",
        ],
    )
    assert recipe.budget_micro == 100_000
    assert recipe.rounds.count == 7
    assert recipe.rounds.deadline_s == 3.0
    assert recipe.policies["cocs"] == {"h": 3}
    assert recipe.policies["cocs-paper"]["h"] == 5
    assert recipe.world.clients == 9


SEE = "docs/testbed.md"
COCS, EXCHANGE = "cocs-decisions", "rbcs-f-numeric"


@pytest.mark.parametrize(
    ("recipe", "change", "key", "words"),
    [
        (COCS, "deadline_s=3", "deadline_s", "did you mean rounds.deadline_s?"),
        (COCS, "world.training.modle=svm", "world.training.modle", "world.training.model?"),
        (COCS, "world.clients=0", "world.clients", SEE),
        (COCS, "world.work.price=[2, 1]", "world.work.price", "low <= high"),
        (COCS, "world.visible=4", "world.visible", "`edges`"),
        (COCS, "world.kind=open", "world.edges", "one edge"),
        (COCS, "world.kind=bas", "world.streaming.dataset", "is missing"),
        (COCS, "policies.nope.x=1", "policies.nope", "there are"),
        (EXCHANGE, "world.clients=41", "world.clients", "multiple of 4"),
    ],
)
def test_an_error_names_the_key_and_the_hint(
    recipe: str, change: str, key: str, words: str
) -> None:
    with pytest.raises(RecipeError) as caught:
        load_recipe(recipe, [change])
    assert caught.value.key == key
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("recipe", "change", "worlds"),
    [
        (EXCHANGE, "rounds.deadline_s=3", "radio and traces and chances and recorded and open"),
        (EXCHANGE, "world.change.after=0.1", "radio"),
        ("middling", "world.radio.noise_dbm_hz=-160", "radio"),
    ],
)
def test_a_key_that_the_world_does_not_use_is_refused(
    recipe: str, change: str, worlds: str
) -> None:
    with pytest.raises(RecipeError, match="is not used by world") as caught:
        load_recipe(recipe, [change])
    assert caught.value.key == change.partition("=")[0]
    assert caught.value.hint == f"leave it out, it is for {worlds}"


def test_a_world_is_its_base_with_its_own_keys_over_it() -> None:
    base, world = load_recipe("cocs-decisions"), load_recipe("middling")
    assert (world.name, world.world.kind) == ("middling", "chances")
    assert (world.world.work, world.rounds) == (base.world.work, base.rounds)
    assert load_recipe("dying", ["world.dying.share=0.1"]).world.dying.share == 0.1


def test_a_recipe_that_is_not_there_names_those_that_are() -> None:
    with pytest.raises(RecipeError, match="cocs-decisions"):
        load_recipe("cocs-decision")
    with pytest.raises(RecipeError, match="cannot be read"):
        load_recipe("/nowhere/x.toml")
