"""Studies in virtual time: policies side by side."""

from fedagent_testbed.recipe import TestbedRecipe
from fedagent_testbed.recipe_file import load_recipe, recipe_names, world_names
from fedagent_testbed.worlds import World, make_world

from .comparison import Comparison, Figure, figure
from .history import History
from .matrix import Matrix
from .play import compare, compare_worlds, play
from .selection import make_policy
from .streams import MARGIN

__all__ = [
    "MARGIN",
    "Comparison",
    "Figure",
    "History",
    "Matrix",
    "TestbedRecipe",
    "World",
    "compare",
    "compare_worlds",
    "figure",
    "load_recipe",
    "make_policy",
    "make_world",
    "play",
    "recipe_names",
    "world_names",
]
