"""The worlds of studies, by the name that a recipe gives them."""

from fedagent_task.errors import RecipeError
from fedagent_testbed.recipe import TestbedRecipe

from .base import Times, World, arrived, outcome
from .linked import ChanceWorld, LinkedWorld, TraceWorld
from .one_edge import LinearExchange, OpenWorld
from .radio import RadioWorld, StaticRadioWorld
from .recorded import RecordedWorld

__all__ = ["LinkedWorld", "Times", "World", "arrived", "make_world", "outcome"]


def make_world(recipe: TestbedRecipe, seed: int) -> World:
    """Return the recipe's world.

    Raises:
        DatasetError, RecipeError: Its files are not there, or are none of such.
        RecipeError: It is the world of streams, which has no pairs.
    """
    match recipe.world.kind:
        case "radio":
            return (StaticRadioWorld if recipe.world.radio.static else RadioWorld)(recipe, seed)
        case "exchange":
            return LinearExchange(recipe, seed)
        case "open":
            return OpenWorld(recipe, seed)
        case "traces":
            return TraceWorld(recipe, seed)
        case "chances":
            return ChanceWorld(recipe, seed)
        case "recorded":
            return RecordedWorld(recipe, seed)
        case "bas":
            raise RecipeError("world.kind", "is bas", "it has streams, and no view of pairs")
