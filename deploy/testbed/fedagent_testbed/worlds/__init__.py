"""The worlds of studies, by the name that a recipe gives them."""

from fedagent_task.errors import RecipeError
from fedagent_testbed.recipe import TestbedRecipe

from .base import Times, World, arrived, outcome
from .exchange import LinearExchange
from .linked import LinkedWorld
from .open import OpenWorld
from .radio import RadioWorld
from .recorded import TraceWorld

__all__ = ["LinearExchange", "LinkedWorld", "Times", "World", "arrived", "make_world", "outcome"]


def make_world(recipe: TestbedRecipe, seed: int) -> World:
    """Return the recipe's world.

    Raises:
        DatasetError: Its files are not there.
        RecipeError: It is the world of streams, which has no pairs.
    """
    match recipe.world:
        case "radio":
            return RadioWorld(recipe, seed)
        case "exchange":
            return LinearExchange.of(recipe, seed)
        case "open":
            return OpenWorld(recipe, seed)
        case "traces":
            return TraceWorld(recipe, seed)
        case "bas":
            raise RecipeError("world", "is bas", "it has streams, and no view of pairs")
