"""What a coordinator can be told before it starts: whether its recipe would do."""

from pathlib import Path

from fedagent_task import models
from fedagent_task.errors import RecipeError
from fedagent_task.recipe import parse_recipe
from fedagent_task.spec import Recipe

from .config import CoordinatorConfig
from .evaluation import held_out
from .first_model import read_first_model
from .runs import decision_policies


def read_recipe(config: CoordinatorConfig) -> Recipe:
    """Return the recipe with the overrides of the configuration.

    Raises:
        RecipeError: It cannot be read, or a key is wrong.
    """
    try:
        text = Path(config.recipe).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError("recipe", f"{config.recipe} cannot be read", "name a file") from error
    return parse_recipe(text, config.recipe_sets)


def check_recipe(config: CoordinatorConfig) -> None:
    """Make what a start makes of the recipe, and leave nothing behind.

    Raises:
        RecipeError: It cannot be read, or a key is wrong.
        PolicyError: A name is unknown, or a parameter of the policy.
        DatasetError: The held-out set cannot be read.
        RefusedOptionError: The model to begin from is none of this recipe.
    """
    recipe = read_recipe(config)
    decision_policies(recipe)
    held_out(recipe)
    if config.init:
        manifest = models.create(recipe.model).manifest()
        read_first_model(config.init, Path(config.data_dir) / "models", manifest)
