"""Studies in virtual time: recipes, worlds, and policies side by side."""

from .compare import Comparison, Figure, compare
from .history import History
from .play import make_policy, make_world, play, unmet
from .spec import TestbedRecipe, load_recipe, recipe_names
from .world import World

__all__ = [
    "Comparison",
    "Figure",
    "History",
    "TestbedRecipe",
    "World",
    "compare",
    "load_recipe",
    "make_policy",
    "make_world",
    "play",
    "recipe_names",
    "unmet",
]
