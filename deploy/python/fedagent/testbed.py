"""Policies side by side in virtual time, on the same seeds: `docs/testbed.md`."""

from fedagent_testbed.study import (
    Comparison,
    Figure,
    Matrix,
    compare,
    compare_worlds,
    load_recipe,
    recipe_names,
    world_names,
)

__all__ = [
    "Comparison",
    "Figure",
    "Matrix",
    "compare",
    "compare_worlds",
    "load_recipe",
    "recipe_names",
    "world_names",
]
