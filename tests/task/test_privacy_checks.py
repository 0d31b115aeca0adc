"""What privacy and secure aggregation exclude is said when the recipe is read."""

from pathlib import Path

import pytest

from fedagent_task.errors import RecipeError
from fedagent_task.recipe.text import parse_recipe, task_of

DEMO = (Path(__file__).parents[2] / "deploy/recipes/demo.toml").read_text()
NOISE = ("privacy.mode=central", "rounds.weighting=uniform")
MASKS = ("secure_aggregation.minimum_cohort=3",)


@pytest.mark.parametrize(
    ("sets", "key"),
    [
        (("privacy.mode=central",), "rounds.weighting"),
        ((*NOISE, "rounds.count=0"), "privacy.releases"),
        ((*NOISE, "data.standardize=true", "data.scale=1", "data.offset=0"), "data.standardize"),
        ((*NOISE, "evaluation.on_device=true"), "evaluation.on_device"),
        ((*NOISE, "opinions.mode=report"), "opinions.epsilon"),
        (("privacy.mode=local", "rounds.weighting=uniform"), "limits.norm"),
        ((*NOISE, "privacy.epsilon=0"), "privacy.epsilon"),
        ((*NOISE, "privacy.delta=1"), "privacy.delta"),
        ((*NOISE, "aggregation.name=qfedavg"), "privacy.mode"),
        (("secure_aggregation.minimum_cohort=2",), "secure_aggregation.minimum_cohort"),
        ((*MASKS, "secure_aggregation.threshold=0.5"), "secure_aggregation.threshold"),
        ((*MASKS, "aggregation.name=scaffold"), "secure_aggregation.minimum_cohort"),
        ((*MASKS, "aggregation.name=fednova"), "secure_aggregation.minimum_cohort"),
        ((*MASKS, "learner.name=none"), "learner.name"),
        ((*MASKS, "placement.name=budgeted-ucb"), "placement.name"),
    ],
)
def test_what_does_not_go_together_names_the_key_and_the_mend(
    sets: tuple[str, ...], key: str
) -> None:
    with pytest.raises(RecipeError) as caught:
        parse_recipe(DEMO, sets)
    assert caught.value.key == key
    assert caught.value.hint


@pytest.mark.parametrize("name", ["fedavg", "fedprox", "fedavgm", "fedadam", "fedyogi"])
def test_means_and_the_servers_optimisers_go(name: str) -> None:
    recipe = parse_recipe(DEMO, (*NOISE, *MASKS, f"aggregation.name={name}"))
    assert task_of(recipe).privacy.releases == recipe.rounds.count
